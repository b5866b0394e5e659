"""A real browser on an archive whose every word wants to be run: nothing of it is, and all of it is text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browsers import Open, served, walked
from hostile import SCRIPT, SEEN, hostile
from runs_made import Make
from webs import site_of

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
