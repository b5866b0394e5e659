"""Patches that wait for a person: the queue, one with its evidence, a word on it, and one on a whole group."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from runs_made import AT, Make, checked, claimed, name_runs
from starlette.testclient import TestClient
from test_groups import bump, diff
from web_forms import Form, form_with, forms, press
from webs import ORIGIN, site_of

from scheduler.deliveries.reviews import review
from scheduler.web.door.access import Access
from scheduler.web.page import Visitor
from scheduler.web.site import Site
from worker.contract.delivery import Deliver
from worker.contract.events import Contradiction, Finished, Prepared, Replied, Reply, Sealed, digest
from worker.contract.run import Run
from worker.store.archive import Archive
from worker.store.deliveries import read_reviews
from worker.store.journal import Journal

Visit = Callable[..., TestClient]
BATCH = "night-0123456789ab"
SETUP = ("-shop_requires = ['six==1.0.0']", "+shop_requires = ['six==9.0.0']")
SHOP = diff(*SETUP, path="setup.py")
WHEN_APPROVED = Deliver(kind="branch", when="approved")


@pytest.fixture
def ran(archive: Archive, make_run: Make) -> Callable[..., Run]:
    """ran(run, patch): a run that has ended and left that patch. task, sealed: changes."""

    def make(run: str, patch: bytes, *, verdict: Any = "verified", sealed: Any = None, **task: Any) -> Run:
        blob = Journal(archive, run).put_blob(patch)
        prepared = Prepared(environment_key="k", environment=digest(b"e"), commit="c" * 40, image="i", reused=False)
        last = Replied(step=1, phase="model", reply=Reply(text="Fixed it.", stop="end"))
        seal = {"outcome": "changed", "verdict": verdict, "artifacts": {"patch.diff": blob}, **(sealed or {})}
        measured = checked(verdict, files={"setup.py": (1, 1)}, digest=blob, bytes=len(patch))
        events = (claimed(), prepared, last, Finished(text="Fixed it."), measured, Sealed(**seal))
        return make_run(run, *events, **{"target": run, "model": "anthropic/some", "prompt": "Fix it."} | task)

    return make


@pytest.fixture
def four(archive: Archive, ran: Any) -> None:
    """Three patches of one group, one of them in another form, and one that is like none."""
    patches = {"cart": bump("cart").patch, "till": bump("till").patch, "shop": SHOP}
    for run, patch in {**patches, "odd": diff("-everything", "+nothing at all", path="main.go")}.items():
        ran(run, patch)
    name_runs(archive, {run: run for run in (*patches, "odd")})


@pytest.fixture
def one(archive: Archive, ran: Any) -> str:
    """The only run of its batch, whose patch is delivered when somebody approves."""
    ran("cart", SHOP, deliver=WHEN_APPROVED)
    name_runs(archive, {"cart": "cart"})
    return "cart"


def form_of(client: TestClient, run: str = "cart", button: str = "Approve") -> Form:
    return form_with(client.get(f"/review/{run}").text, button)


def said(archive: Archive, run: str) -> list[tuple[str, str]]:
    return [(one.decision, one.by) for one in read_reviews(archive, run)]


def test_a_patch_is_approved_by_name_and_digest(one: str, visit: Visit, archive: Archive) -> None:
    """The review says who, when, why and which patch; then the queue is empty."""
    client = visit("decide")
    answered = press(client, form_of(client), "Approve", comment="fine")
    assert (answered.status_code, answered.headers["location"]) == (303, "/review")
    [made] = read_reviews(archive, one)
    assert (made.decision, made.by, made.comment, made.patch) == ("approved", "rosa@here", "fine", digest(SHOP))
    assert "Nothing to review" in client.get("/review").text


def test_after_a_word_the_next_patch_is_shown(four: None, visit: Visit) -> None:
    """Whoever reviews a queue is led through it."""
    client = visit("decide")
    rows = json.loads(client.get("/review?as=json").text)["data"]["rows"]
    answered = press(client, form_of(client, rows[0]["run"]), "Reject")
    assert answered.headers["location"] == f"/review/{rows[1]['run']}"


def test_the_page_has_the_patch_with_its_evidence(archive: Archive, ran: Any, visit: Visit) -> None:
    """Checks before and after, contradicted claims, last words, what was asked and every line of the patch."""
    ran("cart", SHOP, sealed={"contradictions": (Contradiction(claim="I ran all tests.", evidence="none was run"),)})
    name_runs(archive, {"cart": "cart"})
    told = visit("look").get("/review/cart").text
    for words in ("tests: no baseline before, green now", "I ran all tests.", "none was run", "Fixed it.", "Fix it."):
        assert words in told
    assert "9.0.0" in told
    assert forms(told) == []


def test_another_patch_than_was_shown_is_not_approved(one: str, visit: Visit, archive: Archive) -> None:
    """A form whose digest is not the run's: 409, and nothing is stored."""
    client = visit("decide")
    form = form_of(client)
    for patch in ("ab" * 32, digest(SHOP)[:12], ""):
        assert press(client, form, "Approve", patch=patch).status_code == 409
    assert read_reviews(archive, one) == []


def test_a_patch_that_somebody_else_has_judged_since_is_not_approved(
    one: str, visit: Visit, archive: Archive
) -> None:
    """A form that was loaded before another person's word, and one that is sent twice: 409."""
    client = visit("decide")
    form = form_of(client)
    review(archive, None, Journal(archive, one).load(), "rejected", by="bob", at=AT)
    answered = press(client, form, "Approve")
    assert answered.status_code == 409
    assert "was rejected by bob" in answered.text
    form = form_of(client)
    assert [press(client, form, "Approve").status_code for _ in range(2)] == [303, 409]
    assert said(archive, one) == [("rejected", "bob"), ("approved", "rosa@here")]


def test_a_viewer_reviews_nothing(one: str, visit: Visit, archive: Archive) -> None:
    """H52: a reviewer's form in a viewer's session."""
    form = form_of(visit("decide"))
    assert press(visit("look"), form, "Approve").status_code == 403
    assert read_reviews(archive, one) == []


def test_what_a_delivery_waits_for_comes_first(archive: Archive, ran: Any, visit: Visit) -> None:
    """Then the best verdict, then the least to read; what was reviewed already is no part."""
    ran("broke", SHOP, verdict="broke")
    ran("wanted", SHOP, verdict="still_failing", deliver=WHEN_APPROVED)
    ran("fine", SHOP)
    judged = ran("judged", SHOP)
    review(archive, None, judged, "approved", by="bob", at=AT)
    name_runs(archive, {run: run for run in ("broke", "wanted", "fine", "judged")})
    told = json.loads(visit("look").get("/review?as=json").text)["data"]
    assert [row["run"] for row in told["rows"]] == ["wanted", "fine", "broke"]
    assert told["wanted"] == 1


def test_the_queue_says_what_is_alike_and_can_be_of_one_batch(
    four: None, archive: Archive, ran: Any, visit: Visit
) -> None:
    """A row names its group; the address chooses a batch, and one that is not there is said."""
    ran("stranger", SHOP, batch="other-0123456789ab")
    name_runs(archive, {"stranger": "stranger"}, "other-0123456789ab")
    client = visit("look")
    told = json.loads(client.get(f"/review?batch={BATCH}&as=json").text)["data"]["rows"]
    assert {row["run"]: row["alike"] for row in told} == {"cart": 3, "till": 3, "shop": 3, "odd": 0}
    assert len(json.loads(client.get("/review?as=json").text)["data"]["rows"]) == 5
    assert client.get("/review?batch=nobody").status_code == 404


def test_a_wish_for_changes_becomes_a_run_with_these_words(one: str, visit: Visit, archive: Archive) -> None:
    """It goes on from the last step, the patch is rejected, each names the other; a second click makes no second."""
    client = visit("decide")
    form = form_of(client, button="Ask for changes")
    assert press(client, form, "Ask for changes").status_code == 400
    statuses = [press(client, form, "Ask for changes", comment="Pin it to 8.").status_code for _ in range(2)]
    assert statuses == [303, 409]
    [batch] = [name for name in archive.folders("batches/") if name.startswith("fork-")]
    [made] = json.loads(archive.get(f"batches/{batch}/targets.json"))["targets"]
    task = Journal(archive, made["run"]).task()
    assert task.fork is not None
    assert (task.fork.run, task.fork.message) == (one, "Pin it to 8.")
    assert said(archive, one) == [("rejected", "rosa@here")]
    assert f'href="/runs/{made["run"]}"' in client.get(f"/review/{one}").text
    assert f'href="/runs/{one}"' in client.get(f"/runs/{made['run']}").text


def test_a_run_without_a_model_is_asked_for_no_changes(archive: Archive, ran: Any, visit: Visit) -> None:
    """Nobody would read them."""
    ran("cart", SHOP, model="none", prompt="", commands=("true",))
    name_runs(archive, {"cart": "cart"})
    client = visit("decide")
    form = form_of(client)
    assert "Ask for changes" not in form.buttons
    form.buttons["Ask"] = ("/runs/cart/review", {"decision": "changes"})
    assert press(client, form, "Ask", comment="x").status_code == 400
    assert read_reviews(archive, "cart") == []


def group_form(client: TestClient) -> Form:
    return form_with(client.get(f"/batches/{BATCH}/groups").text, "Approve all 3")


def forged(client: TestClient, site: Site, *runs: tuple[str, bytes]) -> Form:
    """A form that no page had: for these runs and patches."""
    cookie = client.cookies[site.access.cookie("session")]
    token = site.access.form_token(Visitor("rosa@here", "reviewer"), cookie)
    members = [("member", f"{run} {digest(patch)}") for run, patch in runs]
    buttons = {"Approve all": (f"/batches/{BATCH}/review-group", {"decision": "approved"})}
    return Form("", [("form_token", token), ("group", "f" * 64), *members], buttons)


ALL = (("cart", bump("cart").patch or b""), ("till", bump("till").patch or b""), ("shop", SHOP))


def test_a_group_is_approved_after_each_form_of_it_was_opened(four: None, visit: Visit, archive: Archive) -> None:
    """One word, bound to each member's own patch; a second click changes nothing."""
    client = visit("decide")
    client.get("/review/cart")
    client.get("/runs/shop/diff")
    form = group_form(client)
    answered = press(client, form, "Approve all 3", comment="looked at both forms")
    assert answered.status_code == 303
    for run, patch in ALL:
        [made] = read_reviews(archive, run)
        assert (made.decision, made.by, made.patch) == ("approved", "rosa@here", digest(patch))
    assert read_reviews(archive, "odd") == []
    press(client, form, "Approve all 3")
    assert [len(read_reviews(archive, run)) for run, _ in ALL] == [1, 1, 1]


def test_a_group_tells_what_was_decided_on_it(four: None, visit: Visit) -> None:
    """Whoever comes back sees what was approved, and is not offered to do it again."""
    client = visit("decide")
    client.get("/review/cart")
    client.get("/runs/shop/diff")
    press(client, group_form(client), "Approve all 3")
    page = client.get(f"/batches/{BATCH}/groups").text
    assert "All 3 are decided on: 3 approved, 0 rejected." in page
    assert "Approve all" not in page


@pytest.mark.parametrize("opened", [[], ["cart"], ["shop", "odd"]])
def test_a_group_is_not_approved_unread(
    four: None, visit: Visit, site: Site, archive: Archive, opened: list[str]
) -> None:
    """Without proof for its representative and every outlier: 409, which names what is to be opened."""
    client = visit("decide")
    for run in opened:
        client.get(f"/review/{run}")
    answered = press(client, forged(client, site, *ALL), "Approve all")
    assert answered.status_code == 409
    assert "must be opened" in answered.text
    assert [run for run in ("cart", "shop") if run not in opened and run not in answered.text] == []
    assert [read_reviews(archive, run) for run, _ in ALL] == [[], [], []]


def test_a_part_of_a_patch_opens_nothing(four: None, visit: Visit, site: Site, archive: Archive) -> None:
    """Whoever looked at one file of a patch has not seen what else is in it."""
    client = visit("decide")
    for run in ("cart", "shop"):
        assert client.get(f"/runs/{run}/diff?file=1").status_code == 200
    assert press(client, forged(client, site, *ALL), "Approve all").status_code == 409
    assert [read_reviews(archive, run) for run, _ in ALL] == [[], [], []]


def test_a_proof_that_is_not_ours_opens_nothing(four: None, visit: Visit, site: Site, archive: Archive) -> None:
    """A cookie of another key, and another visitor's: 409."""
    client, other = visit("decide"), visit("look")
    for run in ("cart", "shop"):
        other.get(f"/review/{run}")
    name = site.access.cookie("opened")
    strange = Access(b"x" * 32).seal("opened", {"by": "rosa@here", "of": ["0" * 16]}, 60)
    for cookie in (other.cookies[name], strange, "nonsense"):
        client.cookies.set(name, cookie)
        assert press(client, forged(client, site, *ALL), "Approve all").status_code == 409
    assert [read_reviews(archive, run) for run, _ in ALL] == [[], [], []]


def test_a_member_that_changed_is_left_out_and_named(four: None, visit: Visit, site: Site, archive: Archive) -> None:
    """A patch that is another one now, and one that somebody rejected: the others are approved."""
    review(archive, None, Journal(archive, "till").load(), "rejected", by="bob", at=AT)
    client = visit("decide")
    for run in ("cart", "till", "shop"):
        client.get(f"/review/{run}")
    form = forged(client, site, ("cart", b"what it was"), *ALL[1:])
    answered = press(client, form, "Approve all")
    assert answered.status_code == 303
    told = client.get(answered.headers["location"]).text
    assert "1 approved" in told
    assert "cart (has another patch now)" in told
    assert "till (was rejected by bob)" in told
    assert [said(archive, run)[-1:] for run, _ in ALL] == [[], [("rejected", "bob")], [("approved", "rosa@here")]]


def test_a_group_holds_no_stranger(four: None, visit: Visit, site: Site, archive: Archive, ran: Any) -> None:
    """A run of another batch is not approved along."""
    ran("stranger", SHOP, batch="other-0123456789ab")
    client = visit("decide")
    answered = press(client, forged(client, site, ("stranger", SHOP)), "Approve all")
    assert answered.status_code == 404
    assert read_reviews(archive, "stranger") == []


def test_a_group_is_rejected_alike(four: None, visit: Visit, archive: Archive) -> None:
    """Also a no is said of what was seen."""
    client = visit("decide")
    for run in ("cart", "shop"):
        client.get(f"/review/{run}")
    press(client, group_form(client), "Reject all 3")
    assert [said(archive, run) for run, _ in ALL] == [[("rejected", "rosa@here")]] * 3


def test_an_archive_alone_is_reviewed_by_nobody(one: str, visit: Visit, archive: Archive) -> None:
    """Its pages have no form, and a made up one is refused."""
    client = visit("decide", site_of(archive, settings=None))
    assert forms(client.get("/review/cart").text) == []
    answered = client.post("/runs/cart/review", data={"decision": "approved"}, headers={"origin": ORIGIN})
    assert answered.status_code == 403
    assert read_reviews(archive, "cart") == []
