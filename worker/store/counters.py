"""Owns what is spent, and may be, of the budgets that many runs share: a counter in Redis for each batch and each
day. Refuses to hold truth: a counter that is missing is folded from the journals before anybody may spend by it.

What a run spent at a level only grows. It is told as a sum and not as an addition, so that a call's end, a fold and a
takeover may tell it again, in any order. A run has one model call at a time, and so one reservation, with the most
that the call may cost; it is told from one of an earlier attempt by the attempt's number.

A reservation is made where what is spent and what is reserved are together below every limit. All that is in flight
was reserved, so a sum passes its limit by the one call that came last, at most. One whose call must be over counts as
spent until its run says what it was: perhaps its worker died.

    dawn:spent:<level>        of:<run> (what it spent), spent (their sum), folded, wiped (differs after each wipe)
    dawn:spent:<level>:due    <run> -> attempt, estimate, time at which its call must be over

All in micro-dollars, by Redis's own clock. Both end eight days after the last call. What does not read like that
counts as nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from worker.store.hints import Hints

KEPT_S: Final = 8 * 86400
MOST: Final = 2**53 - 1
"""Of anything counted here: Lua's numbers are exact up to it. As micro-dollars it is far beyond any budget."""

PUT_AT_ONCE: Final = 500
"""Runs of a fold in one script: others wait for a millisecond at most."""

_SUMS = """#!lua flags=allow-oom
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local most = 9007199254740991
local function number(text) return math.min(tonumber(string.match(text or '', '^%d+$')) or 0, most) end
local function counter(level) return KEYS[1] .. ':' .. level end
local function dues(level) return KEYS[1] .. ':' .. level .. ':due' end
local function count(level, run, part)
  local old = number(redis.call('HGET', counter(level), 'of:' .. run))
  if number(part) > old then
    local spent = math.min(number(redis.call('HGET', counter(level), 'spent')) + part - old, most)
    redis.call('HSET', counter(level), 'of:' .. run, part, 'spent', string.format('%d', spent))
    redis.call('PEXPIRE', counter(level), ARGV[1])
  end
end
local function due(level, run, attempt, estimate, for_ms)
  redis.call('HSETNX', dues(level), run, string.format('%d %d %d', attempt, estimate, now + for_ms))
  redis.call('PEXPIRE', dues(level), ARGV[1])
end
local function release(level, run, attempt)
  local held = number(string.match(redis.call('HGET', dues(level), run) or '', '^(%d+) %d+ %d+$'))
  if held <= number(attempt) then redis.call('HDEL', dues(level), run) end
end
local function sums(level)
  local spent, reserved = number(redis.call('HGET', counter(level), 'spent')), 0
  local found = redis.call('HGETALL', dues(level))
  for i = 1, #found, 2 do
    local estimate, over = string.match(found[i + 1], '^%d+ (%d+) (%d+)$')
    if number(over) <= now then
      spent = spent + number(estimate)
    else
      reserved = reserved + number(estimate)
    end
  end
  return math.min(spent, most), math.min(reserved, most)
end
local function folded(level) return redis.call('HEXISTS', counter(level), 'folded') == 1 end
"""
_RESERVE = (
    _SUMS.replace(" flags=allow-oom", "")
    + """
local run, attempt, busy = ARGV[2], ARGV[3], nil
for i = 6, #ARGV, 3 do
  local level, limit = ARGV[i], tonumber(ARGV[i + 1])
  count(level, run, ARGV[i + 2])
  release(level, run, attempt)
  if not folded(level) then return {'missing', level, 0} end
  local spent, reserved = sums(level)
  if spent >= limit then return {'spent', level, spent} end
  if spent + reserved >= limit then busy = busy or {'busy', level, spent} end
end
if busy then return busy end
for i = 6, #ARGV, 3 do due(ARGV[i], run, attempt, ARGV[4], ARGV[5]) end
return {}
"""
)
_SETTLE = (
    _SUMS
    + """
for i = 4, #ARGV, 2 do
  count(ARGV[i], ARGV[2], ARGV[i + 1])
  release(ARGV[i], ARGV[2], ARGV[3])
end
return {}
"""
)
_BEGIN = (
    _SUMS
    + """
redis.call('HSETNX', counter(ARGV[2]), 'wiped', ARGV[3])
redis.call('PEXPIRE', counter(ARGV[2]), ARGV[1])
return redis.call('HGET', counter(ARGV[2]), 'wiped')
"""
)
_PUT = (
    _SUMS
    + """
local level = ARGV[2]
if redis.call('HGET', counter(level), 'wiped') ~= ARGV[3] then return 0 end
for i = 5, #ARGV, 5 do
  local run, part, estimate = ARGV[i], number(ARGV[i + 1]), number(ARGV[i + 3])
  local known = number(redis.call('HGET', counter(level), 'of:' .. run))
  count(level, run, ARGV[i + 1])
  if estimate > 0 and known <= part then
    due(level, run, ARGV[i + 2], estimate, ARGV[i + 4])
  end
end
if ARGV[4] == 'last' then redis.call('HSET', counter(level), 'folded', 1) end
return 1
"""
)
_SPENT = _SUMS + "return folded(ARGV[2]) and sums(ARGV[2])\n"


@dataclass(frozen=True)
class Refused:
    """Why a call may not begin. missing: the level must be folded first. spent: its limit is reached. busy: it would
    be if all calls in flight cost what was reserved for them, so one of them must end first."""

    why: Literal["missing", "spent", "busy"]
    level: str
    spent_microusd: int


@dataclass(frozen=True)
class Part:
    """What a run spent at a level, as its journal says, and what a call in flight may add.

    attempt: whose call that is. estimate_microusd: 0 where none can be in flight. for_s: how long it lasts at most.
    """

    spent_microusd: int
    attempt: int = 0
    estimate_microusd: int = 0
    for_s: float = 0.0


@dataclass(frozen=True)
class Counters:
    """Levels are `batch:<id>` and `day:<date>`. Everything raises HintsFault."""

    hints: Hints

    def reserve(
        self,
        run: str,
        attempt: int,
        estimate_microusd: int,
        for_s: float,
        limits: Mapping[str, int],
        parts: Mapping[str, int],
    ) -> Refused | None:
        """Reserve a call's estimate at every level, for as long as the call may last, or at none. The run has no
        other call, so what was reserved for it before is free. limits, parts: for each level, its limit and what the
        run spent at it so far."""
        levels: list[str | int] = []
        for level in limits:
            levels += [level, limits[level], _whole(parts[level])]
        refused = self._run(_RESERVE, run, attempt, _whole(estimate_microusd), _ms(for_s), *levels)
        return Refused(refused[0], refused[1], int(refused[2])) if refused else None

    def settle(self, run: str, attempt: int, parts: Mapping[str, int]) -> None:
        """Tell what the run spent at each level so far; nothing is reserved for it any more, but for what a later
        attempt of it reserved."""
        self._run(_SETTLE, run, attempt, *(word for level in parts for word in (level, _whole(parts[level]))))

    def begin(self, level: str) -> str:
        """To be called before the journals are read; what `put` needs to know that it is about the same counter."""
        return str(self._run(_BEGIN, level, secrets.token_hex(8)))

    def put(self, level: str, begun: str, parts: Mapping[str, Part]) -> bool:
        """Give a level what a fold of all its runs found. What runs told themselves meanwhile stays. False when Redis
        was wiped since `begin`: calls may have begun that the fold knows nothing of."""
        rows = list(parts.items())
        pages = [rows[first : first + PUT_AT_ONCE] for first in range(0, max(1, len(rows)), PUT_AT_ONCE)]
        return all(
            self._run(_PUT, level, begun, "last" if page is pages[-1] else "more", *_fields(page)) for page in pages
        )

    def spent(self, level: str) -> int | None:
        """Micro-dollars counted at a level, None when it must be folded first."""
        spent = self._run(_SPENT, level)
        return None if spent is None else int(spent)

    def _run(self, script: str, *arguments: str | int) -> Any:
        return self.hints.script(script, "spent", round(KEPT_S * 1000), *arguments)


def _fields(page: Sequence[tuple[str, Part]]) -> Iterator[str | int]:
    for run, part in page:
        estimate, for_ms = _whole(part.estimate_microusd), _ms(part.for_s)
        yield from (run, _whole(part.spent_microusd), part.attempt, estimate, for_ms)


def _ms(seconds: float) -> int:
    return _whole(seconds * 1000)


def _whole(number: float) -> int:
    """As a script can count with it: what a task or a script claims may be of any size."""
    return round(min(max(0, number), MOST))
