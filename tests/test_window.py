"""When a window is open: at any instant, in any zone, over changes of clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from worker.contract.errors import InvalidFault
from worker.contract.window import DAYS, Window
from worker.contract.zones import moment, told, utc_text

ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia",
    "Africa/Casablanca", "America/St_Johns", "Pacific/Kiritimati", "Antarctica/Troll",
)  # fmt: skip
"""Half hours, changes of half an hour and of two hours, clocks set back for a month, a day that never was."""


def window(open: str = "22:00", close: str = "06:00", zone: str = "Europe/Berlin", **more: Any) -> Window:
    return Window(open=open, close=close, zone=zone, **more)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


clocks = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))
windows = st.builds(
    lambda opens, closes, days, zone: Window(open=opens, close=closes, days=days, zone=zone),
    clocks,
    clocks,
    st.lists(st.sampled_from(DAYS), min_size=1, max_size=6, unique=True),
    st.sampled_from(ZONES),
)
instants = st.datetimes(datetime(2000, 1, 1), datetime(2037, 12, 31), timezones=st.just(UTC))


@given(windows, instants)
@example(window("00:00", "00:00", "Pacific/Apia", days=("thu", "fri")), at("2011-12-30T05:00"))
def test_it_is_open_or_closed_and_says_until_when(one: Window, now: datetime) -> None:
    """Never both: where it is open it will close, where it is closed it will open, and both lie ahead."""
    closes, until, opens = one.closes(now), one.closed_until(now), one.opens(now)
    assert (closes is None) != (until is None)
    assert opens > now
    assert until in (None, opens)
    assert closes is None or now < closes < opens


@given(windows, instants)
def test_nothing_changes_before_it_says(one: Window, now: datetime) -> None:
    """A moment before the change all is as now, and at the change it is the other way."""
    change = one.closes(now) or one.opens(now)
    before = change - timedelta(microseconds=1)
    assert (one.closes(before) is None) == (one.closes(now) is None)
    assert (one.closes(change) is None) != (one.closes(now) is None)


@given(windows, instants)
def test_it_opens_and_closes_by_the_clocks_of_its_zone(one: Window, now: datetime) -> None:
    """What a clock shows when it opens is what was asked, unless clocks are changed within a day, or a span before
    reaches as far."""
    opens = one.opens(now).astimezone(ZoneInfo(one.zone))
    steady = opens.utcoffset() == (opens - timedelta(days=2)).utcoffset()
    if steady:
        assert opens.strftime("%H:%M") == one.open
        assert DAYS[opens.weekday()] in one.days


@given(windows, instants)
def test_the_last_call_is_the_first_closing_after_a_submit(one: Window, now: datetime) -> None:
    """Of a run that came while it was closed, the end of the night after."""
    last = one.last_call(now)
    assert last == (one.closes(now) or one.closes(one.opens(now)))


@pytest.mark.parametrize(
    ("now", "open_until", "closed_until"),
    [
        ("2026-11-30T20:59:59", None, "2026-11-30T21:00:00"),
        ("2026-11-30T21:00:00", "2026-12-01T05:00:00", None),
        ("2026-12-01T05:00:00", None, "2026-12-01T21:00:00"),
        # A night of seven hours, and one of nine.
        ("2027-03-27T23:00:00", "2027-03-28T04:00:00", None),
        ("2026-10-24T23:00:00", "2026-10-25T05:00:00", None),
    ],
)
def test_a_night_in_berlin(now: str, open_until: str | None, closed_until: str | None) -> None:
    """From ten to six, also on the nights on which clocks change."""
    assert window().closes(at(now)) == (open_until and at(open_until))
    assert window().closed_until(at(now)) == (closed_until and at(closed_until))


@pytest.mark.parametrize(
    ("opens", "closes", "now", "until"),
    [
        ("02:30", "05:00", "2027-03-14T07:29:59", None),
        ("02:30", "05:00", "2027-03-14T07:30:00", "2027-03-14T09:00:00"),
        ("01:00", "01:30", "2026-11-01T05:29:00", "2026-11-01T05:30:00"),
        ("01:00", "01:30", "2026-11-01T06:10:00", None),
        ("01:45", "02:15", "2027-03-14T06:50:00", "2027-03-14T07:15:00"),
    ],
)
def test_times_that_clocks_skip_or_show_twice(opens: str, closes: str, now: str, until: str | None) -> None:
    """One that is skipped is moved on by the hour; of one that comes twice the first counts."""
    assert window(opens, closes, "America/New_York").closes(at(now)) == (until and at(until))


def test_a_span_that_clocks_skip_does_not_open() -> None:
    """From half past two to half past three where both are half past three: the next one is a week later."""
    one = window("02:30", "03:30", "America/New_York", days=("sun",))
    assert one.opens(at("2027-03-14T00:00:00")) == at("2027-03-21T06:30:00")


def test_a_weekend_is_one_opening() -> None:
    """Two whole days that touch do not close at midnight between them."""
    one = window("00:00", "00:00", "UTC", days=("sat", "sun"))
    assert one.closes(at("2026-12-05T12:00:00")) == at("2026-12-07T00:00:00")


@pytest.mark.parametrize(
    ("begun", "on_close", "barred"),
    [(True, "pause", True), (False, "pause", True), (True, "finish", False), (False, "finish", True)],
)
def test_whom_a_closed_window_bars(begun: bool, on_close: Any, barred: bool) -> None:
    """Whoever began may finish, where that was asked."""
    until = window(on_close=on_close).bars(at("2026-12-01T12:00:00"), begun=begun)
    assert until == (at("2026-12-01T21:00:00") if barred else None)


@pytest.mark.parametrize(
    "fields",
    [
        {"open": "24:00"},
        {"open": "7:00"},
        {"zone": "Berlin"},
        {"zone": "localtime"},
        {"zone": "../etc/passwd"},
        {"zone": ""},
        {"zone": "Europe"},
        {"days": ()},
        {"days": ("monday",)},
        {"on_close": "stop"},
        {"close": "22:00"},
    ],
)
def test_a_window_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    """No such time, day or zone, and one that would never close."""
    with pytest.raises(ValidationError):
        Window.model_validate({"open": "22:00", "close": "06:00", "zone": "Europe/Berlin"} | fields)


@pytest.mark.parametrize(
    "text",
    ["2026-12-01T02:00+01:00", "2026-12-01T01:00Z", "2026-12-01T02:00 Europe/Berlin", "2026-12-01T02:00:00+01:00"],
)
def test_a_time_with_its_zone_is_one_moment(text: str) -> None:
    """However it is written."""
    assert moment(text) == at("2026-12-01T01:00:00")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-12-01T02:00", "names no time zone"),
        ("2026-12-01T02:00+01:00 Europe/Berlin", "an offset and a zone"),
        ("2026-12-01T02:00 Berlin", "no time zone 'Berlin'"),
        ("tomorrow", "no time"),
        ("2026-13-01T02:00Z", "no time"),
        ("2027-03-14T02:30 America/New_York", "never show it"),
        ("2026-11-01T01:30 America/New_York", "show it twice"),
        ("", "no time"),
    ],
)
def test_a_time_that_is_no_moment_is_refused(text: str, why: str) -> None:
    """Nobody guesses, neither a zone nor one of two."""
    with pytest.raises(InvalidFault, match=why):
        moment(text)


def test_a_moment_is_told_in_its_zone_and_in_utc() -> None:
    """So that nobody must reckon."""
    assert told(at("2026-12-01T01:00:00"), "Europe/Berlin") == (
        "Tue 2026-12-01 02:00 Europe/Berlin (2026-12-01T01:00:00Z)"
    )
    assert utc_text(at("2026-12-01T01:00:00")) == "2026-12-01T01:00:00Z"
