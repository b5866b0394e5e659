"""A real browser on an archive whose every word wants to be run: nothing of it is, and all of it is text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browsers import Open, served, walked, wider
from hostile import BATCH, SCRIPT, SEEN, hostile
from runs_made import Make
from webs import site_of

from scheduler.web.static import Folder
from worker.store.archive import Archive


@pytest.fixture
def trap(archive: Archive, make_run: Make) -> Iterator[str]:
    """Where the pages of the hostile archive are served."""
    hostile(archive, make_run)
    with served(site_of(archive)) as origin:
        yield origin


@pytest.mark.full
@pytest.mark.timeout(900)
def test_no_word_of_the_archive_is_run(trap: str, open_window: Open) -> None:
    """T68, H49: on every page that is linked the canary is silent, nothing is asked of anybody else, no policy is
    broken, and the words stand there as text."""
    window = open_window(trap).sign_in()
    told = "\n".join(page.inner_text("body") for _, page in walked(window, most=200, alike=2))
    unseen = [field for field in SEEN if f"at-{field} " not in told]
    assert unseen == []
    assert SCRIPT in told


@pytest.mark.full
@pytest.mark.timeout(900)
def test_no_word_is_run_by_the_folder_on_disk(
    archive: Archive, make_run: Make, tmp_path: Path, open_window: Open
) -> None:
    """H49: the pages of a folder, opened from disk on a phone, run nothing and ask for nothing but their own sheets,
    have their colours, and do not stick out."""
    hostile(archive, make_run)
    Folder(site_of(archive, settings=None), BATCH).write(tmp_path / "out")
    window = open_window("file://", phone=True)
    files = sorted((tmp_path / "out").rglob("*.html"))
    steps = [file for file in files if file.name.startswith("step-")]
    told = ""
    for file in [file for file in files if file not in steps[8:]]:
        page = window.go(file.as_uri())
        assert page.evaluate("getComputedStyle(document.querySelector('.top')).display") == "flex", file
        assert wider(page) == [], file
        told += page.inner_text("body")
    assert [field for field in ("target", "patch", "output", "last") if f"at-{field} " not in told] == []
    assert SCRIPT in told
