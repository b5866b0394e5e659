"""Owns how fast a provider's account is asked by all workers together, and whose turn it is. Refuses to wait: whoever
asks is told when to ask again.

An account has a debt of time for its requests and one for its tokens, in Redis: each grant adds what the request
takes at the account's rate, and time pays it off. A request is granted while neither debt is above BURST_S, whatever
its size: one larger than a whole minute's tokens goes too, and is paid off alone. So in any time T the grants come to
T + BURST_S of the account's rate, and one request.

Batches that wait take turns by the account's time they were granted: the one with the least goes next. `turn` is what
each of those that want the account should have had by now; one that begins to ask begins there, so that neither a
newcomer nor one that slept goes before those who wait. Who waits asks again soon; one that does not is waited for no
longer than TURN_KEPT_S, which is less than the burst, so that no time of the account is lost when a worker dies.

The clock is Redis's own: hosts need not agree on the time. One that is set back stops time for a moment, no more.

    dawn:rate:<account>   at; requests, tokens: the debts then; turn; served:<batch>, wanted:<batch> (until).
                          All in microseconds. Ends a minute after the debts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from worker.contract.settings import Rate
from worker.store.hints import Hints

BURST_S: Final = 5.0
"""A twelfth of a minute's rate at once, after a quiet time: providers count in seconds to a minute."""
TURN_KEPT_S: Final = 3.0
"""For a batch whose turn it is, since it last asked: whoever waits asks each second."""
NOT_YOUR_TURN_S: Final = 0.25
KEPT_S: Final = 60.0
"""After the debts are paid off nothing is worth knowing but whose turn it is."""
COST_MAX_S: Final = 86_400.0
"""Of the account's time, for one request: nobody waits longer than a day for what it said it took."""
MICRO: Final = 1_000_000

_READ = """#!lua flags=allow-oom
local clock, found = redis.call('TIME'), redis.call('HGETALL', KEYS[1])
local now, known = clock[1] * 1000000 + clock[2], {}
for i = 1, #found, 2 do known[found[i]] = tonumber(found[i + 1]) end
local passed = math.max(0, now - (known['at'] or 0))
local requests = math.max(0, (known['requests'] or 0) - passed)
local tokens = math.max(0, (known['tokens'] or 0) - passed)
local turn, batch = known['turn'] or 0, ARGV[1]
local function keep(...)
  redis.call('HSET', KEYS[1], 'at', now, 'requests', requests, 'tokens', tokens, ...)
  redis.call('PEXPIRE', KEYS[1], math.ceil(math.max(requests, tokens) / 1000) + ARGV[2])
end
"""
_TAKE = (
    _READ
    + """
local request, of_tokens, burst, kept, pause = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]),
  tonumber(ARGV[6]), tonumber(ARGV[7])
local function waits(name)
  local till = known['wanted:' .. name]
  return till and till > now and till <= now + kept
end
local mine, waiting = known['served:' .. batch] or 0, 1
if not waits(batch) then mine = math.max(turn, mine) end
local wait = math.max(0, math.max(requests, tokens) - burst)
for field, value in pairs(known) do
  local kind, other = string.match(field, '^(%l+):(.*)$')
  if kind == 'wanted' and other ~= batch and waits(other) then
    waiting = waiting + 1
    if (known['served:' .. other] or 0) < mine then wait = math.max(wait, pause) end
  elseif kind == 'wanted' or kind == 'served' and value <= turn and not waits(other) then
    redis.call('HDEL', KEYS[1], field)
  end
end
if wait > 0 then
  keep('served:' .. batch, mine, 'wanted:' .. batch, now + kept)
  return wait
end
local cost = math.max(request, of_tokens)
requests, tokens = requests + request, tokens + of_tokens
redis.call('HDEL', KEYS[1], 'wanted:' .. batch)
keep('turn', math.max(mine, turn + math.floor(cost / waiting)), 'served:' .. batch, mine + cost)
return 0
"""
)
_SETTLE = (
    _READ
    + """
tokens = math.max(0, tokens + ARGV[3])
keep('served:' .. batch, math.max(0, (known['served:' .. batch] or turn) + ARGV[3]))
return 0
"""
)


@dataclass(frozen=True)
class Pace:
    """Of all accounts. Both raise HintsFault; an answer lost on the way may count a request twice."""

    hints: Hints

    def take(self, account: str, batch: str, rate: Rate, tokens: int) -> float:
        """Grant the batch one request of so many tokens (0.0), or say in how many seconds to ask again."""
        costs = _us(rate.requests_per_min, 1), _us(rate.tokens_per_min, tokens)
        limits = [round(limit_s * MICRO) for limit_s in (BURST_S, TURN_KEPT_S, NOT_YOUR_TURN_S)]
        return int(self._run(_TAKE, account, batch, *costs, *limits)) / MICRO

    def settle(self, account: str, batch: str, rate: Rate, tokens: int) -> None:
        """Count so many tokens more for a request that was granted, or fewer where they are negative."""
        self._run(_SETTLE, account, batch, _us(rate.tokens_per_min, tokens))

    def _run(self, script: str, account: str, batch: str, *arguments: int) -> int:
        return int(self.hints.script(script, f"rate:{account}", batch, round(KEPT_S * 1000), *arguments))


def _us(per_min: int | None, count: int) -> int:
    """The account's time that so much takes, microseconds, 0 without a rate, at most COST_MAX_S either way."""
    most = round(COST_MAX_S * MICRO)
    return 0 if per_min is None else max(-most, min(math.ceil(count * 60 * MICRO / per_min), most))
