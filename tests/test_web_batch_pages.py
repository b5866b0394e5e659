"""A batch in time, its money, its manifest, who did what, and its report to keep."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from runs_made import Make, claimed, ended, name_runs, replied
from starlette.testclient import TestClient

from scheduler.reports import kept
from worker.contract.delivered import Review
from worker.contract.delivery import Deliver
from worker.contract.events import Asked, Decided, Parked, Sealed, Steered
from worker.contract.task import Budget
from worker.store import keys
from worker.store.archive import Archive
from worker.store.deliveries import write_review
from worker.store.inbox import Control, Inbox
from worker.store.members import Member, announce

Visit = Callable[..., TestClient]
BATCH = "night-0123456789ab"
HOSTILE = '"><b>\u202ex</b><script>alert(1)</script>'
AT = "2026-11-30T02:00:00.000+00:00"
PAGES = ("timeline", "spend", "manifest", "activity")


def shown(visit: Visit, page: str, batch: str = BATCH) -> dict[str, Any]:
    """The data of a page of the batch."""
    answer = visit("look").get(f"/batches/{batch}/{page}", params={"as": "json"})
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = json.loads(answer.text)["data"]
    return data


def test_the_timeline_has_a_lane_for_each_worker(archive: Archive, make_run: Make, visit: Visit) -> None:
    """Who worked on what is drawn, with a link to each run."""
    name_runs(archive, {"r1": "cart", "r2": "shop"})
    make_run("r1", claimed("w1"), *ended(verdict="verified"))
    make_run("r2", claimed("w2"), replied(), claimed("w1"), *ended(verdict="broke"), target="shop")
    lanes = shown(visit, "timeline")["lanes"]
    assert [(lane["name"], [bar["does"] for bar in lane["stretches"]]) for lane in lanes] == [
        ("w1", ["verified", "broke"]),
        ("w2", ["lost with its worker"]),
    ]
    page = visit("look").get(f"/batches/{BATCH}/timeline").text
    assert 'href="/runs/r2"' in page
    assert "taken over by w1" in page


def test_what_was_spent_adds_up(archive: Archive, make_run: Make, visit: Visit) -> None:
    """By state and by model, and over time against the budget."""
    name_runs(archive, {"r1": "cart", "r2": "shop"})
    budget = Budget(usd=20)
    make_run("r1", claimed(), replied(cost_microusd=500_000), *ended(verdict="verified"), budget=budget)
    make_run(
        "r2", claimed(), replied(cost_microusd=250_000), Sealed(outcome="cancelled"), target="shop", budget=budget
    )
    data = shown(visit, "spend")
    assert data["total"]["cost_microusd"] == 750_000
    assert {part["name"]: part["cost_microusd"] for part in data["by_state"]} == {
        "verified": 500_000,
        "cancelled": 250_000,
    }
    assert sum(part["cost_microusd"] for part in data["by_model"]) == 750_000
    assert data["moments"][-1]["total_microusd"] == 750_000
    assert (data["budget"]["spent_microusd"], data["budget"]["limit_microusd"]) == (750_000, 20_000_000)
    assert "budget: $20.00" in visit("look").get(f"/batches/{BATCH}/spend").text


def test_the_manifest_says_what_differs_from_the_one_before(archive: Archive, make_run: Make, visit: Visit) -> None:
    """Against the last batch of its name, with targets that came and went."""
    before, now = "night-000000000000", BATCH
    for batch, line, targets, at in (
        (before, "prompt: Do it.", {"a1": "cart", "a2": "shop"}, "2026-11-29T02:00:00.000+00:00"),
        (now, "prompt: Do it well.", {"b1": "cart", "b2": "web"}, AT),
    ):
        archive.create(keys.batch_manifest(batch), f"version: 1\n{line}\n".encode())
        name_runs(archive, targets, batch)
        for run, target in targets.items():
            make_run(run, target=target, batch=batch, at=at)
    data = shown(visit, "manifest")
    assert (data["before"], data["added"], data["gone"]) == (before, ["web"], ["shop"])
    assert [(line["sign"], line["text"]) for line in data["lines"] if line["sign"] in "+-"] == [
        ("-", "prompt: Do it."),
        ("+", "prompt: Do it well."),
    ]
    assert shown(visit, "manifest", before)["before"] == ""


def test_a_manifest_that_is_too_long_is_not_compared(archive: Archive, make_run: Make, visit: Visit) -> None:
    """The time that takes grows with its square."""
    for batch, run, at in (("night-000000000000", "a1", "2026-11-29T02:00:00.000+00:00"), (BATCH, "b1", AT)):
        archive.create(keys.batch_manifest(batch), f"# {batch}\n".encode() * 5_000)
        name_runs(archive, {run: "cart"}, batch)
        make_run(run, batch=batch, at=at)
    data = shown(visit, "manifest")
    assert (data["lines"], data["note"]) == ([], "too long to be compared here")


def test_activity_says_who_did_what(archive: Archive, make_run: Make, visit: Visit) -> None:
    """Messages to the batch and to a run, decisions, retries, reviews and reports, the newest first."""
    name_runs(archive, {"r1": "cart", "r2": "shop"})
    asks = Asked(call_id="c1", question="push?", binding="0" * 64)
    decided = Decided(call_id="c1", decision="approved", by="bob", decided_at="2026-11-30T02:10:00.000+00:00")
    told = Steered(scope="batch", n=0, kind="pause", by="cleo", sent_at="2026-11-30T02:20:00.000+00:00")
    make_run("r1", claimed(), asks, Parked(waiting="approval"), decided, told)
    Inbox(archive, "r1").put("message", by="dora", at="2026-11-30T02:30:00.000+00:00", text="be quick")
    Control(archive, BATCH).put("pause", by="cleo", at="2026-11-30T02:20:00.000+00:00")
    digest = "1" * 64
    deliver = Deliver(kind="branch")
    sealed = Sealed(outcome="changed", verdict="verified", artifacts={"patch.diff": digest})
    make_run("r2", claimed(), sealed, target="shop", deliver=deliver)
    write_review(
        archive, "r2", Review(n=0, decision="approved", patch=digest, by="eve", at="2026-11-30T02:40:00.000+00:00")
    )
    again = [Member(target="shop", ordinal=1, run="r3")]
    announce(archive, BATCH, again, number=0, by="finn", at="2026-11-30T02:50:00.000+00:00")
    kept.store(archive, kept.gather(archive, BATCH, at="2026-11-30T06:00:00.000+00:00"))
    done = [(one["who"], one["did"], one["on"], one["times"]) for one in shown(visit, "activity")["done"]]
    assert done == [
        ("the scheduler", "reported", "", 1),
        ("finn", "asked for retries", "", 1),
        ("eve", "approved the patch", "shop", 1),
        ("dora", "message", "cart", 1),
        ("cleo", "pause", "", 1),
        ("bob", "approved", "cart", 1),
        ("me@here", "submitted", "", 2),
        ("the run", "asked: approval", "cart", 1),
    ]


def test_the_report_is_a_file_to_keep(archive: Archive, make_run: Make, visit: Visit) -> None:
    """The stored one byte for byte; before any is stored, what it would say now. A browser never shows it."""
    name_runs(archive, {"r1": "cart"})
    make_run("r1", claimed(), *ended(verdict="verified"))
    fresh = visit("look").get(f"/batches/{BATCH}/report")
    assert "1 of 1 verified" in fresh.text
    kept.store(archive, kept.gather(archive, BATCH, at="2026-11-30T06:00:00.000+00:00"))
    answer = visit("look").get(f"/batches/{BATCH}/report")
    assert answer.content == archive.get(keys.batch_report(BATCH, 0, "report.html"))
    assert answer.headers["content-disposition"].startswith("attachment")


def test_hostile_words_stay_words_on_these_pages_too(archive: Archive, make_run: Make, visit: Visit) -> None:
    """T68: workers, targets, questions, manifests and reasons of strangers make no element."""
    name_runs(archive, {"r1": HOSTILE})
    archive.create(keys.batch_manifest(BATCH), HOSTILE.encode())
    asks = Asked(call_id="c1", question=HOSTILE, binding="0" * 64)
    parked = Parked(waiting="approval", detail=HOSTILE)
    make_run("r1", claimed(HOSTILE), replied(cost_microusd=5), asks, parked, target=HOSTILE)
    Control(archive, BATCH).put("pause", by=HOSTILE, at=AT, text=HOSTILE)
    for path in PAGES:
        page = visit("decide").get(f"/batches/{BATCH}/{path}").text
        assert "alert(1)" in page, path
        assert "<script>alert" not in page, path
        assert '"><b>' not in page, path
        assert "\u202e" not in page, path


def test_a_batch_without_a_beginning_has_all_its_pages(archive: Archive, make_run: Make, visit: Visit) -> None:
    """Before any worker has come there is nothing to draw, and it is said."""
    name_runs(archive, {"r1": "cart"})
    make_run("r1")
    for path in PAGES:
        assert visit("look").get(f"/batches/{BATCH}/{path}").status_code == 200, path
    assert "No worker has begun yet" in visit("look").get(f"/batches/{BATCH}/timeline").text
