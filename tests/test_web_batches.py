"""The pages of a batch: what they say, which runs they list, and that a hostile name stays a name."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from conftest import wait_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs_made import Make, checked, claimed, ended, name_runs, replied
from starlette.testclient import TestClient
from webs import ORIGIN

from scheduler.reports import kept
from scheduler.runs import Views
from scheduler.web import headline
from scheduler.web.pages import batches
from scheduler.web.runlist import SORTS, RunRow, Wanted, wanted
from scheduler.web.site import Site
from worker.contract.errors import UsageFault
from worker.contract.events import Failure, Sealed
from worker.contract.task import Repo
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import Journal
from worker.store.members import members

Visit = Callable[..., TestClient]
BATCH = "night-0123456789ab"
HOSTILE = '"><b>\u202ex</b><script>alert(1)</script>'
PAGES = ("", "/failures")


def made(archive: Archive, make_run: Make) -> None:
    """A night of five targets: two verified, one broken, one failed, one that nobody began."""
    name_runs(archive, {"r1": "cart", "r2": "shop", "r3": "web", "r4": "till", "r5": "desk"})
    files = {"a.py": (10, 2), "b.bin": None}
    make_run(
        "r1", claimed(), replied(cost_microusd=500_000), checked("verified", files=files), *ended(verdict="verified")
    )
    make_run("r2", claimed(), checked("verified", files={"a.py": (1, 0)}), *ended(verdict="verified"), target="shop")
    make_run("r3", claimed(), checked("broke", "red", "assert 1 == 2"), *ended(verdict="broke"), target="web")
    failure = Failure(cls="env", reason="setup", detail="no such package")
    make_run("r4", claimed(), Sealed(outcome="failed", failure=failure), target="till", labels=("team=web",))
    make_run("r5", target="desk", repo=Repo(url="https://git.example.org/team/desk", label="desk"))


def shown(visit: Visit, path: str = "", **query: str) -> dict[str, Any]:
    """The data of a page of the batch."""
    answer = visit("look").get(f"/batches/{BATCH}{path}", params={**query, "as": "json"})
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = json.loads(answer.text)["data"]
    return data


def targets(data: dict[str, Any]) -> list[str]:
    return [one["target"] for one in data["rows"]]


def test_a_batch_says_what_its_report_says_first(archive: Archive, make_run: Make, visit: Visit) -> None:
    """The sentence over its pages is the headline of the morning report."""
    made(archive, make_run)
    report = kept.gather(archive, BATCH, at="2026-11-30T06:00:00.000+00:00")
    assert shown(visit)["head"]["sentence"] == report.headline
    assert report.headline.startswith("2 of 5 verified, 2 failed, 1 not reached")


def test_a_report_that_nothing_followed_answers_for_its_batch(
    archive: Archive, make_run: Make, visit: Visit, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all had ended when it was written, no run is read for the sentence."""
    name_runs(archive, {"r1": "cart"})
    make_run("r1", claimed(), *ended(verdict="verified"))
    stored = kept.store(archive, kept.gather(archive, BATCH, at="2026-11-30T06:00:00.000+00:00"))
    monkeypatch.setattr(site.seen, "batch", lambda batch: pytest.fail("all runs were read"))
    head = shown(visit)["head"]
    assert (head["sentence"], head["as_of"], head["report"]) == (stored.report.headline, stored.report.at, 0)


def test_a_report_with_runs_after_it_does_not_answer(archive: Archive, make_run: Make, visit: Visit) -> None:
    """A batch that was not over when its report was written is counted now."""
    name_runs(archive, {"r1": "cart"})
    run = make_run("r1", claimed())
    kept.store(archive, kept.gather(archive, BATCH, at="2026-11-30T02:30:00.000+00:00"))
    Journal(archive, "r1").append(run, ended(verdict="verified"), attempt=run.attempt, at="2026-11-30T03:00:00+00:00")
    assert shown(visit)["head"]["sentence"].startswith("1 of 1 verified")


def test_a_large_batch_is_counted_behind_its_first_page(
    archive: Archive, make_run: Make, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opens it reads that it is being counted, and then what came of it."""
    made(archive, make_run)
    go, count = threading.Event(), headline.count

    def held(*given: Any) -> headline.Count:
        assert go.wait(10)
        return count(*given)

    monkeypatch.setattr(headline, "AT_ONCE", 3)
    monkeypatch.setattr(headline, "count", held)
    client = visit("look")
    first = client.get(f"/batches/{BATCH}").text
    assert "is being counted" in first
    assert "load delay" in first
    go.set()
    wait_for(lambda: "2 of 5 verified" in client.get(f"/batches/{BATCH}").text, timeout_s=10)
    assert "load delay" not in client.get(f"/batches/{BATCH}").text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["cart", "shop", "web", "till", "desk"]),
        ({"state": "verified"}, ["cart", "shop"]),
        ({"state": "verified queued"}, ["cart", "shop", "desk"]),
        ({"class": "env"}, ["till"]),
        ({"repo": "*/team/*"}, ["desk"]),
        ({"label": "team=web"}, ["till"]),
        ({"state": "verified", "sort": "-diff"}, ["cart", "shop"]),
        ({"state": "verified", "sort": "diff"}, ["shop", "cart"]),
        ({"sort": "target"}, ["cart", "desk", "shop", "till", "web"]),
    ],
)
def test_the_address_says_which_runs_in_which_order(
    archive: Archive, make_run: Make, visit: Visit, query: dict[str, str], expected: list[str]
) -> None:
    """Filter and sort stand in it, so that it can be kept and sent."""
    made(archive, make_run)
    assert targets(shown(visit, **query)) == expected


def test_a_filter_that_is_no_word_of_ours_is_refused(archive: Archive, make_run: Make, visit: Visit) -> None:
    """A slip is said, and no empty table."""
    made(archive, make_run)
    for query in ({"state": "verifed"}, {"class": "x"}, {"sort": "colour"}):
        answer = visit("look").get(f"/batches/{BATCH}", params=query)
        assert answer.status_code == 400
        assert "one of" in answer.text


WORDS = st.lists(st.text(st.characters(blacklist_categories=["Z", "C"]), min_size=1, max_size=8), max_size=3)


@given(
    st.lists(st.sampled_from(["failed", "verified", "running"]), max_size=2, unique=True),
    WORDS.map(lambda words: list(dict.fromkeys(words))),
    st.sampled_from(["", *SORTS]),
    st.booleans(),
)
def test_what_an_address_asks_for_is_what_it_is_made_of(
    states: list[str], repos: list[str], sort: str, down: bool
) -> None:
    """Each link to a page asks for what it was made for, and the command quotes every word for a shell."""
    query = {"state": " ".join(states), "repo": " ".join(repos), "sort": ("-" if down else "") + sort if sort else ""}
    want = wanted(query)
    assert wanted(want.query()) == want
    assert (want.selection.states, want.selection.repos) == (tuple(states), tuple(repos))
    words = shlex.split(want.command(BATCH))
    assert (
        words[2:]
        == [BATCH, *(f"--state={one}" for one in states), *(f"--repo={one}" for one in repos)][-len(words[2:]) :]
    )


ROWS = st.builds(
    lambda **given: given,
    verdict=st.sampled_from(["", "verified", "broke"]),
    state=st.sampled_from(["changed", "failed", "queued"]),
    added=st.none() | st.integers(0, 50),
    steps=st.integers(0, 20),
    until=st.sampled_from(["", "2026-12-01T00:00:00+00:00", "2026-12-02T00:00:00+00:00"]),
)


@given(st.lists(ROWS, max_size=25), st.sampled_from(["state", "verdict", "diff", "steps", "until"]), st.booleans())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_sorting_is_what_a_plain_one_does(rows: list[dict[str, Any]], sort: str, down: bool) -> None:
    """What has no value stands last either way, and equal ones keep their order."""
    given_rows = [RunRow(f"r{n}", f"t{n}", **one) for n, one in enumerate(rows)]

    def value(row: RunRow) -> Any:
        return {
            "state": row.state,
            "verdict": row.verdict or None,
            "diff": row.added,
            "steps": row.steps,
            "until": row.until or None,
        }[sort]

    plain: list[RunRow] = []
    for one in [row for row in given_rows if value(row) is not None]:
        place = len(plain)
        while place and (value(plain[place - 1]) < value(one) if down else value(plain[place - 1]) > value(one)):
            place -= 1
        plain.insert(place, one)
    plain += [row for row in given_rows if value(row) is None]
    assert Wanted(sort=sort, down=down).arranged(given_rows) == plain


def test_a_long_batch_has_pages(
    archive: Archive, make_run: Make, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many rows each, sorted or not, and none twice."""
    monkeypatch.setattr(batches, "ROWS_SHOWN", 4)
    names = {f"r{n}": f"t{n}" for n in range(7)}
    name_runs(archive, names)
    for run, target in names.items():
        make_run(run, target=target)
    for query in ({}, {"sort": "target"}):
        first, second = shown(visit, **query), shown(visit, page="2", **query)
        assert targets(first) + targets(second) == sorted(names.values())
        assert second["slice"]["total"] == 7
    assert visit("look").get(f"/batches/{BATCH}", params={"page": "3"}).status_code == 404


def test_the_first_page_reads_its_own_runs_only(
    archive: Archive, make_run: Make, visit: Visit, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of thousands opens at once."""
    names = {f"r{n:03d}": f"t{n:03d}" for n in range(250)}
    name_runs(archive, names)
    for run in list(names)[:2]:
        make_run(run, target=names[run])
    asked: list[str] = []
    read = site.seen.views

    def noted(runs: Iterable[str]) -> Views:
        asked.extend(given := list(runs))
        return read(given)

    monkeypatch.setattr(site.seen, "views", noted)
    monkeypatch.setattr(site.seen, "batch", lambda batch: read([]))
    assert len(shown(visit)["rows"]) == 100
    assert asked == list(names)[:100]


def test_runs_that_cannot_be_read_have_rows(archive: Archive, make_run: Make, visit: Visit) -> None:
    """A damaged journal and a run that was never written are told, and hide no other."""
    name_runs(archive, {"r1": "cart", "r2": "shop", "r3": "web"})
    make_run("r1", claimed())
    make_run("r2", target="shop")
    archive.overwrite(keys.segment("r2", 0), b"torn")
    rows = {one["target"]: one["state"] for one in shown(visit)["rows"]}
    assert rows == {"cart": "running", "shop": "damaged", "web": "not_written"}
    assert {one["target"]: one["state"] for one in shown(visit, sort="target")["rows"]} == rows


def test_failures_that_are_alike_are_one_group(archive: Archive, make_run: Make, visit: Visit) -> None:
    """With how many, what they said, and the command that repeats them."""
    name_runs(archive, {f"r{n}": f"t{n}" for n in range(4)})
    for n in range(3):
        failure = Failure(cls="env", reason="setup", detail=f"no package {n} at 10.0.0.{n}")
        make_run(f"r{n}", claimed(), Sealed(outcome="failed", failure=failure), target=f"t{n}")
    make_run("r3", claimed(), checked("broke", "red", "assert False"), *ended(verdict="broke"), target="t3")
    data = shown(visit, "/failures")
    assert [(len(group["runs"]), group["kind"]) for group in data["groups"]] == [(3, "env/setup"), (1, "broke")]
    assert data["groups"][0]["retry"] == f"dawn retry {BATCH} --class env"


def test_only_who_may_decide_has_a_button_to_retry(archive: Archive, make_run: Make, visit: Visit) -> None:
    """A viewer reads the command; a reviewer sends the very runs that the group shows."""
    made(archive, make_run)
    address = f'action="/batches/{BATCH}/retry"'
    assert address not in visit("look").get(f"/batches/{BATCH}/failures").text
    page = visit("decide").get(f"/batches/{BATCH}/failures").text
    assert page.count(address) == 2
    assert '<input type="hidden" name="run" value="r3">' in page


def test_the_button_retries_what_its_group_shows(archive: Archive, make_run: Make, visit: Visit) -> None:
    """What a reviewer sends is what the page holds, and the failed target has a new run."""
    made(archive, make_run)
    client = visit("decide")
    page = client.get(f"/batches/{BATCH}/failures").text
    form = next(part for part in page.split("<form")[1:] if 'value="r4"' in part and "/retry" in part)
    fields = re.findall(r'name="(\w+)" value="([^"]+)"', form.split("</form>")[0])
    assert [value for name, value in fields if name == "run"] == ["r4"]
    answer = client.post(
        f"/batches/{BATCH}/retry", data=dict(fields), headers={"origin": ORIGIN}, follow_redirects=False
    )
    assert answer.status_code == 303, answer.text
    assert [(one.target, one.ordinal) for one in members(archive, BATCH) if one.ordinal] == [("till", 1)]


def test_a_hostile_name_stays_a_name_on_each_page(archive: Archive, make_run: Make, visit: Visit) -> None:
    """T68: targets, labels, errors and output of strangers make no element and turn no text around."""
    name_runs(archive, {"r1": HOSTILE, "r2": f"{HOSTILE}2"})
    failure = Failure(cls="env", reason="setup", detail=HOSTILE)
    make_run("r1", claimed(HOSTILE), Sealed(outcome="failed", failure=failure), target=HOSTILE)
    make_run("r2", claimed(), checked("broke", "red", HOSTILE), *ended(verdict="broke"), target=f"{HOSTILE}2")
    client = visit("decide")
    for path in PAGES:
        page = client.get(f"/batches/{BATCH}{path}", params={"repo": HOSTILE}).text
        page += client.get(f"/batches/{BATCH}{path}").text
        assert "alert(1)" in page, path
        assert "<script>alert" not in page, path
        assert '"><b>' not in page, path
        assert "\u202e" not in page, path


def test_all_batches_are_listed_with_what_came_of_them(archive: Archive, make_run: Make, visit: Visit) -> None:
    """The newest first; one whose submit was cut off is told as such."""
    made(archive, make_run)
    archive.create(keys.batch_manifest("cut-0123456789ab"), b"version: 1\n")
    told = json.loads(visit("look").get("/batches", params={"as": "json"}).text)["data"]
    assert [one["batch"] for one in told["heads"]] == [BATCH, "cut-0123456789ab"]
    assert told["heads"][0]["head"]["sentence"].startswith("2 of 5 verified")
    assert "cut off" in told["heads"][1]["why"]
    assert "2 of 5 verified" in visit("look").get("/batches").text


def test_a_batch_that_is_not_there_is_not_found(visit: Visit) -> None:
    """It is said in words."""
    for path in PAGES:
        answer = visit("look").get(f"/batches/nope-0123456789ab{path}")
        assert answer.status_code == 404
        assert "there is no batch nope" in answer.text


def test_words_that_no_filter_has_raise() -> None:
    """The same words as the commands have."""
    with pytest.raises(UsageFault, match="sorted by"):
        wanted({"sort": "--"})
