"""Questions to people on a page: what is asked, exactly as it would run, and that only what was shown is decided."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
from scheduler.web.pages.approvals import AT_ONCE
from scheduler.web.site import Site
from worker.contract.errors import StoreFault
from worker.contract.events import (
    Asked,
    Decided,
    Event,
    Failure,
    Observation,
    Observed,
    Parked,
    Replied,
    Reply,
    Sealed,
    ToolCall,
    Usage,
)
from worker.contract.run import Run
from worker.contract.surroundings import Environment
from worker.contract.task import Check, OwnTool, PolicyRule, Repo
from worker.store import keys
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


def go_on(archive: Archive, name: str, *events: Event) -> None:
    """The run's journal grows."""
    journal = Journal(archive, name)
    run = journal.load()
    for event in events:
        run = journal.append(run, [event], attempt=run.attempt, at=AT)


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
    [card] = json.loads(visit("look").get("/approvals?as=json").text)["data"]["cards"]
    one = card["question"]
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
    order = [one["run"] for card in told["data"]["cards"] for one in card["runs"]]
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
    go_on(
        archive,
        RUN,
        Decided(call_id="c1", decision="denied", by="bob"),
        did("c1", "a person said no", "denied"),
        *asks("rm -rf /", call="c2", step=2, binding="cd" * 32),
    )
    answered = press(client, form, "Approve")
    assert answered.status_code == 409
    assert read_decision(archive, RUN, "c2") is None
    assert decided(archive, RUN) == ["denied"]


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


def bound(number: int) -> str:
    """The digest of what a run of `many` asks, each on a workspace of its own."""
    return f"{number:02x}" * 32


@pytest.fixture
def many(make_run: Make, archive: Archive) -> list[str]:
    """Three runs of a night that ask for the very same call, each after words of its own."""
    runs = ["cart", "shop", "till"]
    for number, run in enumerate(runs):
        asked = asks(binding=bound(number), text=f"{run} has an old one.")
        make_run(run, claimed(), *asked, target=run, repo=Repo(url=f"https://git.example.org/{run}"))
    name_runs(archive, {run: run for run in runs})
    return runs


def cards_of(client: TestClient) -> list[list[str]]:
    """The runs of each card."""
    cards = json.loads(client.get("/approvals?as=json").text)["data"]["cards"]
    return [[one["run"] for one in card["runs"]] for card in cards]


def forged(client: TestClient, *members: str) -> Form:
    """A form for all of a card that no page had; see Asker.shown."""
    form = form_with(client.get("/approvals").text, "Approve for all 3")
    form.fields = [(name, value) for name, value in form.fields if name != "member"]
    form.fields += [("member", one) for one in members]
    return form


def member(run: str, binding: str, call: str = "c1") -> str:
    return json.dumps([run, call, binding])


def decided(archive: Archive, *runs: str, call: str = "c1") -> list[str]:
    """What was decided on each, "" for nothing."""
    made = [read_decision(archive, run, call) for run in runs]
    return [one.decision if one is not None else "" for one in made]


def test_equal_calls_of_many_runs_are_one_card(many: list[str], visit: Visit) -> None:
    """The call once, exactly as it would run, and every run with its repository; nobody's words stand for all."""
    client = visit("decide")
    page = client.get("/approvals").text
    assert cards_of(client) == [many]
    assert "3 runs ask the same" in page
    assert page.count("dropdb production</pre>") == 1
    for run in many:
        assert f'href="/runs/{run}"' in page
        assert f'href="/runs/{run}/decide"' in page
        assert f"https://git.example.org/{run}" in page
        assert f"dawn approve {run} c1" in page
        assert f"{run} has an old one." not in page
        assert f"{run} has an old one." in client.get(f"/runs/{run}/decide").text


SHIP = OwnTool(name="ship", description="Ship it.", arguments={"type": "object"}, command="echo ship")


@pytest.mark.parametrize(
    ("asked", "task"),
    [
        ({"arguments": '{"command":"dropdb production"}'}, {}),
        ({"command": "dropdb production "}, {}),
        ({"command": "dropdb pr\u043eduction"}, {}),
        ({"command": "dropdb production\u200b"}, {}),
        ({"why": "dropdb would destroy what cannot be restored."}, {}),
        ({"tool": "write_file"}, {}),
        ({}, {"environment": Environment(network="full")}),
        ({}, {"model": "anthropic/some", "prompt": "Fix it."}),
    ],
)
def test_what_is_not_the_same_to_the_byte_is_a_card_of_its_own(
    make_run: Make, archive: Archive, visit: Visit, asked: Any, task: Any
) -> None:
    """Blanks, look-alikes, what is invisible, the reason, the tool, its reach, and what a denial does."""
    make_run("cart", claimed(), *asks())
    make_run("till", claimed(), *asks(**asked), **task)
    name_runs(archive, {"cart": "cart", "till": "till"})
    assert sorted(cards_of(visit("look"))) == [["cart"], ["till"]]


@pytest.mark.parametrize(
    ("tool", "one", "other"),
    [
        ("ship", {"tools": (SHIP,)}, {"tools": (SHIP.model_copy(update={"command": "curl -T -"}),)}),
        (
            "run_checks",
            {"checks": (Check(name="tests", command="pytest"),)},
            {"checks": (Check(name="tests", command="dropdb production"),)},
        ),
    ],
)
def test_a_call_that_runs_what_its_task_brings_is_the_same_only_where_that_is(
    make_run: Make, archive: Archive, visit: Visit, tool: str, one: Any, other: Any
) -> None:
    """The script of a task's own tool, and its checks."""
    for run, task in {"a": one, "b": other, "c": one}.items():
        make_run(run, claimed(), *asks(tool=tool, arguments="{}"), **task)
    name_runs(archive, {run: run for run in "abc"})
    assert sorted(cards_of(visit("look"))) == [["a", "c"], ["b"]]


def test_questions_that_want_words_stand_alone(make_run: Make, archive: Archive, visit: Visit) -> None:
    """An answer is to one agent."""
    for run in ("cart", "till"):
        make_run(run, claimed(), *asks(kind="question", tool="ask_person", why="42?"))
    name_runs(archive, {"cart": "cart", "till": "till"})
    assert cards_of(visit("look")) == [["cart"], ["till"]]


def test_one_answer_is_stored_for_each_run(many: list[str], visit: Visit, archive: Archive) -> None:
    """H52: who, when, and the digest of that run's own call."""
    client = visit("decide")
    answered = press(client, form_of(client, "Approve for all 3"), "Approve for all 3")
    assert (answered.status_code, answered.headers["location"]) == (303, "/approvals")
    for number, run in enumerate(many):
        made = read_decision(archive, run, "c1")
        assert made is not None
        assert (made.decision, made.by, made.binding) == ("approved", "rosa@here", bound(number))
        assert made.at > AT
    told = client.get("/approvals").text
    assert "3 approved: " in told
    assert "Nothing to decide" in told


def test_a_reason_for_all_reaches_each(many: list[str], visit: Visit, archive: Archive) -> None:
    """A denial of a whole card, which says beforehand what it does to runs without a model."""
    client = visit("decide")
    assert "that ends all these runs" in client.get("/approvals").text
    press(client, form_of(client, "Deny for all 3"), "Deny for all 3", reason="not tonight")
    made = [read_decision(archive, run, "c1") for run in many]
    assert [(one.decision, one.reason) for one in made if one is not None] == [("denied", "not tonight")] * 3


def test_one_run_of_a_card_is_answered_alone(many: list[str], visit: Visit, archive: Archive) -> None:
    """On its own page; the others stay a card."""
    client = visit("decide")
    press(client, form_with(client.get("/runs/shop/decide").text, "Deny"), "Deny", reason="not here")
    assert decided(archive, *many) == ["", "denied", ""]
    assert cards_of(client) == [["cart", "till"]]


def test_runs_that_went_on_are_named_and_the_others_answered(
    many: list[str], make_run: Make, archive: Archive, visit: Visit
) -> None:
    """H52: answered by somebody else, asking something else by now, ended, cancelled, damaged: each is told with its
    reason, and no answer lands on what was not shown."""
    for number, run in enumerate(("ended", "gone", "hurt"), start=3):
        make_run(run, claimed(), *asks(binding=bound(number)), batch="other-0123456789ab")
    name_runs(archive, {run: run for run in ("ended", "gone", "hurt")}, "other-0123456789ab")
    client = visit("decide")
    form = form_of(client, "Approve for all 6")

    answer(archive, None, "cart", "denied", by="bob", at=AT, call="c1")
    go_on(archive, "shop", did("c1"), *asks("rm -rf /", call="c2", step=2, binding=bound(9)))
    go_on(archive, "ended", Sealed(outcome="failed", failure=Failure(cls="limit", reason="wall", detail="late")))
    tell(archive, None, Found("run", "gone"), "cancel", by="bob", at=AT)
    last = Path(archive.url.removeprefix("file://")) / keys.segment("hurt", 4)
    last.unlink()
    last.write_bytes(b"garbage\n")

    answered = press(client, form, "Approve for all 6")
    assert answered.status_code == 200
    assert "1 of 6 approved" in answered.text
    for run, why in {
        "cart": "c1 was denied by bob",
        "shop": "does not ask about c1",
        "ended": "has ended",
        "gone": "was cancelled by bob",
        "hurt": "is not a record",
    }.items():
        [told] = [one for one in answered.text.split("<li>") if f'href="/runs/{run}/decide"' in one]
        assert why in told, told
    assert decided(archive, "till", "cart", "shop", "ended", "gone", "hurt") == ["approved", "denied", *[""] * 4]
    assert decided(archive, "shop", call="c2") == [""]


class LostAnswer:
    """An archive of which one write is done, and its answer lost."""

    def __init__(self, archive: Archive, key: str) -> None:
        self._archive, self._key = archive, key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def create(self, key: str, data: bytes | Path) -> bool:
        made = self._archive.create(key, data)
        if key == self._key:
            raise StoreFault("the archive is away")
        return made


def test_a_write_that_may_have_been_done_is_told_as_one(many: list[str], archive: Archive, visit: Visit) -> None:
    """The archive goes away over one run: the others are answered, and nobody is told that this one is not."""
    client = visit("decide", site_of(LostAnswer(archive, keys.decision("shop", "c1"))))
    answered = press(client, form_of(client, "Approve for all 3"), "Approve for all 3")
    assert "2 of 3 approved" in answered.text
    assert "the archive is away; it may have been stored all the same" in answered.text
    assert decided(archive, *many) == ["approved"] * 3


def test_a_card_that_is_sent_twice_decides_once(many: list[str], visit: Visit, archive: Archive) -> None:
    """H52: of a replayed form nothing counts, and each run is told with who decided."""
    client = visit("decide")
    form = form_of(client, "Approve for all 3")
    press(client, form, "Approve for all 3")
    again = press(client, form, "Deny for all 3", reason="no")
    assert again.status_code == 409
    assert "0 of 3 denied" in again.text
    assert again.text.count("was approved by rosa@here") == 3
    assert decided(archive, *many) == ["approved"] * 3


def test_of_two_people_who_answer_a_card_at_once_each_hears_what_theirs_did(
    many: list[str], archive: Archive, visit: Visit
) -> None:
    """H52: one decision counts for each run, and what both are told adds up to it."""
    site = site_of(archive, access=Access(b"k" * 32, (Token("a", "ann", "reviewer"), Token("b", "bob", "reviewer"))))
    clients = [visit("a", site), visit("b", site)]
    forms_of = [form_of(client, "Approve for all 3") for client in clients]
    start = threading.Barrier(2)

    def send(client: TestClient, form: Form, button: str) -> str:
        start.wait()
        answered = press(client, form, button)
        return client.get("/approvals").text if answered.status_code == 303 else answered.text

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(send, clients, forms_of, ("Approve for all 3", "Deny for all 3")))
    made = [read_decision(archive, run, "c1") for run in many]
    by = [(one.by, one.decision) for one in made if one is not None]
    assert len(by) == 3
    for who, word, text in zip(("ann", "bob"), ("approved", "denied"), told, strict=True):
        counted = re.search(rf"(\d) (?:of 3 )?{word}", text)
        assert counted is not None
        assert sum(one == (who, word) for one in by) == int(counted[1])


@pytest.mark.parametrize(
    "line",
    [
        member("till", ""),
        member("till", "02" * 31),
        member("till", bound(2), call=""),
        member("", bound(2)),
        member("shop", bound(1)),
        '["till", "c1"]',
        '{"till": "c1"}',
        "till c1 " + bound(2),
        "[" * 10_000,
    ],
)
def test_a_form_that_does_not_say_what_was_shown_answers_nothing(
    many: list[str], visit: Visit, archive: Archive, line: str
) -> None:
    """H52: a run without the digest of its call, or named twice: also those beside it are not answered."""
    client = visit("decide")
    form = forged(client, member("cart", bound(0)), member("shop", bound(1)), line)
    assert press(client, form, "Approve for all 3").status_code == 409
    assert decided(archive, *many) == ["", "", ""]


@pytest.mark.parametrize("run", ["nobody", "../till", "till/delegates/c1", "till\u0000", "<script>alert(1)</script>"])
def test_a_made_up_member_is_named_and_the_others_are_answered(
    many: list[str], visit: Visit, archive: Archive, run: str
) -> None:
    """H52: another digest than the run's own, and runs that are none."""
    client = visit("decide")
    form = forged(client, member("cart", bound(0)), member("till", bound(1)), member(run, bound(2)))
    answered = press(client, form, "Approve for all 3")
    assert answered.status_code == 200
    assert "1 of 3 approved" in answered.text
    assert "c1 is not the call you were shown" in answered.text
    assert "<script>alert" not in answered.text
    assert decided(archive, *many) == ["approved", "", ""]


def test_a_card_answers_so_many_at_once_and_says_how_many_more_there_are(
    many: list[str], visit: Visit, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait longest come first; a form that names more is refused whole."""
    monkeypatch.setattr("scheduler.web.pages.approvals.AT_ONCE", 2)
    client = visit("decide")
    form = form_of(client, "Approve for all 2")
    assert "3 runs ask the same" in (page := client.get("/approvals").text)
    assert "1 more ask the same" in page
    more = [*form.fields, ("member", member("till", bound(2)))]
    too_many = Form(form.action, more, form.buttons)
    assert press(client, too_many, "Approve for all 2").status_code == 400
    assert decided(archive, *many) == ["", "", ""]
    press(client, form, "Approve for all 2")
    assert decided(archive, *many) == ["approved", "approved", ""]
    assert cards_of(client) == [["till"]]


def test_the_largest_answer_fits_into_a_form(many: list[str], visit: Visit) -> None:
    """As many runs as one form answers, with the longest reason in letters that take most room."""
    client = visit("decide")
    names = [f"a-repository-with-a-rather-long-name-{number:012x}" for number in range(AT_ONCE)]
    form = forged(client, *[member(name, bound(1), call="c100-10") for name in names])
    answered = press(client, form, "Deny for all 3", reason="\u20ac" * 20_000)
    assert answered.status_code == 409
    assert f"0 of {AT_ONCE} denied" in answered.text


def test_a_run_that_asks_alone_has_the_form_of_a_run(asking: Any, visit: Visit, archive: Archive) -> None:
    """A group of one is none; an answer to all of it is an answer to that one."""
    asking()
    client = visit("decide")
    form = form_of(client)
    assert "ask the same" not in client.get("/approvals").text
    form.fields.append(("member", member(RUN, form["binding"])))
    form.buttons["All"] = ("/approvals/decide", {"decision": "approved"})
    assert press(client, form, "All").status_code == 303
    assert decided(archive, RUN) == ["approved"]


def test_hostile_words_of_many_runs_stay_text(make_run: Make, archive: Archive, visit: Visit) -> None:
    """T68: what would run, the reason, targets and repositories make no element in a card of many."""
    word = '"><script>alert(1)</script>'
    for run in ("cart", "till"):
        made = {"target": f"{run}{word}", "repo": Repo(url=f"https://git.example.org/{word}")}
        make_run(run, claimed(), *asks(HOSTILE, why=word, call=f"c1{word}"), **made)
    name_runs(archive, {"cart": f"cart{word}", "till": f"till{word}"})
    told = visit("decide").get("/approvals").text
    assert "2 runs ask the same" in told
    assert "<mark>\\x1b</mark>[2K<mark>\\u202e</mark>&lt;/pre&gt;&lt;script&gt;" in told
    assert told.count("3 characters of this would not show") == 1
    assert "<script>alert" not in told


@pytest.mark.parametrize("decides", [True, False])
def test_a_card_of_many_is_there_to_be_read(many: list[str], archive: Archive, visit: Visit, decides: bool) -> None:
    """A viewer of a deployment, and whoever reads an archive alone: no form, and a command for each run."""
    client = visit("look" if decides else "decide", None if decides else site_of(archive, settings=None))
    told = client.get("/approvals").text
    assert forms(told) == []
    assert "3 runs ask the same" in told
    assert all(f"dawn deny {run} c1" in told for run in many)
