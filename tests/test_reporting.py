"""When a scheduler writes reports and tells of them: on a real archive and a real webhook, with the test's clock."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from runs_made import AT, claimed, ended, name_runs, replied
from webhooks import Listener

from scheduler.control import tell
from scheduler.planning.plan import Close, Decision, Ring, Seen, Wait
from scheduler.reports import kept, notify
from scheduler.reports.reporting import Reporter, Stands, stands
from scheduler.runs import Found
from scheduler.schedules.stored import Firing
from scheduler.tick import Scheduler
from worker.contract.delivered import Delivery
from worker.contract.delivery import Deliver
from worker.contract.errors import StoreFault
from worker.contract.events import Asked, Event, Parked, Sealed, canonical
from worker.contract.notify import Notify
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.window import Window
from worker.contract.zones import utc_text
from worker.store import keys
from worker.store.archive import Archive
from worker.store.deliveries import write_delivery
from worker.store.hints import Hints
from worker.store.journal import Journal

Make = Callable[..., Run]
NIGHT = "night-0123456789ab"
ASKED = Asked(call_id="c1", kind="approval", binding="0" * 64, question="push?")
WAITS: list[Event] = [claimed(), replied(cost_microusd=0), ASKED, Parked(waiting="approval", detail="push?")]


class Desk:
    """A reporter, its clock, and what a scheduler would tell it."""

    def __init__(self, archive: Archive, make_run: Make, state: Path) -> None:
        self.archive, self.make_run = archive, make_run
        self.now = datetime(2026, 11, 30, 6, 0, tzinfo=UTC)
        self.settings = Settings(state_dir=state, relist_s=60)
        self.secrets = {"HOOK": "a secret of some length"}
        self.reporter = self.another()

    def another(self) -> Reporter:
        return Reporter(self.archive, None, self.settings, self.secrets.get, lambda: self.now)

    def submit(self, runs: dict[str, list[Event]], batch: str = NIGHT, **changes: Any) -> None:
        for run, events in runs.items():
            if self.make_run(run, *events, batch=batch, target=run, **changes).sealed is not None:
                self.archive.delete([keys.open_marker(run)] if "deliver" not in changes else [])
        name_runs(self.archive, {run: run for run in runs}, batch)
        self.archive.create(keys.report_due(batch), b"")

    def round(self, seen: Stands | None = None, *, after_s: float = 0.5) -> None:
        """One round of the scheduler, until all that it set off has ended."""
        self.now += timedelta(seconds=after_s)
        self.reporter.after(self.now, seen or {})
        self.reporter.settle()
        self.reporter.after(self.now, seen or {})

    def reports(self, batch: str = NIGHT) -> list[str]:
        return sorted(self.archive.folders(keys.batch_reports_folder(batch)))

    @property
    def due(self) -> list[str]:
        return list(self.archive.list("due/"))


@pytest.fixture
def desk(archive: Archive, make_run: Make, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(archive, make_run, tmp_path / "state")
    yield made
    made.reporter.close()


NOW = datetime(2026, 11, 30, 6, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("decisions", "still"),
    [
        ([Wait("a", "person")], True),
        ([Wait("a", "person"), Wait("b", "budget")], True),
        ([Wait("a", "window"), Wait("b", "wave")], True),
        ([Wait("a", "not_before", NOW + timedelta(hours=1))], True),
        ([Wait("a", "not_before", NOW + timedelta(minutes=1))], False),
        ([Wait("new", "not_before", NOW + timedelta(hours=1))], False),
        ([Wait("a", "person"), Wait("b", "attempt")], False),
        ([Wait("a", "slots"), Wait("b", "paused")], False),
        ([Ring("a", "batch"), Wait("b", "person")], False),
        ([Close("a", "skipped"), Wait("b", "person")], False),
    ],
)
def test_a_batch_stands_still_when_no_worker_can_bring_it_on(decisions: list[Decision], still: bool) -> None:
    """A person, money, a pause, a closed window, a wait for much later: nothing else keeps it from going on."""
    seen = [Seen(name, "waiting", batch=NIGHT, begun=name != "new") for name in ("a", "b", "new")]
    found = stands(seen, decisions, NOW)
    assert list(found) == [NIGHT]
    assert (found[NIGHT] is not None) is still


def test_a_run_at_somebodys_desk_is_no_batch() -> None:
    """`dawn run` tells its own end."""
    assert stands([Seen("a", "waiting", lane="interactive")], [Wait("a", "person")], NOW) == {}


@pytest.mark.parametrize(("at", "told"), [("01:00", 0), ("05:59", 0), ("06:01", 1)])
def test_a_batch_that_waits_for_its_window_is_not_told_of_before_that_closed(desk: Desk, at: str, told: int) -> None:
    """Submitted in the evening, never reached in the night: in the morning there is something to tell."""
    window = Window(open="22:00", close="06:00", zone="UTC")
    desk.submit({"a": []}, window=window, at="2026-11-29T18:00:00.000+00:00")
    desk.now = datetime.fromisoformat(f"2026-11-30T{at}:00+00:00") - timedelta(seconds=61)
    for after_s in (0.0, 61.0):
        desk.round({NIGHT: "a window"}, after_s=after_s)
    assert len(desk.reports()) == told
    if told:
        assert kept.read(desk.archive, NIGHT, 0).headline == "0 of 1 verified, 1 not reached, $0"


def test_what_nobody_began_is_no_news(desk: Desk) -> None:
    """A batch for later, or behind others."""
    desk.submit({"a": []})
    for _ in range(2):
        desk.round({NIGHT: "a wave"}, after_s=61)
    assert desk.reports() == []


def test_a_batch_that_ended_gets_one_report(desk: Desk) -> None:
    """In the round after its last run; then nothing is owed, and nothing more is written."""
    desk.submit({"a": [claimed(), *ended("changed", verdict="verified")]})
    desk.round()
    assert (desk.reports(), desk.due) == (["000000"], [])
    for _ in range(3):
        desk.round(after_s=61)
    assert desk.reports() == ["000000"]


def test_a_night_on_which_nothing_changed_is_reported(desk: Desk) -> None:
    """All of it was verified before: the report says so."""
    desk.submit({"a": [Sealed(outcome="reused", verdict="verified", detail="old-1")]})
    desk.round()
    report = kept.read(desk.archive, NIGHT, 0)
    assert (report.headline, report.reused) == ("1 of 1 verified, $0", 1)


def test_a_window_that_closed_with_runs_left_is_reported(desk: Desk) -> None:
    """Unfinished, with what was not reached; after a minute, in case something moves. It stays due."""
    desk.submit({"a": [claimed(), *ended("changed", verdict="verified")], "b": []})
    left = {NIGHT: "b@0"}
    desk.round(left)
    assert desk.reports() == []
    desk.round(left, after_s=61)
    report = kept.read(desk.archive, NIGHT, 0)
    assert (report.headline, report.ended) == ("1 of 2 verified, 1 not reached, $0", False)
    assert "unfinished" in report.news
    assert desk.due == [keys.report_due(NIGHT)]


def test_a_batch_that_works_is_left_alone(desk: Desk) -> None:
    """However long it takes."""
    desk.submit({"a": [claimed()], "b": WAITS})
    for _ in range(3):
        desk.round({NIGHT: None}, after_s=61)
    assert desk.reports() == []


def test_one_standstill_is_one_report(desk: Desk) -> None:
    """Also for the scheduler that leads next; when a run has moved and stands again, it is another."""
    desk.submit({"a": WAITS})
    for _ in range(3):
        desk.round({NIGHT: "a@3"}, after_s=61)
    desk.reporter.close()
    desk.reporter = desk.another()
    for _ in range(3):
        desk.round({NIGHT: "a@3"}, after_s=61)
    assert desk.reports() == ["000000"]
    journal = Journal(desk.archive, "a")
    more = [claimed(), replied(2, cost_microusd=0), Parked(waiting="paused", detail="by ann")]
    journal.append(journal.load(), more, attempt=None, at=AT)
    desk.round({NIGHT: "a@4"}, after_s=61)
    desk.round({NIGHT: "a@4"}, after_s=61)
    assert desk.reports() == ["000000", "000001"]


def test_a_round_that_saw_less_than_the_archive_writes_no_end(desk: Desk) -> None:
    """A run that the scheduler has not listed yet is open: the batch has not ended. Looked at again later."""
    desk.submit({"a": []})
    desk.round()
    assert (desk.reports(), desk.due) == ([], [keys.report_due(NIGHT)])
    journal = Journal(desk.archive, "a")
    journal.append(journal.load(), [Sealed(outcome="cancelled")], attempt=None, at=AT)
    desk.round(after_s=61)
    assert desk.reports() == ["000000"]


def test_a_night_that_was_missed_is_told_with_the_one_before(desk: Desk) -> None:
    """No scheduler was there at its due time: the last batch of the schedule gets another report, which says so."""
    desk.submit({"a": [claimed(), *ended("changed", verdict="verified")]})
    desk.round()
    due = "2026-11-30T02:00:00+00:00"
    missed = Firing(due=due, at=AT, by="scheduler", what="missed", before=NIGHT, missed=1)
    key = keys.schedule_firing("night", utc_text(datetime.fromisoformat(due)))
    desk.archive.create(key, canonical(missed.model_dump(mode="json")))
    desk.archive.create(keys.report_due(NIGHT), b"")
    desk.round(after_s=61)
    report = kept.read(desk.archive, NIGHT, 1)
    assert report.note == "the due time 2026-11-30 02:00 (UTC) passed without a batch: no scheduler was there"
    assert (report.headline, desk.due) == ("1 of 1 verified, $0", [])


def test_an_end_waits_for_patches_that_are_on_their_way(desk: Desk) -> None:
    """Half an hour at most; a review is not waited for, and what comes of it is another report."""
    done = [claimed(), *ended("changed", verdict="verified", artifacts={"patch.diff": "a" * 64})]
    desk.submit({"a": done}, deliver=Deliver(kind="pr", when="verified"))
    desk.submit({"b": done}, "other-0123456789ab", deliver=Deliver(kind="pr", when="approved"))
    for _ in range(2):
        desk.round(after_s=61)
    assert (desk.reports(), desk.reports("other-0123456789ab")) == ([], ["000000"])
    for _ in range(2):
        desk.round(after_s=1_800)
    assert desk.reports() == ["000000"]
    assert len(desk.due) == 2
    pushed = Delivery(n=0, act="open", by="w", at=AT, patch="a" * 64, state="pr", url="https://git.example.org/1")
    for run in "ab":
        write_delivery(desk.archive, run, pushed)
        desk.archive.delete([keys.open_marker(run)])
    for _ in range(3):
        desk.round(after_s=3_601)
    assert (desk.reports(), desk.reports("other-0123456789ab")) == (["000000", "000001"], ["000000", "000001"])
    assert desk.due == []


def test_a_retry_after_the_report_is_reported_too(desk: Desk) -> None:
    """Its run is open, so the batch is due again, whoever forgot to say so."""
    desk.submit({"a": [claimed(), *ended("no_change", verdict="verified")]})
    desk.round()
    desk.round({NIGHT: None}, after_s=61)
    assert desk.due == [keys.report_due(NIGHT)]


def test_what_a_crash_left_is_finished_by_the_next(desk: Desk) -> None:
    """The number was taken, nothing else was done."""
    desk.submit({"a": [claimed(), *ended("changed", verdict="verified")]})
    report = kept.gather(desk.archive, NIGHT, at=AT)
    desk.archive.create(keys.batch_report(NIGHT, 0, "report.json"), report.stored())
    desk.round()
    assert sorted(desk.archive.list(keys.batch_reports_folder(NIGHT))) == [
        keys.batch_report(NIGHT, 0, name) for name in ("report.html", "report.json", "report.md")
    ]
    assert desk.due == []


def test_a_batch_that_is_gone_is_not_due(desk: Desk) -> None:
    """`dawn gc` removed it, or its submit was cut off before it named a run."""
    desk.archive.create(keys.report_due("gone-0123456789ab"), b"")
    desk.round()
    assert desk.due == []


def test_a_report_that_cannot_be_made_stops_no_other(desk: Desk) -> None:
    """Nor the scheduler; it is tried again at the next listing."""
    desk.archive.create(keys.batch_targets("bad-0123456789ab"), b"[")
    desk.archive.create(keys.report_due("bad-0123456789ab"), b"")
    desk.submit({"a": [claimed(), *ended("changed", verdict="verified")]})
    for _ in range(3):
        desk.round()
    assert desk.reports() == ["000000"]
    assert desk.due == [keys.report_due("bad-0123456789ab")]


def test_a_round_never_waits_for_a_report(desk: Desk, listener: Listener) -> None:
    """A listener that does not answer holds up its own message only: rounds go on while it is silent."""
    listener.hold = threading.Event()
    wanted = Notify(webhook=listener.url, secret="HOOK")
    desk.submit({"a": [claimed(), *ended("changed", verdict="verified")]}, notify=wanted)
    for _ in range(5):
        desk.now += timedelta(seconds=1)
        desk.reporter.after(desk.now, {})
    listener.hold.set()
    desk.reporter.settle()
    desk.round()
    assert [notice.kind for notice in notify.notices(desk.archive, NIGHT)] == ["announced", "sent"]


def test_the_end_of_a_batch_is_told(desk: Desk, listener: Listener) -> None:
    """To the webhook and into the file, once."""
    wanted = Notify(webhook=listener.url, secret="HOOK", file="night.json")
    desk.submit({"a": [claimed(), *ended("changed", verdict="verified")]}, notify=wanted)
    for _ in range(3):
        desk.round(after_s=61)
    (got,) = listener.got
    assert json.loads(got.body)["headline"] == "1 of 1 verified, $0"
    stored = desk.archive.get(keys.batch_report(NIGHT, 0, "report.json"))
    assert (desk.settings.reports_folder / "night.json").read_bytes() == stored
    assert desk.due == []


def test_a_message_that_does_not_arrive_is_tried_again_and_given_up(desk: Desk, listener: Listener) -> None:
    """With longer pauses, five times; the batch is due until then, and the record says what was answered."""
    listener.answers = [500] * 9
    desk.submit({"a": [claimed(), *ended()]}, notify=Notify(webhook=listener.url, secret="HOOK"))
    seen = []
    for after_s in (1, 1, 30, 1, 120, 600, 3600):
        desk.round(after_s=after_s)
        seen.append(len(listener.got))
    assert seen == [1, 1, 2, 2, 3, 4, 5]
    last = notify.notices(desk.archive, NIGHT)[-1]
    assert (last.kind, last.detail, desk.due) == ("given_up", "answered 500", [])
    assert len({got.headers["webhook-id"] for got in listener.got}) == 1


def test_a_message_that_a_crash_interrupted_is_sent_by_the_next(desk: Desk, listener: Listener) -> None:
    """It was announced, and nobody knows whether it arrived: the same id again."""
    wanted = Notify(webhook=listener.url, secret="HOOK")
    desk.submit({"a": [claimed(), *ended()]}, notify=wanted)
    stored = kept.store(desk.archive, kept.gather(desk.archive, NIGHT, at=AT))
    (notice,) = notify.announce(desk.archive, stored, wanted, at=AT)
    desk.round()
    assert [got.headers["webhook-id"] for got in listener.got] == [notice.id]
    assert desk.due == []


def test_a_store_that_is_away_delays_only(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round says so to the scheduler, which waits; nothing is lost."""
    desk.submit({"a": [claimed(), *ended()]})

    def away(*_: object, **__: object) -> Any:
        raise StoreFault("away")

    with monkeypatch.context() as outage:
        outage.setattr(type(desk.archive), "list", away)
        with pytest.raises(StoreFault):
            desk.round()
    desk.round()
    assert desk.reports() == ["000000"]


def test_a_scheduler_reports_in_its_rounds(desk: Desk, redis_url: str) -> None:
    """A question is told of after a minute; its end, by a cancel, is another report, and then nothing is due."""
    hints = Hints(redis_url)
    hints.start_epoch("known")
    scheduler = Scheduler(
        desk.archive, hints, lambda *_: None, desk.settings, now=lambda: desk.now, reporter=desk.reporter
    )

    def rounds(*after_s: float) -> list[str]:
        for seconds in after_s:
            desk.now += timedelta(seconds=seconds)
            scheduler.tick()
            desk.reporter.settle()
        return [kept.read(desk.archive, NIGHT, int(n)).headline for n in desk.reports()]

    desk.submit({"a": [claimed(), *ended("changed", verdict="verified")], "b": WAITS})
    asks = "1 of 2 verified, 1 waiting for you, $0"
    assert rounds(1, 30) == []
    assert rounds(31, 1, 61) == [asks]
    tell(desk.archive, hints, Found("run", "b"), "cancel", by="ann", at=AT)
    assert rounds(20, 1, 1) == [asks, "1 of 2 verified, 1 cancelled, $0"]
    assert desk.due == []
