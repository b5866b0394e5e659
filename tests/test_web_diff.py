"""The page of a run's patch: whatever stands in it is shown as text, and each hunk names the call that made it."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

import pytest
from runs_made import Make, claimed
from starlette.testclient import TestClient
from test_provenance import PATCH, journal

from scheduler.web.patches import code_style, diffs
from worker.contract.events import Event, Finished, Observed, Sealed, SnapshotRef, digest
from worker.store.archive import Archive
from worker.store.journal import Journal

Visit = Callable[..., TestClient]
EVIL = '"><b><img src=x onerror=alert(1)>'


@pytest.fixture
def client(visit: Visit) -> TestClient:
    return visit("look")


def made(archive: Archive, make_run: Make, patch: bytes, run: str = "r", target: str = "cart") -> str:
    """A run that left this patch; its three calls edited src/a.py, looked around, and made b.txt."""
    edit = {"path": "src/a.py", "old_text": "x = 1\n", "new_text": "x = 2\ny = 3\n"}
    records = journal(
        ("edit_file", edit, ["src/a.py"]), ("run_command", {"command": "ls"}, []), ("run_command", {}, ["b.txt"])
    )
    events: list[Event] = [claimed()]
    for number, record in enumerate(records):
        event = record.event
        if isinstance(event, Observed) and event.files:
            tree = digest(str(number).encode())
            event = event.model_copy(update={"snapshot": SnapshotRef(listing=tree, tree=tree, object=tree)})
        events.append(event)
    name = Journal(archive, run).put_blob(patch)
    make_run(run, *events, Finished(), Sealed(outcome="changed", artifacts={"patch.diff": name}), target=target)
    return name


def text_of(page: str) -> str:
    """What a reader sees."""
    import html

    return html.unescape(re.sub(r"<[^>]*>", "", page))


def test_a_hunk_leads_to_the_call_that_made_it_and_back(archive: Archive, make_run: Make, client: TestClient) -> None:
    """From a hunk to its step, and from a step to what of it is still in the patch."""
    made(archive, make_run, PATCH)

    page = client.get("/runs/r/diff").text
    link = re.search(r'<a href="(/runs/r/steps/\d+)">step 1, edit_file</a> wrote 2 of 2 lines', page)
    assert link is not None
    step = client.get(link[1]).text
    back = re.search(r'href="(/runs/r/diff\?step=1)"', step)
    assert back is not None
    listed = client.get(back[1]).text
    hunk = re.search(r'<a href="/runs/r/diff\?file=1&amp;page=1#(f1-h1)">src/a.py, hunk 1</a>', listed)
    assert hunk is not None
    assert f'id="{hunk[1]}"' in client.get("/runs/r/diff?file=1&page=1").text
    assert "step 3, run_command</a> was the last to change the file" in page


def test_a_binary_file_is_folded_and_can_be_seen_as_the_patch_holds_it(
    archive: Archive, make_run: Make, client: TestClient
) -> None:
    """Nobody reads it, and nothing of it is hidden."""
    made(archive, make_run, PATCH)
    assert "KcmZ" not in client.get("/runs/r/diff").text
    assert "KcmZ" in client.get("/runs/r/diff?file=3").text


def test_both_layouts_show_the_same_lines(archive: Archive, make_run: Make, client: TestClient) -> None:
    """Unified and side by side, the address says which."""
    made(archive, make_run, PATCH)
    for query in ("", "?view=split"):
        shown = text_of(client.get(f"/runs/r/diff{query}").text)
        for line in ("import os", "-x = 1", "+x = 2", "+y = 3", "-gone", "+made by a shell"):
            assert line in shown


def test_what_a_patch_says_is_text(archive: Archive, make_run: Make, client: TestClient) -> None:
    """T68: names, headers, lines and bytes of a patch make no element, no link and no control character."""
    patch = (
        f'diff --git "a/{EVIL}" "b/{EVIL}"\n@@ -1 +1 @@ {EVIL}\n-{EVIL}\n'
        f"+</td></script>{EVIL}\x1b[31m\u202e javascript:alert(1)\n"
        f"diff --git a/x b/x\n{EVIL}\n@@ -1 +9 @@\n+{EVIL}\n"
    ).encode() + b"diff --git a/y.py b/y.py\n@@ -0,0 +1 @@\n+\xff\x00'''\n"
    made(archive, make_run, patch, target=EVIL)

    for query in ("", "?view=split", "?file=1", "?file=2", "?file=3"):
        page = client.get(f"/runs/r/diff{query}")
        assert page.status_code == 200
        assert "<b>" not in page.text
        assert "<img" not in page.text
        assert "<script>" not in page.text
        assert not re.search("[\x00-\x08\x1b\u202e]", page.text)
        assert 'href="javascript' not in page.text
        assert "style=" not in page.text
    twin = client.get("/runs/r/diff", params={"as": "json"})
    assert twin.json()["data"]["files"][0]["file"]["new"] == EVIL


@pytest.mark.parametrize("letter", ["\u200b", "\u200d", "\u3164", "\U000e0041", "\u202e", "\ufe0f"])
def test_nothing_of_a_patch_is_unseen(archive: Archive, make_run: Make, client: TestClient, letter: str) -> None:
    """H47: a letter that would not show is written out and marked: nobody approves what they could not see."""
    name = f"a{letter}.py"
    patch = f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-x = 1\n+x{letter} = 1\n"
    made(archive, make_run, patch.encode())
    page = client.get("/runs/r/diff").text
    written = f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
    assert letter not in text_of(page)
    assert page.count(f"<mark>{written}</mark>") == 2  # in the path, and in the line


def test_the_patch_can_be_kept_as_it_is(archive: Archive, make_run: Make, client: TestClient) -> None:
    """Its bytes, as an attachment that no browser shows."""
    patch = PATCH + b"\xff\r\n<script>"
    made(archive, make_run, patch)
    kept = client.get("/runs/r/diff/raw")
    assert kept.content == patch
    assert kept.headers["content-disposition"].startswith("attachment")
    assert kept.headers["content-type"] == "application/octet-stream"


def test_a_long_file_is_shown_in_pages_with_every_line(archive: Archive, make_run: Make, client: TestClient) -> None:
    """The page of all files folds it; its own pages hold each line once."""
    count = 2 * diffs.ROWS + 5
    lines = "".join(f"+line {n} of them\n" for n in range(count))
    made(archive, make_run, f"diff --git a/x.py b/x.py\n@@ -0,0 +1,{count} @@\n{lines}".encode())

    assert 'file=1">Show this file</a>' in client.get("/runs/r/diff").text
    shown = "".join(text_of(client.get(f"/runs/r/diff?file=1&page={page}").text) for page in (1, 2, 3))
    assert re.findall(r"line (\d+) of them", shown) == [str(n) for n in range(count)]
    assert client.get("/runs/r/diff?file=1&page=4").status_code == 404


def test_text_that_is_no_diff_is_shown_in_pages(archive: Archive, make_run: Make, client: TestClient) -> None:
    """What cannot be read is there for a person all the same, without a gap."""
    text = "".join(f"word {n}\n" for n in range(30_000))
    made(archive, make_run, text.encode())
    first = client.get("/runs/r/diff?file=1")
    last = 2 + len(text) // diffs.RAW_BYTES
    pages = [first.text, *(client.get(f"/runs/r/diff?file=1&page={page}").text for page in range(2, last))]
    assert re.findall(r"word (\d+)", "".join(map(text_of, pages))) == [str(n) for n in range(30_000)]


@pytest.mark.parametrize("query", ["file=2", "file=99999999999", "page=2", "page=x&file=1&page=9"])
def test_an_address_of_nothing_says_so(archive: Archive, make_run: Make, client: TestClient, query: str) -> None:
    """A file or page that is not there is not found."""
    made(archive, make_run, b"diff --git a/x b/x\nnew file mode 100644\n")
    assert client.get(f"/runs/r/diff?{query}").status_code == 404


def test_a_run_without_a_patch_says_why(archive: Archive, make_run: Make, client: TestClient) -> None:
    """One that goes on, one that changed nothing, and one that reused another's work."""
    make_run("open", claimed())
    make_run("none", claimed(), Finished(), Sealed(outcome="no_change"))
    make_run("again", Sealed(outcome="reused", reused="none"))
    assert "has not ended" in client.get("/runs/open/diff").text
    assert "left no patch" in client.get("/runs/none/diff").text
    assert 'href="/runs/none/diff"' in client.get("/runs/again/diff").text
    assert client.get("/runs/none/diff/raw").status_code == 404


def test_colours_of_code_can_be_read() -> None:
    """Each colour has the contrast of WCAG 2 AA on every paper it stands on, light and dark, and the sheet is the one
    that is made."""
    style = (files("scheduler.web") / "assets" / "style.css").read_text()
    sheet = (files("scheduler.web") / "assets" / "code.css").read_text()
    variables = code_style.variables_of(style)
    light, dark = sheet.split("@media (prefers-color-scheme: dark)")

    for scheme, part in (("light", light), ("dark", dark)):
        colours = re.findall(r"\.c-\w+ \{ color: (#[0-9a-f]{6})", part)
        assert len(colours) >= 9
        for colour in (*colours, variables[scheme]["ink"]):
            for paper in code_style.PAPERS:
                assert code_style.contrast(colour, variables[scheme][paper]) >= 4.5, (scheme, colour, paper)
    assert sheet == code_style.sheet(variables)
    assert code_style.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert code_style.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
