"""What people change on the pages of runs and batches: each form does its deed once, under its sender's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from runs_made import Make, claimed, ended, name_runs, replied
from starlette.testclient import TestClient
from test_web_approvals import asks
from web_forms import form_with, forms, press
from webs import ORIGIN

from worker.contract.events import Failure, Finished, Prepared, Sealed, digest
from worker.contract.run import Run
from worker.contract.task import Budget
from worker.store.archive import Archive
from worker.store.decisions import read_decision
from worker.store.inbox import Control, Inbox
from worker.store.journal import Journal
from worker.store.members import members

Visit = Callable[..., TestClient]
BATCH = "night-0123456789ab"
PREPARED = Prepared(environment_key="k", environment=digest(b"e"), commit="c" * 40, image="i", reused=False)
MODEL = {"model": "anthropic/some", "prompt": "Fix it.", "commands": ()}


@pytest.fixture
def working(make_run: Make, archive: Archive) -> Run:
    """A run that is being worked on, the only one of its batch."""
    made = make_run("cart", claimed(), PREPARED, replied(), **MODEL, budget=Budget(usd=5))
    name_runs(archive, {"cart": "cart"})
    return made


@pytest.fixture
def failing(make_run: Make, archive: Archive) -> list[str]:
    """Three targets that failed, two of them alike, and one that did not."""
    lost, setup = Failure(cls="infra", reason="worker_lost"), Failure(cls="env", reason="setup", detail="no pip")
    for run, failure in (("one", lost), ("two", setup), ("three", setup)):
        make_run(run, claimed(), Finished(failure=failure), Sealed(outcome="failed", failure=failure), target=run)
    make_run("fine", claimed(), *ended(), target="fine")
    name_runs(archive, {run: run for run in ("one", "two", "three", "fine")})
    return ["one", "two", "three", "fine"]


def sent(archive: Archive, run: str = "cart") -> list[tuple[str, str, str]]:
    return [(one.kind, one.by, one.text) for one in Inbox(archive, run).read()]


def said(archive: Archive) -> list[tuple[str, str, str]]:
    return [(one.kind, one.by, one.text) for one in Control(archive, BATCH).read()]


def new_runs(archive: Archive, known: list[str]) -> list[str]:
    """Targets that have a run more."""
    return sorted(one.target for one in members(archive, BATCH) if one.run not in known)


def on(client: TestClient, button: str, page: str = "/runs/cart/decide", **words: Any) -> Any:
    """Press a button of a page that is loaded for it."""
    return press(client, form_with(client.get(page).text, button), button, **words)


def test_a_message_reaches_the_run_once(working: Run, visit: Visit, archive: Archive) -> None:
    """A form that is sent twice says it once; the same words on a page that is loaded again are said again."""
    client = visit("decide")
    form = form_with(client.get("/runs/cart/decide").text, "Send")
    for _ in range(2):
        assert press(client, form, "Send", message="Mind the\r\ntests.").status_code == 303
    assert sent(archive) == [("message", "rosa@here", "Mind the\ntests.")]
    on(client, "Send", message="Mind the\r\ntests.")
    assert len(sent(archive)) == 2


@pytest.mark.parametrize(("words", "status"), [("  ", 400), ("x" * 20_001, 400)])
def test_a_message_has_words_and_an_end(
    working: Run, visit: Visit, archive: Archive, words: str, status: int
) -> None:
    """Nothing is stored of one that is none."""
    assert on(visit("decide"), "Send", message=words).status_code == status
    assert sent(archive) == []


def test_a_run_without_a_model_is_offered_no_message(make_run: Make, archive: Archive, visit: Visit) -> None:
    """Nobody would read it; a made up form is refused."""
    make_run("cart", claimed())
    name_runs(archive, {"cart": "cart"})
    client = visit("decide")
    page = client.get("/runs/cart/decide").text
    assert not any("Send" in form.buttons for form in forms(page))
    form = form_with(page, "Pause")
    form.buttons["Send"] = ("/runs/cart/steer", {})
    assert press(client, form, "Send", message="Hello?").status_code == 409


def test_a_run_is_paused_goes_on_and_is_cancelled(working: Run, visit: Visit, archive: Archive) -> None:
    """Each once, whoever presses twice, and the page says who did it."""
    client = visit("decide")
    form = form_with(client.get("/runs/cart/decide").text, "Pause")
    for _ in range(2):
        assert press(client, form, "Pause").status_code == 303
    assert "paused by rosa@here" in client.get("/runs/cart/decide").text
    on(client, "Let it go on")
    cancel = form_with(client.get("/runs/cart/decide").text, "Cancel; what it did is kept")
    for _ in range(2):
        assert press(client, cancel, "Cancel; what it did is kept").status_code == 303
    assert [kind for kind, _, _ in sent(archive)] == ["pause", "unpause", "cancel"]


def test_what_has_ended_is_not_stopped(working: Run, visit: Visit, archive: Archive) -> None:
    """A button of an old page: 409."""
    client = visit("decide")
    page = client.get("/runs/cart/decide").text
    journal = Journal(archive, "cart")
    run = journal.load()
    for event in ended():
        run = journal.append(run, [event], attempt=run.attempt, at="2026-11-30T03:00:00.000+00:00")
    archive.delete(["open/cart"])
    assert press(client, form_with(page, "Pause"), "Pause").status_code == 409
    assert sent(archive) == []


def test_a_batch_is_paused_and_gets_a_budget(working: Run, visit: Visit, archive: Archive) -> None:
    """Each once under its sender's name; what is no sum is refused."""
    client, page = visit("decide"), f"/batches/{BATCH}/decide"
    for _ in range(2):
        on(client, "Pause all", page)
        on(client, "Allow", page, usd="$7.50")
    assert on(client, "Allow", page, usd="much").status_code == 400
    assert said(archive) == [("pause", "rosa@here", ""), ("budget", "rosa@here", "$7.50")]


def test_all_that_failed_is_retried_once(failing: list[str], visit: Visit, archive: Archive) -> None:
    """The old runs are kept, and a form that is sent twice is told that there are other runs now."""
    client = visit("decide")
    form = form_with(client.get(f"/batches/{BATCH}/decide").text, "Retry all 3")
    assert [press(client, form, "Retry all 3").status_code for _ in range(2)] == [303, 409]
    assert new_runs(archive, failing) == ["one", "three", "two"]


def test_a_class_of_failures_is_retried(failing: list[str], visit: Visit, archive: Archive) -> None:
    """Only what failed like that."""
    on(visit("decide"), "Retry 2 of class env", f"/batches/{BATCH}/decide")
    assert new_runs(archive, failing) == ["three", "two"]


def test_failures_that_are_alike_are_retried(failing: list[str], visit: Visit, archive: Archive) -> None:
    """The button of the page of failures; sent twice it makes no second run."""
    client = visit("decide")
    form = form_with(client.get(f"/batches/{BATCH}/failures").text, "Retry 2")
    assert [press(client, form, "Retry 2").status_code for _ in range(2)] == [303, 409]
    assert new_runs(archive, failing) == ["three", "two"]


def test_one_fingerprint_is_retried(failing: list[str], visit: Visit, archive: Archive) -> None:
    """Whoever names a fingerprint means the runs that failed so."""
    client = visit("decide")
    groups = json.loads(client.get(f"/batches/{BATCH}/failures?as=json").text)["data"]["groups"]
    [print] = [one["fingerprint"] for one in groups if len(one["runs"]) == 1]
    form = form_with(client.get(f"/batches/{BATCH}/decide").text, "Retry all 3")
    assert press(client, form, "Retry all 3", fingerprint=print).status_code == 303
    assert new_runs(archive, failing) == ["one"]


def test_a_run_that_was_fine_is_repeated_by_name(failing: list[str], visit: Visit, archive: Archive) -> None:
    """However it ended; afterwards another run counts."""
    client = visit("decide")
    on(client, "Retry", "/runs/fine/decide")
    assert new_runs(archive, failing) == ["fine"]
    assert "Another run of its target counts now" in client.get("/runs/fine/decide").text


def test_a_run_of_another_batch_is_not_retried(
    failing: list[str], make_run: Make, visit: Visit, archive: Archive
) -> None:
    """A batch's form names its own runs only."""
    make_run("stranger", claimed(), *ended(), batch="other-0123456789ab")
    client = visit("decide")
    form = form_with(client.get("/runs/one/decide").text, "Retry")
    assert press(client, form, "Retry", run="stranger").status_code == 404
    assert new_runs(archive, failing) == []


def test_a_fork_begins_once(working: Run, visit: Visit, archive: Archive) -> None:
    """From the step that is named, with the message and another limit; a second click leads to the same run."""
    client = visit("decide")
    page = client.get("/runs/cart/fork?step=1")
    assert "dawn fork cart --at 1" in page.text
    form = form_with(page.text, "Begin a new run")
    wish = {"message": "Try the other way.", "limits": "steps=200"}
    went = {press(client, form, "Begin a new run", **wish).headers["location"] for _ in range(2)}
    [run] = [to.removeprefix("/runs/") for to in went]
    task = Journal(archive, run).task()
    assert task.fork is not None
    assert (task.fork.run, task.fork.step, task.fork.message, task.limits.steps) == ("cart", 1, wish["message"], 200)
    assert Journal(archive, run).load().submitted_by == "rosa@here"


@pytest.mark.parametrize(
    ("field", "status"),
    [
        ({"step": "x"}, 400),
        ({"step": "7"}, 404),
        ({"model": "scripted:/etc/passwd"}, 400),
        ({"model": "replay:cart"}, 400),
        ({"limits": "steps"}, 400),
        ({"limits": "steps=0"}, 400),
        ({"limits": "nope=3"}, 400),
    ],
)
def test_a_fork_that_makes_no_sense_is_refused(
    working: Run, visit: Visit, archive: Archive, field: dict[str, str], status: int
) -> None:
    """A step that is not there, a model that is a file, a limit that is none: nothing is written."""
    assert on(visit("decide"), "Begin a new run", "/runs/cart/fork", **field).status_code == status
    assert list(archive.folders("batches/")) == [BATCH]


def test_a_fork_takes_another_model(working: Run, visit: Visit, archive: Archive) -> None:
    """Whoever writes its name into the form wants it."""
    went = on(visit("decide"), "Begin a new run", "/runs/cart/fork", model="openai/other", message="Go on.")
    task = Journal(archive, went.headers["location"].removeprefix("/runs/")).task()
    assert task.model == "openai/other"


def test_a_question_is_decided_on_the_page_of_its_run(make_run: Make, archive: Archive, visit: Visit) -> None:
    """The same card as among all questions, which leads back there."""
    make_run("cart", claimed(), *asks())
    name_runs(archive, {"cart": "cart"})
    answered = on(visit("decide"), "Approve")
    assert answered.headers["location"] == "/runs/cart/decide"
    made = read_decision(archive, "cart", "c1")
    assert made is not None
    assert made.by == "rosa@here"


def test_a_form_leads_to_our_own_pages_only(working: Run, visit: Visit) -> None:
    """Whatever a field says."""
    client = visit("decide")
    form = form_with(client.get("/runs/cart/decide").text, "Pause")
    for to in ("//evil.example", "https://evil.example", "/\\evil.example"):
        assert press(client, form, "Pause", to=to).headers["location"] == "/runs/cart"


def test_a_viewer_is_offered_no_change(working: Run, failing: list[str], visit: Visit) -> None:
    """Every page of a run and a batch is there for them, without a button."""
    client = visit("look")
    for page in ("/runs/cart/decide", "/runs/cart/fork", f"/batches/{BATCH}/decide", f"/batches/{BATCH}/failures"):
        answered = client.get(page)
        assert (answered.status_code, forms(answered.text)) == (200, []), page


CHANGES = [
    *(
        f"/runs/cart/{deed}"
        for deed in ("approve", "deny", "answer", "steer", "cancel", "pause", "unpause", "fork", "review")
    ),
    *(f"/batches/{BATCH}/{deed}" for deed in ("retry", "cancel", "pause", "unpause", "budget", "review-group")),
    "/approvals/decide",
]


@pytest.mark.parametrize("token", [None, "look"])
def test_no_change_is_for_everybody(working: Run, visit: Visit, archive: Archive, token: str | None) -> None:
    """H52: without a token, and as a viewer, each of them is refused, and nothing is stored."""
    before = list(archive.list(""))
    client = visit(token)
    for change in CHANGES:
        answered = client.post(change, data={"message": "x", "usd": "1"}, headers={"origin": ORIGIN})
        assert answered.status_code == (401 if token is None else 403), change
    assert list(archive.list("")) == before
