"""Home, search, compare, queue and schedules: what they say, in which order, and how far they looked."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from runs_made import Make, checked, claimed, ended, name_runs, replied
from starlette.testclient import TestClient
from webs import site_of

from scheduler.schedules.cron import Schedule
from scheduler.schedules.stored import Said
from scheduler.web import now
from scheduler.web.pages import search
from scheduler.web.site import Site
from worker.contract.events import Asked, Failure, Observation, Observed, Parked, Sealed, canonical
from worker.contract.task import Budget, Repo
from worker.store import keys
from worker.store.archive import Archive

Visit = Callable[..., TestClient]
NIGHT = "night-0123456789ab"
LATER = "later-0123456789ab"
HOSTILE = '"><script>alert(1)</script>\u202e'


def twin(visit: Visit, path: str, of: Site | None = None, **query: Any) -> dict[str, Any]:
    """The data of a page."""
    answer = visit("look", of).get(path, params={**query, "as": "json"})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = json.loads(answer.text)
    return {**told["data"], "command": told["command"]}


def asks(kind: str = "approval", call: str = "c1") -> list[Any]:
    """A run that waits for a person."""
    asked = Asked(call_id=call, kind=kind, question="may I?", binding="b" * 64)
    return [claimed(), replied(), asked, Parked(waiting=kind, detail="run_command")]


def a_night(archive: Archive, make_run: Make) -> None:
    """An ended batch of three, and a later one that goes on."""
    name_runs(archive, {"r1": "cart", "r2": "shop", "r3": "web"})
    files = {"setup.py": (1, 1), "src/a.py": (3, 0)}
    make_run(
        "r1", claimed(), replied(cost_microusd=400_000), checked("verified", files=files), *ended(verdict="verified")
    )
    make_run(
        "r2", claimed(), checked("broke", "red", "ModuleNotFoundError: six"), *ended(verdict="broke"), target="shop"
    )
    failure = Failure(cls="env", reason="setup", detail="no such package")
    make_run(
        "r3",
        claimed(),
        Sealed(outcome="failed", failure=failure),
        target="web",
        model="scripted:x",
        script="{}",
        prompt="go",
    )
    archive.delete(keys.open_marker(run) for run in ("r1", "r2", "r3"))
    name_runs(archive, {"q1": "till", "q2": "desk"}, LATER)
    at = "2026-11-30T03:00:00.000+00:00"
    make_run("q1", *asks(), target="till", batch=LATER, at=at)
    make_run("q2", target="desk", batch=LATER, at=at)


def test_home_begins_with_the_verdict_of_the_last_batch_that_ended(
    visit: Visit, archive: Archive, make_run: Make
) -> None:
    """One sentence of the night, while a later batch still goes on below it."""
    a_night(archive, make_run)
    data = twin(visit, "/")
    assert data["last"]["batch"] == NIGHT
    assert data["last"]["head"]["sentence"].startswith("1 of 3 verified, 2 failed")
    assert [board["batch"] for board in data["running"]] == [LATER]
    page = visit("look").get("/").text
    assert page.index("1 of 3 verified") < page.index("What needs you") < page.index("Running now")


def test_home_asks_for_the_cheapest_decision_first(visit: Visit, archive: Archive, make_run: Make) -> None:
    """A call to approve before a question, a question before a budget; each says what exactly is asked."""
    name_runs(archive, {"r1": "cart", "r2": "shop", "r3": "web"})
    budget = Budget(usd=0.1)
    make_run("r1", *asks("question"), budget=budget)
    make_run("r2", claimed(), Parked(waiting="budget", detail="batch"), target="shop", budget=budget)
    make_run("r3", *asks("approval"), target="web", budget=budget)
    data = twin(visit, "/")
    assert [need["kind"] for need in data["needs"]] == ["approval", "question", "budget"]
    assert data["needs"][0]["what"] == 'run_command {"command": "ls"}'
    assert data["waiting"] == {"approval": 1, "question": 1, "budget": 1}


def test_home_says_which_open_batches_it_did_not_look_at(
    visit: Visit, archive: Archive, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the bound the older ones are named and not counted; the newest is looked at in any case."""
    monkeypatch.setattr(now, "OPEN_MAX", 1)
    for batch, run, at in ((NIGHT, "r1", "2026-11-30T02:00:00Z"), (LATER, "q1", "2026-11-30T03:00:00Z")):
        name_runs(archive, {run: "cart"}, batch)
        make_run(run, *asks(), batch=batch, at=at)
    data = twin(visit, "/")
    assert ([board["batch"] for board in data["running"]], data["left_out"]) == ([LATER], [NIGHT])
    assert data["last"] is None
    assert "1 call to approve" in visit("look").get("/").text


def test_an_empty_archive_says_how_to_begin(visit: Visit) -> None:
    """The first page of all names the command to type."""
    assert "dawn demo" in visit("look").get("/").text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"repo": "git.example.org"}, ["q1", "q2", "r1", "r2", "r3"]),
        ({"target": "sho?"}, ["r2"]),
        ({"file": "setup.py"}, ["r1"]),
        ({"file": "src/*"}, ["r1"]),
        ({"error": "modulenotfound"}, ["r2"]),
        ({"error": "env/setup"}, ["r3"]),
        ({"command": "true", "target": "cart"}, ["r1"]),
        ({"model": "scripted"}, ["r3"]),
        ({"state": "broke"}, ["r2"]),
        ({"class": "env"}, ["r3"]),
        ({"cost_min": "0.3", "cost_max": "0.5"}, ["r1"]),
        ({"since": "2026-12-01"}, []),
        ({"until": "2026-11-30", "state": "queued"}, ["q2"]),
        ({"file": "setup.py", "target": "web"}, []),
    ],
)
def test_runs_are_found_by_what_is_known_of_them(
    visit: Visit, archive: Archive, make_run: Make, query: dict[str, Any], found: list[str]
) -> None:
    """Of every batch, the newest first; all words must hold."""
    a_night(archive, make_run)
    data = twin(visit, "/search", **query)
    assert [row["run"] for row in data["rows"]] == found
    assert (data["looked"], data["of"], data["onward"]) == (5, 5, {})


def test_what_was_printed_is_found_in_its_step(visit: Visit, archive: Archive, make_run: Make) -> None:
    """The text of an observation leads to the step that printed it, and only where it is asked for."""
    name_runs(archive, {"r1": "cart"})
    seen = Observation(call_id="c1", tool="run_command", status="ok", exit_code=0, output="all 17 needles pass")
    make_run("r1", claimed(), replied(), Observed(observation=seen), *ended())
    assert twin(visit, "/search", error="needle")["rows"] == []
    data = twin(visit, "/search", deep="NEEDLES")
    hit = data["rows"][0]["hits"][0]
    assert (hit["where"], "needles" in hit["text"], data["deep"]) == ("step", True, 1)
    assert f"/runs/r1/steps/{hit['seq']}" in visit("look").get("/search", params={"deep": "needles"}).text


def test_a_search_that_is_cut_off_says_where_and_goes_on(
    visit: Visit, archive: Archive, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run is met once, however the bound falls."""
    a_night(archive, make_run)
    monkeypatch.setattr(search, "LOOK_MAX", 2)
    met: list[str] = []
    query: dict[str, Any] = {"repo": "*"}
    for _ in range(4):
        data = twin(visit, "/search", **query)
        met += [row["run"] for row in data["rows"]]
        assert data["looked"] <= 2
        query = data["onward"]
        if not query:
            break
    assert met == ["q1", "q2", "r1", "r2", "r3"]


def test_a_search_breaks_off_inside_a_journal_and_goes_on_there(
    visit: Visit, archive: Archive, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long journal does not make a page late: it is read on from the segment that the page before came to, and
    what it says is found once."""
    name_runs(archive, {"r1": "cart", "r2": "shop"})
    make_run("r1", claimed(), *(replied(n, text=f"thought {n}") for n in range(1, 6)), *ended())
    make_run("r2", claimed(), replied(text="thought 5"), *ended(), target="shop")
    monkeypatch.setattr(search, "LOOK_S", -1.0)
    query: dict[str, Any] = {"deep": "thought 5"}
    met, ways = [], []
    while query:
        data = twin(visit, "/search", **query)
        met += [row["run"] for row in data["rows"]]
        ways.append(data["onward"].get("from", ""))
        query = data["onward"]
        assert len(ways) == len(set(ways)), ways
    assert met == ["r1", "r2"]
    assert f"{NIGHT}:0:2" in ways


def test_a_search_prints_its_command_where_there_is_one(visit: Visit, archive: Archive, make_run: Make) -> None:
    """What `dawn ls` selects by is a command; words it does not know are none."""
    a_night(archive, make_run)
    data = twin(visit, "/search", repo="it's", state="broke")
    assert data["command"] == """dawn ls --all --repo '*it'"'"'s*' --state broke"""
    assert twin(visit, "/search", file="setup.py")["command"] == ""


@pytest.mark.parametrize(
    "query",
    [
        {"state": "nice"},
        {"since": "yesterday"},
        {"cost_min": "-1"},
        {"cost_max": "nan"},
        {"repo": "x", "from": "no:1"},
        {"repo": "x", "from": f"{NIGHT}:0:x"},
        {"repo": "x", "from": f"{NIGHT}:0:0:0"},
    ],
)
def test_a_word_that_means_nothing_is_refused(visit: Visit, archive: Archive, query: dict[str, str]) -> None:
    """A mistyped filter finds nothing by saying so, not by finding all."""
    name_runs(archive, {"r1": "cart"})
    assert visit("look").get("/search", params=query).status_code == 400


def test_words_of_a_search_stay_words(visit: Visit, archive: Archive, make_run: Make) -> None:
    """H47: what was typed, and what a repository is called, are text."""
    name_runs(archive, {"r1": HOSTILE})
    make_run("r1", target=HOSTILE, repo=Repo(url="https://git.example.org/x", label="x"))
    for path, query in (("/search", {"target": HOSTILE}), ("/compare", {"runs": "r1"}), ("/", {}), ("/queue", {})):
        answer = visit("look").get(path, params=query)
        assert answer.status_code == 200, path
        assert "<script>alert" not in answer.text
        assert "\u202e" not in answer.text


def test_a_comparison_links_the_steps_where_ways_part(visit: Visit, archive: Archive, make_run: Make) -> None:
    """Both steps are named, by the first letters of an id too; rows that differ are marked."""
    name_runs(archive, {"alpha": "cart", "beta": "cart"})
    task = {"model": "scripted:x", "script": "{}", "prompt": "go", "candidates": 2}
    make_run("alpha", claimed(), replied(), checked("verified"), *ended(verdict="verified"), **task)
    make_run(
        "beta", claimed(), replied(command="pwd"), checked("broke", "red"), *ended(verdict="broke"), ordinal=1, **task
    )
    data = twin(visit, "/compare", runs="al, beta")
    assert data["runs"] == ["alpha", "beta"]
    assert data["command"] == "dawn compare alpha beta"
    differs = {row["heading"]: row["differs"] for row in data["rows"]}
    assert (differs["verdict"], differs["target"]) == (True, False)
    [against] = data["against"]
    assert (against["same"], against["step"]) == (False, 1)
    page = visit("look").get("/compare", params={"runs": "alpha,beta"})
    for run, seq in (("alpha", against["first_seq"]), ("beta", against["other_seq"])):
        assert f"/runs/{run}/steps/{seq}" in page.text
        assert visit("look").get(f"/runs/{run}/steps/{seq}").status_code == 200


def test_runs_of_one_target_are_offered_for_a_comparison(visit: Visit, archive: Archive, make_run: Make) -> None:
    """One id is enough to see the candidates and retries beside it, to be ticked."""
    name_runs(archive, {"alpha": "cart", "beta": "cart", "other": "shop"})
    make_run("alpha", candidates=2)
    make_run("beta", ordinal=1, candidates=2)
    make_run("other", target="shop")
    data = twin(visit, "/compare", runs="alpha")
    assert [(one["run"], one["chosen"]) for one in data["alike"]] == [("alpha", True), ("beta", False)]
    assert twin(visit, "/compare", None, **{"pick.alpha": "1", "pick.beta": "1"})["runs"] == ["alpha", "beta"]


def test_too_many_runs_are_not_compared(visit: Visit, archive: Archive) -> None:
    """Each is a whole journal."""
    assert visit("look").get("/compare", params={"runs": "a,b,c,d,e"}).status_code == 400


def test_a_queue_without_a_stack_says_how_to_start_one(visit: Visit, archive: Archive, make_run: Make) -> None:
    """Nobody works, and why: open runs are still named with what they wait for."""
    a_night(archive, make_run)
    data = twin(visit, "/queue")
    assert (data["stack"], data["problem"], data["open"]) == (None, "no stack is running here", 2)
    assert {one["why"].partition(":")[0] for one in data["waiting"]} == {"approval", "no stack is running"}
    assert "dawn up" in visit("look").get("/queue").text
    alone = site_of(archive, settings=None)
    assert "alone" in twin(visit, "/queue", alone)["problem"]


def test_schedules_say_what_comes_when(visit: Visit, site: Site, archive: Archive) -> None:
    """The next times in the schedule's zone; a paused one has none, and a removed one is gone."""
    cron = Schedule(cron="30 1 * * *", zone="Europe/Berlin")
    for name, kinds in (("night", ("set",)), ("held", ("set", "pause")), ("gone", ("set", "remove"))):
        for n, kind in enumerate(kinds):
            made = {"schedule": cron, "template": "0" * 64} if kind == "set" else {}
            said = Said(n=n, kind=kind, by="me@here", at="2026-11-30T00:00:00Z", **made)
            archive.create(keys.schedule_spec(name, n), canonical(said.model_dump(mode="json")))
    at = datetime(2026, 11, 30, 12, tzinfo=UTC)
    of = site_of(archive, now=lambda: at)
    data = twin(visit, "/schedules", of)
    assert [(one["name"], [time["utc"] for time in one["next"]][:1]) for one in data["schedules"]] == [
        ("held", []),
        ("night", ["2026-12-01T00:30:00Z"]),
    ]
    assert [one["name"] for one in twin(visit, "/", of)["next"]] == ["night"]
