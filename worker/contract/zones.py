"""Owns what a place's clock says as a moment: IANA zones, and times as people write them. Refuses to guess a zone,
and to look at the host's own.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from typing import Annotated, Final
from zoneinfo import ZoneInfo

from pydantic import AfterValidator

from worker.contract.errors import InvalidFault

OF_THE_HOST: Final = frozenset({"localtime", "posixrules", "Factory"})
"""Files beside the zones of some hosts: what they say depends on where it is read."""
WRITTEN: Final = re.compile(r"(?P<time>\d{4}-\d\d-\d\dT\S+?)(?: +(?P<zone>[A-Za-z]\S*))?")
HINT: Final = "write 2026-12-01T02:00+01:00, 2026-12-01T01:00Z, or '2026-12-01T02:00 Europe/Berlin'"


def _known(name: str) -> str:
    try:
        if name not in OF_THE_HOST:
            return ZoneInfo(name).key
    except (KeyError, ValueError, OSError):  # of ZoneInfo: unknown, not a name, a folder
        pass
    raise ValueError(f"there is no time zone {name!r}; write one like Europe/Berlin, America/New_York or UTC")


Zone = Annotated[str, AfterValidator(_known)]
"""Name of an IANA zone."""


def _with_zone(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text} names no time zone")
    return text


Moment = Annotated[str, AfterValidator(_with_zone)]
"""ISO 8601 with its zone, as ours is UTC with milliseconds: what is reckoned with can be compared."""


def instant(day: date, at: time, zone: ZoneInfo) -> datetime:
    """The moment, UTC, at which the clocks of the zone show it. A time that they skip is moved on by what they skip;
    of one that they show twice it is the first."""
    return datetime.combine(day, at, zone).astimezone(UTC)


def moment(text: str) -> datetime:
    """The moment, UTC, that a person wrote: with an offset, or with a zone behind it. Raises InvalidFault for
    anything else, and for a time that the zone's clocks skip or show twice."""
    match = WRITTEN.fullmatch(text.strip())
    try:
        written = datetime.fromisoformat(match["time"] if match else "")
    except ValueError:
        raise InvalidFault(f"{text!r} is no time", hint=HINT) from None
    named = match["zone"] if match else None
    if (written.tzinfo is None) == (named is None):
        why = "names no time zone, and nobody guesses one" if named is None else "has an offset and a zone"
        raise InvalidFault(f"{text!r} {why}", hint=HINT)
    try:
        if named is None:
            return written.astimezone(UTC)
        zone = ZoneInfo(_known(named))
    except (ValueError, OverflowError) as error:
        raise InvalidFault(f"{text!r}: {error}", hint=HINT) from None
    first, second = (written.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first != second:
        how = "never show it" if first > second else "show it twice"
        raise InvalidFault(f"{text!r}: the clocks of {named} {how}", hint="write it with its offset from UTC")
    return first


def utc_text(at: datetime) -> str:
    """`2026-12-01T01:00:00Z`: whole seconds, UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def told(at: datetime, zone: str) -> str:
    """A moment for people: `Tue 2026-12-01 02:00 Europe/Berlin (2026-12-01T01:00:00Z)`."""
    local = at.astimezone(ZoneInfo(zone))
    shown = local.strftime("%a %Y-%m-%d %H:%M:%S" if local.second else "%a %Y-%m-%d %H:%M")
    return f"{shown} {zone} ({utc_text(at)})"
