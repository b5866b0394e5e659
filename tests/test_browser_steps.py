"""Owns the keys on a run's steps, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import long_runs
import pytest
from browsers import Open, served
from webs import site_of

from worker.store.local import LocalArchive

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[str]:
    """Where a run of 160 steps is shown; every 50th fails."""
    long_runs.write(tmp_path / "archive", long_runs.task(), long_runs.conversation(160, 2_000))
    with served(site_of(LocalArchive(f"file://{tmp_path}/archive"))) as origin:
        yield origin


def at(page: Page) -> str:
    """The step that is chosen in the list."""
    return str(page.evaluate("document.activeElement.closest('[data-step]').id"))


@pytest.mark.full
@pytest.mark.timeout(900)
def test_keys_walk_over_steps_and_problems(long_run: str, open_window: Open) -> None:
    """j and k go to the next and last step, over the end of a page too; l and h to the next and last problem; Enter
    opens a step in place, and on a step's own page the same keys go on."""
    window = open_window(long_run).sign_in()
    page = window.go("/runs/long/steps")
    for key, step in (("j", 0), ("j", 1), ("j", 2), ("k", 1), ("l", 50), ("h", 50), ("j", 51), ("h", 50)):
        page.keyboard.press(key)
        assert at(page) == f"step-{step}", key
    page.keyboard.press("Enter")
    assert page.locator("#step-50 details").get_attribute("open") is not None
    page.keyboard.press("l")  # the next problem stands on the second page
    page.wait_for_url("**/steps?page=2#step-100")
    page.wait_for_selector("#step-100 summary:focus")
    page.keyboard.press("k")
    page.wait_for_url("**/steps?page=1#last")
    page.wait_for_selector("#step-99 summary:focus")
    page = window.go("/runs/long/steps/s99")
    page.keyboard.press("j")
    page.wait_for_selector("h2:has-text('Step 100')")
    page.keyboard.press("l")
    page.wait_for_selector("h2:has-text('Step 150')")
    page.keyboard.press("k")
    page.wait_for_selector("h2:has-text('Step 149')")
    window.check()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_steps_open_without_script(long_run: str, open_window: Open) -> None:
    """The list, its filters and each step are there for a browser that runs nothing."""
    page = open_window(long_run, script=False).sign_in().go("/runs/long/steps?only=errors")
    assert page.locator("[data-step]").count() == 3
    page.locator("#step-100 summary").click()
    assert page.locator("#step-100 .opened").is_visible()
    page.locator("#step-100 a[data-open]").click()
    assert "Step 100" in page.locator("h2").first.inner_text()
