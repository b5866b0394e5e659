"""When a schedule is due: over changes of clocks, the same on every host, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scheduler.schedules.cron import Schedule

NEW_YORK = "America/New_York"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def due(cron: str, zone: str, after: str, until: str) -> list[str]:
    """UTC, as `05:30`, with the day where it is another than that of `after`."""
    found: list[str] = []
    for moment in Schedule(cron=cron, zone=zone).due_after(at(after)):
        if moment >= at(until):
            return found
        found.append(f"{moment:%dT%H:%MZ}")
    raise AssertionError("it ends")


@pytest.mark.parametrize(
    ("cron", "after", "until", "moments"),
    [
        ("30 1 * * *", "2026-11-01T04:00", "2026-11-02T04:00", ["01T05:30Z"]),
        ("0 * * * *", "2026-11-01T04:30", "2026-11-01T07:30", ["01T05:00Z", "01T06:00Z", "01T07:00Z"]),
        ("30 2 * * *", "2027-03-14T04:00", "2027-03-16T04:00", ["14T07:00Z", "15T06:30Z"]),
        ("0,30 2 * * *", "2027-03-14T04:00", "2027-03-15T04:00", ["14T07:00Z"]),
        ("0 * * * *", "2027-03-14T05:30", "2027-03-14T08:30", ["14T06:00Z", "14T07:00Z", "14T08:00Z"]),
        (
            "*/30 1 * * *",
            "2026-11-01T04:00",
            "2026-11-02T04:00",
            ["01T05:00Z", "01T05:30Z", "01T06:00Z", "01T06:30Z"],
        ),
        ("0 22 * * 1-5", "2026-10-30T12:00", "2026-11-03T12:00", ["31T02:00Z", "03T03:00Z"]),
    ],
)
def test_due_times_over_changes_of_clocks(cron: str, after: str, until: str, moments: list[str]) -> None:
    """T60: once in the night that has an hour twice, each hour that passes for an hourly one, and in the night that
    lacks the hour at the first moment after it."""
    assert due(cron, NEW_YORK, after, until) == moments


@pytest.mark.parametrize("after", ["2026-11-01T05:30:00", "2026-11-01T06:10:00", "2026-11-01T06:59:59"])
def test_whoever_looks_in_the_second_hour_is_not_told_of_the_first(after: str) -> None:
    """A scheduler that starts there, or has just fired, does not fire again."""
    assert due("30 1 * * *", NEW_YORK, after, "2026-11-02T07:00") == ["02T06:30Z"]


crons = st.sampled_from(
    ["30 1 * * *", "30 2 * * *", "0 * * * *", "*/15 * * * *", "0 0 * * MON", "59 23 L * *", "*/10 * * * * *"]
)
zones = st.sampled_from(["UTC", NEW_YORK, "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "Antarctica/Troll"])
instants = st.datetimes(datetime(2010, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))


@given(crons, zones, instants)
def test_due_times_lie_ahead_and_rise(cron: str, zone: str, now: datetime) -> None:
    """So that no moment is due twice."""
    found = list(islice(Schedule(cron=cron, zone=zone).due_after(now), 5))
    assert found == sorted(set(found))
    assert found[0] > now
    assert all(moment.microsecond == 0 and moment.utcoffset() == timedelta(0) for moment in found)


@given(crons, zones, instants)
def test_the_next_is_the_same_from_wherever_one_looks(cron: str, zone: str, now: datetime) -> None:
    """A leader who takes over between two of them finds what the one before would have."""
    schedule = Schedule(cron=cron, zone=zone)
    first, second = islice(schedule.due_after(now), 2)
    between = first + (second - first) / 2
    assert next(schedule.due_after(first)) == second
    assert next(schedule.due_after(between)) == second


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cron": "tomorrow"}, "no cron schedule"),
        ({"cron": "61 * * * *"}, "no cron schedule"),
        ({"cron": "0 0 31 2 *"}, "no cron schedule"),
        ({"cron": "* * * * * *"}, "more often"),
        ({"cron": "0 30 1 * * *"}, "leave the seconds out"),
        ({"zone": "New York"}, "no time zone"),
        ({"zone": None}, "valid string"),
        ({"overlap": "never"}, "skip"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(fields: dict[str, str], why: str) -> None:
    """Fields, a zone that is none, and none at all."""
    with pytest.raises(ValidationError, match=why):
        Schedule.model_validate({"cron": "30 1 * * *", "zone": NEW_YORK} | fields)


def test_a_schedule_needs_a_zone() -> None:
    """T61: nobody guesses one."""
    with pytest.raises(ValidationError, match="zone"):
        Schedule.model_validate({"cron": "30 1 * * *"})


def test_due_times_are_the_same_on_every_host() -> None:
    """T61: the host's own zone plays no part, neither in a schedule nor in a time that a person wrote."""
    code = (
        "import time, datetime as d; from scheduler.schedules.cron import Schedule;"
        "from worker.contract.zones import moment, told;"
        "s = Schedule(cron='0 2 * * *', zone='Europe/Berlin'); a = moment('2026-12-01T02:00 Europe/Berlin');"
        "print(time.tzname[0], '|', next(s.due_after(d.datetime(2026, 11, 30, 12, tzinfo=d.UTC))), told(a, 'UTC'))"
    )
    said = [
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"TZ": zone}, capture_output=True, check=True)
        for zone in ("Asia/Kolkata", "UTC")
    ]
    zone, found = zip(*(one.stdout.decode().split("|") for one in said), strict=True)
    assert zone[0] != zone[1]
    assert found[0] == found[1] == " 2026-12-01 01:00:00+00:00 Tue 2026-12-01 01:00 UTC (2026-12-01T01:00:00Z)\n"
