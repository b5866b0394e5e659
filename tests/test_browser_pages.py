"""The pages in a real browser: they work without script, for a reader's help, on a phone, and in the dark."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from browsers import Open, faults_of, served, walked, wider
from doubles import MemoryArchive
from presentable import Scene, presentable
from runs_made import Make, claimed, ended, name_runs, replied
from webs import site_of

from scheduler.web.ways import WAYS
from worker.store.archive import Archive

BATCH = "night-0123456789ab"
RUN = f"{BATCH}-cart-0"


def test_a_page_opens_on_a_phone_without_a_fault(
    archive: Archive, make_run: Make, origin: str, open_window: Open
) -> None:
    """Home, a batch and a run: the browser complains of nothing, nothing is fetched elsewhere, nothing sticks out."""
    make_run(RUN, claimed(), replied(text="<b>done</b>"), *ended())
    name_runs(archive, {RUN: "cart"})
    window = open_window(origin, phone=True).sign_in()
    for path in ("/", f"/batches/{BATCH}", f"/runs/{RUN}"):
        assert wider(window.go(path)) == [], path


def kind_of(path: str) -> str:
    """The pattern of a page, so that each kind is looked at once."""
    plain = path.partition("?")[0]
    patterns = [(way.pattern, re.sub(r"\{\w+\}", "[^/]+", way.pattern)) for way in WAYS if not way.changes]
    return next((pattern for pattern, form in patterns if re.fullmatch(form, plain)), plain)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return presentable(MemoryArchive(), sizes=(5, 3, 2, 2))  # type: ignore[arg-type]


@pytest.fixture
def night(scene: Scene) -> Iterator[str]:
    """Where a whole night is shown, with runs of every kind."""
    with served(site_of(scene.archive)) as origin:
        yield origin


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_page_shuts_anybody_out(dark: bool, phone: bool, night: str, open_window: Open, axe: str) -> None:
    """No serious fault of accessibility on any kind of page, as axe-core finds them."""
    window, found, seen = (
        open_window(night, dark=dark, phone=phone).sign_in(),
        dict[str, list[str]](),
        dict[str, int](),
    )
    for path, page in walked(window, most=80, alike=1):
        kind = kind_of(path)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= 3 and (faults := faults_of(page, axe)):
            found[path] = faults
    assert found == {}


@pytest.mark.full
@pytest.mark.timeout(900)
def test_no_page_scrolls_sideways_on_a_phone(night: str, open_window: Open) -> None:
    """At 360 pixels a wide table scrolls by itself, the page does not."""
    window = open_window(night, phone=True).sign_in()
    found = {path: out for path, page in walked(window, most=120, alike=1) if (out := wider(page))}
    assert found == {}


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_page_says_what_it_has_without_script(night: str, open_window: Open) -> None:
    """With script switched off every page opens, and has a heading and a text."""
    window = open_window(night, script=False).sign_in()
    bare = [path for path, page in walked(window, most=80, alike=1) if not page.inner_text("main h1").strip()]
    assert bare == []


@pytest.mark.full
def test_who_looks_finds_what_is_wrong(origin: str, open_window: Open, axe: str) -> None:
    """A field without a name, grey on grey, and a box that is too wide are found: what finds nothing has looked."""
    page = open_window(origin, phone=True).page
    page.set_content(
        '<html lang="en"><title>x</title><main><h1>x</h1><input><p style="color:#aaa;background:#bbb">grey</p>'
        '<div style="width:900px">wide</div></main>'
    )
    assert {fault.split(":")[0] for fault in faults_of(page, axe)} == {"critical label", "serious color-contrast"}
    assert "900px" in wider(page)[0]
