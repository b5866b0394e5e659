"""Owns what the pages of a run say, of any there is: sound or damaged, of any version, with hostile words in it."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs_made import Make, checked, claimed, replied
from starlette.testclient import TestClient
from test_web_steps import MODEL, observed

from scheduler.web.journals import ansi
from worker.contract import events as e
from worker.contract.events import canonical
from worker.contract.fork import step_end
from worker.contract.task import ForkPoint, Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import Journal

HERE = Path(__file__).parent
GOLDEN = sorted((HERE / "golden").glob("v*"))
TABS = ("", "/steps", "/checks", "/environment", "/spend", "/audit", "/steps/s0")
HOSTILE = '</pre></script><script>alert(1)</script><img src=x onerror=alert(1)> "><b> javascript:alert(1)'
Visit = Callable[..., TestClient]


@pytest.fixture
def client(visit: Visit) -> TestClient:
    return visit("look")


def ended(archive: Archive, make_run: Make, run: str = "r", words: str = "all done") -> str:
    """A run with five steps, one of which fails, a patch, a verdict and artifacts."""
    journal = Journal(archive, run)
    events: list[e.Event] = [claimed()]
    for step in range(1, 6):
        seen = observed(
            step, "error" if step == 3 else "ok", f"line \x1b[31mred {words}\x1b[0m\x1b[2J\r", "ab"[step > 2]
        )
        events += [replied(step, words, f"step {step}", cost_microusd=1_000), seen]
    patch = journal.put_blob(b"diff --git a/x b/x\n")
    measured = checked("verified", tail=f"1 passed {words}", digest=patch, files={f"src/{words}": (3, 1)})
    against = (e.Contradiction(claim=words, evidence="it did not"),)
    events += [e.Finished(text=words), measured]
    events += [
        e.Sealed(outcome="changed", verdict="verified", artifacts={"patch.diff": patch}, contradictions=against)
    ]
    make_run(run, *events, target=words, **(MODEL | {"prompt": f"Fix {words}"}))
    return run


def test_every_tab_of_a_run(archive: Archive, make_run: Make, client: TestClient) -> None:
    """Each page of a run that ended is there, names it, and has a twin of the same data."""
    ended(archive, make_run)
    for tab in (*TABS, "/steps/s3"):
        page = client.get(f"/runs/r{tab}")
        assert page.status_code == 200
        assert "Changed 1 file, +3 -1, and every check is green; 5 steps" in page.text
        twin = client.get(f"/runs/r{tab}", params={"as": "json"})
        assert twin.json()["data"]["head"]["run"] == "r"


def test_words_of_strangers_are_text(archive: Archive, make_run: Make, client: TestClient) -> None:
    """Whatever a repository or a model wrote makes no element, link or control character (T68, H49)."""
    ended(archive, make_run, words=HOSTILE)
    for tab in (*TABS, "/steps/s3", "/steps?only=errors"):
        text = client.get(f"/runs/r{tab}").text
        assert "alert(1)" in text
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "<b>" not in text.replace("<b>run_command</b>", "")
        assert 'href="javascript:' not in text
        assert not {letter for letter in text if ord(letter) < 32} - {"\n", "\t"}


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda path: path.name)
def test_runs_of_every_version(archive: Archive, client: TestClient, folder: Path) -> None:
    """What an earlier version wrote is shown, though much of what it names is not in this archive."""
    archive.create(keys.task("r1"), (folder / "task.json").read_bytes())
    segments: dict[int, bytes] = {}
    for line in (folder / "journal.jsonl").read_bytes().splitlines():
        seq = e.Record.parse(line).seq
        segments[seq] = segments.get(seq, b"") + line + b"\n"
    for seq, data in segments.items():
        archive.create(keys.segment("r1", seq), data)
    for tab in (*TABS, "/steps/s1"):
        assert client.get(f"/runs/r1{tab}").status_code == 200
        assert client.get(f"/runs/r1{tab}", params={"as": "json"}).json()["data"]


@pytest.fixture
def replayed(archive: Archive) -> str:
    """The run of the golden recording, as a real worker wrote it."""
    with tarfile.open(HERE / "golden" / "replay.tar") as tar:
        tar.extractall(archive.url.removeprefix("file://"), filter="data")
    [run] = archive.folders("runs/")
    return run


def test_a_recorded_run(replayed: str, client: TestClient) -> None:
    """A run of real containers has every page. Its badge says that nothing was checked, then that everything was, and
    that stays so on the next look."""
    for tab in (*TABS, "/steps/s1"):
        assert client.get(f"/runs/{replayed}{tab}").status_code == 200
    assert "not checked" in client.get(f"/runs/{replayed}/audit").text
    assert "Everything is what was written" in client.get(f"/runs/{replayed}/audit?verify=now").text
    assert "Everything is what was written" in client.get(f"/runs/{replayed}/audit").text


def test_a_damaged_run(archive: Archive, make_run: Make, client: TestClient) -> None:
    """What stands before the damage is shown, and each page names it."""
    ended(archive, make_run)
    key = keys.segment("r", 6)
    archive.overwrite(key, archive.get(key)[:-9])
    for tab in (*TABS, "/steps/s1"):
        text = client.get(f"/runs/r{tab}").text
        assert f"{key} is torn" in text
        assert "damaged behind step 2" in text


def test_a_step_that_changed_since_is_refused(archive: Archive, make_run: Make, client: TestClient) -> None:
    """A segment that is another one than the index has read is not shown as that step."""
    ended(archive, make_run)
    assert client.get("/runs/r/steps/s2").status_code == 200
    archive.overwrite(keys.segment("r", 5), archive.get(keys.segment("r", 7)))
    refused = client.get("/runs/r/steps/s2")
    assert refused.status_code == 500
    assert "dawn verify r" in refused.text


def test_steps_are_filtered_in_the_address(archive: Archive, make_run: Make, client: TestClient) -> None:
    """`only=errors` shows the one that failed, and says how many there are of each."""
    ended(archive, make_run)
    data = client.get("/runs/r/steps", params={"only": "errors", "as": "json"}).json()["data"]
    assert [one["row"]["number"] for one in data["rows"]] == [3]
    counts = {one["name"]: one["count"] for one in data["choices"]}
    assert (counts["errors"], counts["writes"]) == (1, 1)


def test_a_step_is_found_by_any_of_its_segments(archive: Archive, make_run: Make, client: TestClient) -> None:
    """What links to the segment of a result leads to the step that made it."""
    ended(archive, make_run)
    for seq in (6, 7):
        assert client.get(f"/runs/r/steps/{seq}", params={"as": "json"}).json()["data"]["row"]["number"] == 3
    assert client.get("/runs/r/steps/99").status_code == 404
    assert client.get("/runs/r/steps/s99").status_code == 404


def test_the_raw_bytes_of_a_step_are_a_file(archive: Archive, make_run: Make, client: TestClient) -> None:
    """They are the segments as they stand, to be kept and never shown."""
    ended(archive, make_run)
    sent = client.get("/runs/r/steps/s3/raw")
    assert sent.content == archive.get(keys.segment("r", 6)) + archive.get(keys.segment("r", 7))
    assert sent.headers["content-disposition"].startswith("attachment")
    assert sent.headers["x-content-type-options"] == "nosniff"
    kept = client.get("/runs/r/artifacts/patch.diff")
    assert kept.content == b"diff --git a/x b/x\n"
    assert "patch.diff" in kept.headers["content-disposition"]


def test_a_large_output_is_read_by_pages(archive: Archive, make_run: Make, client: TestClient) -> None:
    """A page of it is a range; the file is all of it; a digest that nobody wrote is not there."""
    make_run("r", claimed(), replied(1), **MODEL)
    data = b"\x1b[32m" + b"0123456789abcdef" * 16_384
    digest = Journal(archive, "r").put_blob(data)
    page = client.get(f"/runs/r/blobs/{digest}", params={"page": "4", "as": "json"}).json()["data"]
    assert page["part"]["text"]["text"] == data[3 * 65_536 : 4 * 65_536].decode()
    assert page["slice"]["last"] == 5
    assert client.get(f"/runs/r/blobs/{digest}/raw").content == data
    assert client.get(f"/runs/r/blobs/{'0' * 64}").status_code == 404
    assert client.get("/runs/r/blobs/..%2Ftask.json").status_code == 404


def test_copied_steps_of_a_fork(archive: Archive, make_run: Make, client: TestClient) -> None:
    """Those that a fork took along stand in one segment, and each is shown alone; parent and fork name each other."""
    make_run("r", claimed(), replied(1, "one"), observed(1), replied(2, "two"), observed(2), **MODEL)
    lines = list(Journal(archive, "r").read())
    _, (record, line_hash) = step_end(lines, 2)
    # A run without a prepared environment cannot be forked by a command; its journal can be copied all the same.
    point = ForkPoint(run="r", step=2, seq=record.seq, hash=line_hash, message="go on")
    task = Journal(archive, "r").task().model_copy(update={"run": "f", "batch": "fork-1", "fork": point})
    Journal(archive, "f").submit(Task.model_validate(task.model_dump()), "me", record.at)
    archive.create(keys.batch_manifest("fork-1"), canonical({"fork": {"run": "r"}}))
    archive.create(keys.batch_targets("fork-1"), canonical({"targets": [{"target": "cart", "run": "f"}]}))
    for number, words in ((1, "one"), (2, "two")):
        body = client.get(f"/runs/f/steps/s{number}", params={"as": "json"}).json()["data"]["body"]
        assert body["said"]["text"] == words
        assert [call["id"] for call in body["calls"]] == [f"c{number}"]
    assert client.get("/runs/f", params={"as": "json"}).json()["data"]["parent"] == "r"
    assert client.get("/runs/r", params={"as": "json"}).json()["data"]["forks"] == ["f"]


def test_a_delegate_has_the_same_pages(archive: Archive, make_run: Make, client: TestClient) -> None:
    """Its journal opens below its run's, and is linked from the call that it answered."""
    name = keys.delegate("r", "c1")
    events = [claimed(), replied(1), e.Delegated(call_id="c1", seq=1, hash="0" * 64), observed(1)]
    make_run("r", *events, **MODEL)
    task = Journal(archive, "r").task().model_copy(update={"run": name})
    journal = Journal(archive, name)
    journal.submit(task, "me", "2026-11-30T02:00:00.000+00:00")
    journal.append(journal.load(), [replied(1, "the answer")], attempt=None, at="2026-11-30T02:00:00.000+00:00")
    assert "/runs/r/delegates/c1" in client.get("/runs/r/steps/s1").text
    for tab in ("", "/steps", "/steps/s1", "/spend"):
        assert "Delegate of c1" in client.get(f"/runs/r/delegates/c1{tab}").text
    assert client.get("/runs/r/delegates/c9").status_code == 404


def test_a_failed_run_says_what_to_do(archive: Archive, make_run: Make, client: TestClient) -> None:
    """Class and reason, the detail, a hint, and the command that tries again."""
    failure = e.Failure(cls="limit", reason="steps", detail="the limit of 5 steps is used up")
    make_run("r", claimed(), e.Finished(failure=failure), e.Sealed(outcome="failed", failure=failure), **MODEL)
    text = client.get("/runs/r").text
    assert "limit/steps" in text
    assert "a higher steps limit" in text
    assert "dawn retry r" in text


def test_a_browser_that_asks_for_an_icon_is_not_told_of_a_fault(visit: Visit) -> None:
    """There is none, for nobody, and that is no missing page."""
    assert visit(None).get("/favicon.ico").status_code == 204


def test_there_is_advice_for_each_reason() -> None:
    """The closed set of reasons has no gap."""
    from scheduler.web.journals.advice import advice

    assert all(advice(e.Failure(cls=cls, reason=why)) for cls, reasons in e.REASONS.items() for why in reasons)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("\x1b[31;1mred\x1b[0m plain", '<span class="ansi1 ansi31">red</span> plain'),
        ("\x1b[92mlight\x1b[39m.", '<span class="ansi92">light</span>.'),
        ("\x1b[38;5;196mx", '<span class="ansi38-196">x</span>'),
        ("\x1b[7mx\x1b[27my", '<span class="inv_background inv_foreground">x</span>y'),
        ("<b>\x1b[31m<i>\x1b[m", '&lt;b&gt;<span class="ansi31">&lt;i&gt;</span>'),
        ("\x1b[31:1mx", "\\x1b[31:1mx"),
        ("a\x1b]8;;javascript:alert(1)\x07b\x1b]8;;\x07", "a\\x1b]8;;javascript:alert(1)\\x07b\\x1b]8;;\\x07"),
        ("50%\r100%\x1b[K\n", "50%\\r100%\\x1b[K\n".replace("\\r", "\\x0d")),
        ("\x1b[99999999mx\x1b[;mx", "xx"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
    ],
)
def test_colours_are_classes_and_the_rest_is_written_out(printed: str, shown: str) -> None:
    """What a terminal would do for a text is done for colours only."""
    assert ansi.html(printed) == shown


def test_a_file_is_called_what_it_seems_to_be(archive: Archive, make_run: Make, visit: Visit) -> None:
    """H51: a name that turns its direction around would look like another kind of file in a folder."""
    blob = Journal(archive, "r").put_blob(b"<script>")
    name = "a\u202efdp.html"
    make_run("r", claimed(), e.Finished(), e.Sealed(outcome="changed", artifacts={name: blob}))
    kept = visit("look").get(f"/runs/r/artifacts/{name}")
    assert kept.content == b"<script>"
    assert kept.headers["content-disposition"] == "attachment; filename*=UTF-8''a%5Cu202efdp.html"
    assert kept.headers["content-type"] == "application/octet-stream"


def test_a_run_gives_its_own_bytes_only(archive: Archive, make_run: Make, visit: Visit) -> None:
    """H51: an object of another run is not there under this one, whatever its place is written like."""
    for run in ("r", "other"):
        blob = Journal(archive, run).put_blob(run.encode())
        make_run(run, claimed(), replied(1), e.Finished(), e.Sealed(outcome="changed", artifacts={run: blob}))
    client = visit("look")
    assert client.get(f"/runs/other/blobs/{blob}/raw").content == b"other"
    for place in (
        *(f"blobs/{blob}", f"blobs/{blob}/raw", f"blobs/..%2f..%2fother%2fblobs%2f{blob}/raw", f"blobs/{blob}%00"),
        *("artifacts/other", "artifacts/r%00", "artifacts/..%2f..%2fother%2ftask.json", "steps/..%2fs1/raw"),
        *("delegates/..%2f..%2fother", "delegates/%2e%2e/steps/s1/raw", "diff/raw?file=..%2f..%2fother%2ftask.json"),
    ):
        assert client.get(f"/runs/r/{place}").status_code == 404, place
    for run in ("..%2fruns%2fother", "r%2f..%2fother", "%00", "r%00"):
        assert client.get(f"/runs/{run}").status_code in (400, 404), run


def test_an_argument_looks_like_no_other(archive: Archive, make_run: Make, visit: Visit) -> None:
    """H52: the name of one with a line of its own in it shows as one name."""
    call = e.ToolCall(id="c1", name="run_command", arguments='{"x\\ncommand: ls": "1", "command": "rm -r ."}')
    reply = e.Reply(calls=(call,), usage=e.Usage(input_tokens=1, output_tokens=1))
    make_run("r", claimed(), e.Replied(step=1, phase="model", context_tokens=1, reply=reply))
    page = visit("look").get("/runs/r/steps/2").text
    assert "x\\x0acommand: ls: 1" in page
    assert "\ncommand: ls" not in page


def test_a_text_of_nothing_but_colours_is_all_there() -> None:
    """T68: behind a bound its colours are left out, so that a page of it costs no more; its letters stay."""
    shown = ansi.html("\x1b[31mA\x1b[0mB" * 7_000)
    assert re.sub("<[^>]*>", "", shown) == "AB" * 7_000
    assert shown.count("<span") <= ansi.COLOURS_MAX
    assert shown.endswith("AB")


@given(st.text(st.sampled_from("\x1b\x9b[]()<>&\"'\\;:m0123456789Kh \n\r\x07axé")))
def test_no_text_becomes_an_element_or_keeps_a_control(printed: str) -> None:
    """Whatever a command prints, its page holds spans with a class, letters, and nothing else."""
    bare = re.sub(r'<span class="[a-z0-9_ -]+">|</span>', "", ansi.html(printed))
    assert re.search(r"[<>\x00-\x08\x0b-\x1f\x7f-\x9f]", bare) is None
