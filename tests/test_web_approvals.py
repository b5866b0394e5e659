"""Questions to people on a page: what is asked, exactly as it would run, and that only what was shown is decided."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from runs_made import AT, Make, claimed, name_runs
from starlette.testclient import TestClient
from web_forms import Form, form_with, forms, press
from webs import ORIGIN, site_of

from scheduler.approvals import answer
from scheduler.control import tell
from scheduler.runs import Found
from scheduler.web.door.access import Access, Token
from scheduler.web.page import Visitor
from scheduler.web.site import Site
from worker.contract.events import (
    Asked,
    Decided,
    Event,
    Observation,
    Observed,
    Parked,
    Replied,
    Reply,
    ToolCall,
    Usage,
)
from worker.contract.run import Run
from worker.contract.surroundings import Environment
from worker.contract.task import OwnTool, PolicyRule
from worker.store.archive import Archive
from worker.store.decisions import read_decision
from worker.store.journal import Journal

Visit = Callable[..., TestClient]
UNTIL = "2999-12-07T02:00:00.000+00:00"
RUN = "night-0123456789ab-cart-0"
HOSTILE = "echo '\x1b[2K\u202e</pre><script>alert(1)</script>\u200b'"


def asks(
    command: str = "dropdb production",
    *,
    call: str = "c1",
    step: int = 1,
    kind: Any = "approval",
    tool: str = "run_command",
    arguments: str | None = None,
    until: str = UNTIL,
    text: str = "The old one must go.",
    why: str = "dropdb would destroy what cannot be restored",
    binding: str = "ab" * 32,
) -> list[Event]:
    """A reply whose call needs a person, and the wait for one."""
    called = ToolCall(id=call, name=tool, arguments=arguments or json.dumps({"command": command}))
    reply = Reply(text=text, calls=(called,), usage=Usage(input_tokens=10, output_tokens=1))
    asked = Asked(call_id=call, kind=kind, question=why, binding=binding)
    return [Replied(step=step, phase="model", reply=reply), asked, Parked(waiting=kind, until=until)]


def did(call: str, output: str = "", status: Any = "ok") -> Observed:
    return Observed(
        observation=Observation(call_id=call, tool="run_command", status=status, exit_code=0, output=output)
    )


@pytest.fixture
def asking(make_run: Make, archive: Archive) -> Callable[..., Run]:
    """asking(...): a run that waits for a person, the only one of its batch; see asks."""

    def make(run: str = RUN, before: list[Event] | None = None, task: Any = None, **asked: Any) -> Run:
        made = make_run(run, claimed(), *(before or []), *asks(**asked), **(task or {}))
        name_runs(archive, {run: "cart"}, made.id.rpartition("-cart")[0])
        return made

    return make


def form_of(client: TestClient, button: str = "Approve") -> Form:
    return form_with(client.get("/approvals").text, button)


def test_an_approval_on_the_page_names_who_when_and_what(asking: Any, visit: Visit, archive: Archive) -> None:
    """H52: the decision in the archive has the visitor's name and is bound to what was shown."""
    asking()
    client = visit("decide")
    answered = press(client, form_of(client), "Approve")
    assert (answered.status_code, answered.headers["location"]) == (303, "/approvals")
    made = read_decision(archive, RUN, "c1")
    assert made is not None
    assert (made.decision, made.by, made.binding) == ("approved", "rosa@here", "ab" * 32)
    assert made.at > AT
    assert "Nothing to decide" in client.get("/approvals").text


def test_a_denial_says_why_and_an_approval_says_nothing(asking: Any, visit: Visit, archive: Archive) -> None:
    """One form, two buttons: the reason is for the model of a call that is denied."""
    asking()
    client = visit("decide")
    press(client, form_of(client), "Deny", reason="not tonight\r\nask Ann")
    made = read_decision(archive, RUN, "c1")
    assert made is not None
    assert (made.decision, made.reason) == ("denied", "not tonight\nask Ann")


def test_a_denial_that_nobody_reads_is_said_to_end_the_run(asking: Any, visit: Visit) -> None:
    """A command of a task without a model: no other way is looked for, and the form says so before it is pressed."""
    asking(task={"model": "none"})
    client = visit("decide")
    page = client.get("/approvals").text
    assert "that ends the run" in page
    assert "the model reads it" not in page
    answered = press(client, form_of(client), "Deny", reason="not tonight")
    assert f"{RUN} ends with it" in client.get(answered.headers["location"]).text


def test_a_question_is_answered_in_words(asking: Any, visit: Visit, archive: Archive) -> None:
    """The answer is what the model reads; without words it is none."""
    asking(kind="question", tool="ask_person", arguments='{"question": "42 or 43?"}', why="42 or 43?")
    client = visit("decide")
    form = form_of(client, "Answer")
    assert press(client, form, "Answer", reason="  ").status_code == 400
    assert press(client, form, "Answer", reason="43").status_code == 303
    made = read_decision(archive, RUN, "c1")
    assert made is not None
    assert (made.decision, made.reason) == ("answered", "43")


def test_what_would_run_is_shown_to_the_last_character(asking: Any, visit: Visit) -> None:
    """T68: escapes, marks of direction and what is invisible are written out and marked; nothing is an element."""
    asking(command=HOSTILE)
    told = visit("decide").get("/approvals").text
    assert "<mark>\\x1b</mark>[2K<mark>\\u202e</mark>&lt;/pre&gt;&lt;script&gt;" in told
    assert "<mark>\\u200b</mark>&#39;</pre>" in told
    assert "3 characters of this would not show" in told
    assert "<script>alert" not in told


def test_a_long_command_is_shown_whole(asking: Any, visit: Visit) -> None:
    """What would run is never cut."""
    asking(command="\n".join(f"echo line {number}" for number in range(3_000)))
    assert "echo line 2999</pre>" in visit("decide").get("/approvals").text


def test_a_card_shows_what_led_to_it(asking: Any, visit: Visit) -> None:
    """The model's last words, the call before with its output, the rule that asked, the repository and the target."""
    rule = PolicyRule(pattern="^dropdb", action="ask", reason="may it drop?")
    first = Replied(
        step=1,
        phase="model",
        reply=Reply(calls=(ToolCall(id="c0", name="run_command", arguments='{"command": "ls db"}'),)),
    )
    asking(before=[first, did("c0", "old.sql")], step=2, why="may it drop?", task={"policy": (rule,)})
    told = visit("decide").get("/approvals").text
    for words in (
        "The old one must go.",
        "ls db",
        "old.sql",
        "rule 1 of the task&#39;s policy",
        "git.example.org/cart",
    ):
        assert words in told


@pytest.mark.parametrize(
    ("task", "tool", "effect", "why"),
    [
        ({}, "run_command", "inside", "without network"),
        ({"environment": Environment(network="full")}, "run_command", "outside", "gives its commands the network"),
        ({"environment": Environment(network="full")}, "write_file", "inside", "without network"),
        (
            {
                "tools": (
                    OwnTool(
                        name="ship",
                        description="Ship it.",
                        arguments={"type": "object"},
                        command="curl -T -",
                        effect="outside",
                        secrets=("SHIP",),
                    ),
                )
            },
            "ship",
            "outside",
            "holds SHIP",
        ),
    ],
)
def test_a_card_says_what_a_call_can_reach(
    asking: Any, visit: Visit, task: dict[str, Any], tool: str, effect: str, why: str
) -> None:
    """Inside its container, or outside, and by what."""
    asking(task=task, tool=tool, arguments='{"path": "x"}')
    [one] = json.loads(visit("look").get("/approvals?as=json").text)["data"]["questions"]
    assert one["effect"] == effect
    assert why in one["effect_why"]


def test_the_cheapest_decision_comes_first(make_run: Make, archive: Archive, visit: Visit) -> None:
    """A yes or no inside, then outside, then an answer in words; of equals the shorter, then the older."""
    networked = {"environment": Environment(network="full")}
    make_run("d-question", claimed(), *asks(kind="question", tool="ask_person", why="42?"))
    make_run("c-outside", claimed(), *asks(), **networked)
    make_run("b-long", claimed(), *asks("x" * 500))
    make_run("a-newer", claimed(), *asks(), at="2026-11-30T04:00:00.000+00:00")
    make_run("z-older", claimed(), *asks())
    name_runs(archive, {name: name for name in ("a-newer", "b-long", "c-outside", "d-question", "z-older")})
    told = json.loads(visit("look").get("/approvals?as=json").text)
    order = [one["run"] for one in told["data"]["questions"]]
    assert order == ["z-older", "a-newer", "b-long", "c-outside", "d-question"]


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("look", 403)])
def test_nobody_but_a_reviewer_decides(
    asking: Any, visit: Visit, archive: Archive, token: str | None, status: int
) -> None:
    """H52: no token, or a viewer's: refused, and nothing is stored."""
    asking()
    form = form_of(visit("decide"))
    client = visit(token)
    assert press(client, form, "Approve").status_code == status
    assert read_decision(archive, RUN, "c1") is None


def test_a_viewer_is_shown_no_button(asking: Any, visit: Visit) -> None:
    """A viewer reads what is asked, and what a reviewer would type."""
    asking()
    told = visit("look").get("/approvals").text
    assert forms(told) == []
    assert f"dawn approve {RUN} c1" in told


def test_a_form_that_is_sent_twice_decides_once(asking: Any, visit: Visit, archive: Archive) -> None:
    """H52: a replayed form is told who decided, and when."""
    asking()
    client = visit("decide")
    form = form_of(client)
    press(client, form, "Approve")
    first = read_decision(archive, RUN, "c1")
    again = press(client, form, "Deny", reason="no")
    assert again.status_code == 409
    assert "was approved by rosa@here" in again.text
    assert read_decision(archive, RUN, "c1") == first


def test_an_expired_question_is_not_decided(asking: Any, visit: Visit, archive: Archive) -> None:
    """H52: whoever comes too late is told so."""
    asking(until="2026-11-30T02:00:01.000+00:00")
    client = visit("decide")
    answered = press(client, form_of(client), "Approve")
    assert answered.status_code == 409
    assert "nobody answered in time" in answered.text
    assert read_decision(archive, RUN, "c1") is None


def test_a_call_that_was_swapped_after_it_was_shown_is_not_decided(
    asking: Any, visit: Visit, archive: Archive
) -> None:
    """H52: between display and form the run was answered elsewhere and asks another question: nothing is stored."""
    asking()
    client = visit("decide")
    form = form_of(client)
    answer(archive, None, RUN, "denied", by="bob", at=AT, call="c1")
    journal = Journal(archive, RUN)
    run = journal.load()
    for event in [
        Decided(call_id="c1", decision="denied", by="bob"),
        did("c1", "a person said no", "denied"),
        *asks("rm -rf /", call="c2", step=2, binding="cd" * 32),
    ]:
        run = journal.append(run, [event], attempt=run.attempt, at=AT)
    answered = press(client, form, "Approve")
    assert answered.status_code == 409
    assert read_decision(archive, RUN, "c2") is None
    assert (read_decision(archive, RUN, "c1") or run).decision == "denied"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "field", [{"binding": "cd" * 32}, {"binding": "ab"}, {"binding": ""}, {"call": ""}, {"call": "c9"}]
)
def test_another_binding_than_the_run_has_is_not_decided(
    asking: Any, visit: Visit, archive: Archive, field: dict[str, str]
) -> None:
    """H52: the same call with other arguments or another workspace; or a form that does not say which it meant."""
    asking()
    client = visit("decide")
    assert press(client, form_of(client), "Approve", **field).status_code == 409
    assert [read_decision(archive, RUN, call) for call in ("c1", "c9")] == [None, None]


def test_a_cancelled_run_is_asked_about_no_more(asking: Any, visit: Visit, archive: Archive) -> None:
    """H52: an approval after a cancel meets it, and the card is gone."""
    asking()
    client = visit("decide")
    form = form_of(client)
    tell(archive, None, Found("run", RUN), "cancel", by="bob", at=AT)
    assert press(client, form, "Approve").status_code == 409
    assert "Nothing to decide" in client.get("/approvals").text


def test_the_proxys_user_is_who_decided(asking: Any, archive: Archive) -> None:
    """H52: behind a reverse proxy the name in the archive is the one that the proxy says."""
    from scheduler.web.door.app import create

    asking()
    access = Access(b"k" * 32, identity_header="X-User", reviewers=frozenset({"ann"}))
    client = TestClient(
        create(site_of(archive, access=access), {"127.0.0.1:8420"}), base_url=ORIGIN, client=("127.0.0.1", 9)
    )
    client.headers["x-user"] = "ann"
    press(client, form_of(client), "Approve")
    made = read_decision(archive, RUN, "c1")
    assert made is not None
    assert made.by == "ann"
    client.headers["x-user"] = "eve"
    assert client.post(f"/runs/{RUN}/approve", data={}, headers={"origin": ORIGIN}).status_code == 403


def test_a_form_belongs_to_who_loaded_it(asking: Any, archive: Archive, visit: Visit) -> None:
    """H52: another reviewer's form does not count in one's own session."""
    asking()
    tokens = (Token("one", "ann", "reviewer"), Token("two", "bob", "reviewer"))
    site = site_of(archive, access=Access(b"k" * 32, tokens))
    form = form_of(visit("one", site))
    assert press(visit("two", site), form, "Approve").status_code == 403
    assert read_decision(archive, RUN, "c1") is None


def test_there_is_no_run_of_a_made_up_name(visit: Visit, site: Site, archive: Archive) -> None:
    """A change of a run that is not there stores nothing."""
    client = visit("decide")
    cookie = client.cookies[site.access.cookie("session")]
    token = site.access.form_token(Visitor("rosa@here", "reviewer"), cookie)
    for deed in ("approve", "steer", "cancel", "pause", "fork", "review"):
        answered = client.post(
            f"/runs/nobody/{deed}", data={"form_token": token, "message": "x"}, headers={"origin": ORIGIN}
        )
        assert answered.status_code in (404, 405), deed
    assert list(archive.folders("runs/")) == []
