"""Owns what Redis holds: leases, worker offers, rung doorbells, control hints, counters, the epoch. Refuses to hold
truth: all of it can be lost at any moment and is rebuilt from the archive. The one door to redis-py.

Keys (each with a time to live, or O(active) as said):

    dawn:lease:<name>                 token of the holder of run:<id>, deliver:<id>, fold:<level>, scheduler
    dawn:worker:<name>  dawn:worker   what a worker offers; the set of names, cleaned whenever it is read
    dawn:bell:<run>     dawn:bell     lane of a doorbell that nobody has answered yet; likewise
    dawn:control:<name>               inbox number that a run or batch should read up to
    dawn:spent:<level>                what is spent and reserved of a budget (worker/store/counters.py)
    dawn:hold:<account>               a provider told the account to wait; ends when it may ask again
    dawn:rate:<account>               how fast it was asked, and whose turn it is (worker/store/pace.py)
    dawn:epoch                        when Redis was last found wiped; the one key without an end
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import OutOfMemoryError, RedisError
from redis.retry import Retry

from worker.contract.errors import HintsFault, UsageFault

SOCKET_TIMEOUT_S: Final = 5
RETRIES: Final = 3
"""A heartbeat must give up well before a lease ends: at most 4 tries of SOCKET_TIMEOUT_S each."""

CONTROL_TTL_S: Final = 600
"""A control hint outlives the 10 s after which a worker reads the inbox anyway."""

SCAN_BATCH: Final = 1000

OLDEST_REDIS: Final = (7, 0)
"""Script flags came with Redis 7; every Valkey has them."""

# Scripts that keep living runs alive may write when memory is full (allow-oom); new work may not.
_CLAIM = """#!lua
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_EXTEND = _CLAIM.replace("#!lua", "#!lua flags=allow-oom")
_RELEASE = """#!lua flags=allow-oom
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
_PUBLISH = """#!lua flags=allow-oom
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('SET', KEYS[1] .. ':' .. ARGV[1], ARGV[2], 'PX', ARGV[3])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 1
"""
_RETRACT = """#!lua flags=allow-oom
redis.call('SREM', KEYS[1], ARGV[1])
return redis.call('DEL', KEYS[1] .. ':' .. ARGV[1])
"""
_LIVE = """#!lua flags=allow-oom
local live = {}
for _, name in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local value = redis.call('GET', KEYS[1] .. ':' .. name)
  if value then
    live[#live + 1] = name
    live[#live + 1] = value
  else
    redis.call('SREM', KEYS[1], name)
  end
end
return live
"""
_HOLD = """#!lua flags=allow-oom
if redis.call('PTTL', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
return 1
"""


_NUMBER: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class WorkerOffer:
    """What a living worker can take: lanes it consumes, slots in all and free ones."""

    name: str
    lanes: tuple[str, ...]
    slots: int
    free: int


class Hints:
    """One Redis. Thread-safe; connects at the first command. Every method raises HintsFault when Redis cannot be
    reached within some seconds or refuses to write."""

    def __init__(self, url: str, *, socket_timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        """url: redis://, rediss://, unix:///path.sock or redis+socket:///path.sock. Raises UsageFault for others."""
        options: dict[str, Any] = {
            "decode_responses": True,
            "encoding_errors": "replace",
            "health_check_interval": 10,
            "socket_timeout": socket_timeout_s,
        }
        if not is_socket(url):
            options |= {"socket_connect_timeout": socket_timeout_s, "socket_keepalive": True}
        with redis_faults():
            try:
                self._redis = redis.Redis.from_url(
                    client_url(url), retry=Retry(ExponentialBackoff(cap=1, base=0.05), RETRIES), **options
                )
            except ValueError as error:
                # The reason may quote a part of the password, where that has a character that ends it.
                raise UsageFault(
                    "DAWN_REDIS_URL does not parse",
                    hint="redis://user:password@host:6379/0; in a password, / ? # and @ are written %2F %3F %23 %40",
                ) from error
        self._scripts: dict[str, Any] = {}

    def check(self) -> None:
        """Refuse, not retryable, a Redis that may throw keys away or is too old."""
        with redis_faults():
            info = self._redis.info()
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise HintsFault(
                f"Redis has maxmemory-policy {policy}, so it may throw leases away",
                hint="set maxmemory-policy to noeviction",
                retryable=False,
            )
        version = str(info.get("redis_version", "0"))
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS:
            raise HintsFault(f"Redis {version} is too old", hint="use Redis 7 or later, or Valkey", retryable=False)

    def claim(self, name: str, token: str, ttl_s: float) -> bool:
        """Take the lease when it is free or ours already. A repeated claim with one token is harmless."""
        return bool(self._run(_CLAIM, [f"dawn:lease:{name}"], token, _ms(ttl_s)))

    def extend(self, name: str, token: str, ttl_s: float) -> bool:
        """Heartbeat: own token is extended, a missing one set again; False when the lease is somebody else's."""
        return bool(self._run(_EXTEND, [f"dawn:lease:{name}"], token, _ms(ttl_s)))

    def release(self, name: str, token: str) -> None:
        """Give the lease back if it is ours."""
        self._run(_RELEASE, [f"dawn:lease:{name}"], token)

    def held(self, names: Iterable[str]) -> set[str]:
        """Those of the leases that somebody holds, in one round trip."""
        return set(self._many("lease", names))

    def offer(self, offer: WorkerOffer, ttl_s: float) -> None:
        """Publish a worker's slots for ttl_s; to be repeated by its heartbeat and when a slot is taken or freed."""
        value = json.dumps([list(offer.lanes), offer.slots, offer.free])
        self._run(_PUBLISH, ["dawn:worker"], offer.name, value, _ms(ttl_s))

    def withdraw(self, worker: str) -> None:
        """A worker leaves."""
        self._run(_RETRACT, ["dawn:worker"], worker)

    def workers(self) -> list[WorkerOffer]:
        """Living workers, by name. What no worker writes is no offer."""
        return [offer for live in sorted(self._live("worker").items()) if (offer := _offered(*live)) is not None]

    def rung(self, run: str, lane: str, ttl_s: float) -> None:
        """A doorbell was rung for the run; it counts as outstanding until answered or for ttl_s."""
        self._run(_PUBLISH, ["dawn:bell"], run, lane, _ms(ttl_s))

    def answered(self, run: str) -> None:
        """A worker took the doorbell, whatever it makes of it."""
        self._run(_RETRACT, ["dawn:bell"], run)

    def outstanding(self) -> dict[str, str]:
        """Run -> lane of the doorbells that nobody answered yet."""
        return self._live("bell")

    def poke(self, name: str, number: int) -> None:
        """Tell whoever holds run or batch `name` (`run:<id>`, `batch:<id>`) that inbox object `number` is there."""
        with redis_faults():
            self._redis.set(f"dawn:control:{name}", number, px=_ms(CONTROL_TTL_S))

    def poked(self, names: Iterable[str]) -> dict[str, int]:
        """name -> highest inbox number known of, for those with a hint, in one round trip. What is no number is no
        hint."""
        found = self._many("control", names).items()
        return {name: int(value) for name, value in found if _NUMBER.fullmatch(value)}

    def hold(self, account: str, for_s: float) -> None:
        """Let nobody ask a provider through the account for so long; a longer hold stays."""
        self._run(_HOLD, [f"dawn:hold:{account}"], _ms(for_s))

    def held_s(self, account: str) -> float:
        """Seconds until the account may ask again, 0 for at once."""
        with redis_faults():
            left_ms = int(self._redis.pttl(f"dawn:hold:{account}"))
        return max(0, left_ms) / 1000

    def holds(self) -> dict[str, float]:
        """account -> seconds until it may ask again, of all that wait. Looks at every key, so not for a loop."""
        with redis_faults():
            found = [str(key) for key in self._redis.scan_iter("dawn:hold:*", count=SCAN_BATCH)]
        accounts = [key.removeprefix("dawn:hold:") for key in found]
        return {account: left_s for account in sorted(accounts) if (left_s := self.held_s(account)) > 0}

    def script(self, text: str, name: str, *arguments: str | int) -> Any:
        """What a script of another module of this package returns. name: of its one key, below `dawn:`."""
        return self._run(text, [f"dawn:{name}"], *arguments)

    def epoch(self) -> str | None:
        """The value the scheduler left, None when Redis was wiped since."""
        with redis_faults():
            value = self._redis.get("dawn:epoch")
        return None if value is None else str(value)

    def start_epoch(self, value: str) -> None:
        """Leave a mark that only a wiped Redis loses."""
        with redis_faults():
            self._redis.set("dawn:epoch", value)

    def forget(self) -> None:
        """Drop the epoch, doorbells, control hints, holds, rates and counters, as a wiped Redis would have; leases
        and offers stay, because whoever keeps them alive is."""
        with redis_faults():
            for kind in ("spent:*", "control:*", "hold:*", "rate:*", "bell*", "epoch"):
                for key in self._redis.scan_iter(f"dawn:{kind}", count=SCAN_BATCH):
                    self._redis.delete(key)

    def close(self) -> None:
        """Close the connections; a later command opens new ones."""
        self._redis.close()

    def _many(self, kind: str, names: Iterable[str]) -> dict[str, str]:
        wanted = list(names)
        if not wanted:
            return {}
        with redis_faults():
            values: list[str | None] = self._redis.mget([f"dawn:{kind}:{name}" for name in wanted])  # type: ignore[assignment]
        return {name: value for name, value in zip(wanted, values, strict=True) if value is not None}

    def _live(self, kind: str) -> dict[str, str]:
        flat = self._run(_LIVE, [f"dawn:{kind}"])
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _run(self, text: str, names: list[str], *arguments: str | int) -> Any:
        with redis_faults():
            script = self._scripts.get(text)
            if script is None:
                script = self._scripts[text] = self._redis.register_script(text)
            return script(keys=names, args=arguments)


def _offered(name: str, value: str) -> WorkerOffer | None:
    """The offer as a worker published it, None for anything else."""
    try:
        lanes, slots, free = json.loads(value)
        sound = all(isinstance(lane, str) for lane in lanes) and {type(slots), type(free)} == {int}
    except (ValueError, TypeError, RecursionError):
        return None
    return WorkerOffer(name, tuple(lanes), slots, free) if sound else None


def is_socket(url: str) -> bool:
    """Whether the address is a Unix socket, in redis-py's or in Celery's spelling."""
    return url.startswith(("unix://", "redis+socket://"))


def client_url(url: str) -> str:
    """The address as redis-py spells it: Celery's `redis+socket:///path?virtual_host=1` is `unix:///path?db=1`."""
    if not url.startswith("redis+socket://"):
        return url
    return f"unix://{urlsplit(url).path}?db={socket_db(url)}"


def socket_db(url: str) -> str:
    """The database number of a socket address, "0" when it names none."""
    query = parse_qs(urlsplit(url).query)
    return (query.get("db") or query.get("virtual_host") or ["0"])[0].strip("/")


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


@contextmanager
def redis_faults() -> Iterator[None]:
    """Translate redis-py's exceptions, here and where kombu lets them through."""
    try:
        yield
    except OutOfMemoryError as error:
        raise HintsFault("Redis is out of memory and takes no new work", hint="raise its maxmemory") from error
    except RedisError as error:
        raise HintsFault(f"Redis failed: {error}", hint="is it running, and is DAWN_REDIS_URL right?") from error
    except OSError as error:
        raise HintsFault(
            f"Redis cannot be reached: {error}", hint="is it running, and is DAWN_REDIS_URL right?"
        ) from error
