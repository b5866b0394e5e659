"""Owns the faults (bad news that is raised) and the exit codes; refuses to know any SDK's exceptions.

An *observation* tells the model that a call failed, an *outcome* is an expected end, and neither is here.
Whoever talks to an SDK translates its exceptions into one of these at the door.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Final, Literal

RETRY_AFTER_S_MAX: Final = 86_400.0
"""Of a wait that a provider asks for: after a day it is asked again, whatever it said."""


class ExitCode(IntEnum):
    """What `dawn` exits with (the table in README.md)."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INVALID = 3
    SOME_FAILED = 4
    ALL_FAILED = 5
    BUDGET = 6
    BREAKER = 7
    CANCELLED = 8
    PERSON_NEEDED = 9
    CONFLICT = 10
    INTEGRITY = 11
    TRY_LATER = 75
    WAIT_TIMED_OUT = 124
    INTERRUPTED = 130


class Fault(Exception):
    """Something is wrong that the code at hand cannot turn into a result.

    message: what happened, one line. hint: what the reader can do about it, one line or empty.
    retryable: whether the same act may succeed later without anybody changing anything.
    """

    exit_code: ExitCode = ExitCode.INTERNAL
    retryable: bool = False

    def __init__(self, message: str, *, hint: str = "", retryable: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if retryable is not None:
            self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageFault(Fault):
    """The command line or a setting makes no sense."""

    exit_code = ExitCode.USAGE


class InvalidFault(Fault):
    """A task, manifest or script does not parse or contradicts itself."""

    exit_code = ExitCode.INVALID


class NotFoundFault(Fault):
    """The named run, batch or object does not exist."""

    exit_code = ExitCode.CONFLICT


class ConflictFault(Fault):
    """Somebody else got there first, or the thing is in a state that forbids the act."""

    exit_code = ExitCode.CONFLICT


class IntegrityFault(Fault):
    """Stored bytes are not what their digest or chain says."""

    exit_code = ExitCode.INTEGRITY


class VersionFault(Fault):
    """Something stored was written by a newer Dawnfleet: it is sound, and this one must leave it alone."""

    exit_code = ExitCode.CONFLICT


class StoreFault(Fault):
    """The archive cannot be read or written now."""

    exit_code = ExitCode.TRY_LATER
    retryable = True


class HintsFault(Fault):
    """Redis cannot be reached or refuses to write."""

    exit_code = ExitCode.TRY_LATER
    retryable = True


class EngineFault(Fault):
    """The container engine failed, is absent or is too old."""

    exit_code = ExitCode.TRY_LATER
    retryable = True


class KeeperFault(EngineFault):
    """The keeper of a workspace died or failed: the attempt ends, the next starts from the last commit."""


class FencedFault(Fault):
    """This attempt is no longer its run's current one: write nothing more, kill what is ours."""

    exit_code = ExitCode.CONFLICT


class EnvironmentFault(Fault):
    """A run cannot be prepared. reason is one of the `env` reasons: repository ref setup image check."""

    exit_code = ExitCode.INVALID

    def __init__(self, reason: str, message: str, *, hint: str = "", retryable: bool = False) -> None:
        super().__init__(message, hint=hint, retryable=retryable)
        self.reason = reason


class ProviderFault(Fault):
    """A model provider did not give a reply. reason: auth bad_request connection unavailable context.

    retry_after_s: how long the provider asked to wait, seconds, at most RETRY_AFTER_S_MAX; None when it did not
    say, or said what is no time. shared: the account is told to wait, so that every other request through it would
    meet the same. cut: the connection ended while an answer was due, so that this very request may be what breaks
    it. unheard: there may be an answer that nobody
    heard, and that costs what any does; unheard_microusd: at most, None where nobody counts it.
    """

    exit_code = ExitCode.TRY_LATER

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        hint: str = "",
        retryable: bool = False,
        retry_after_s: float | None = None,
        shared: bool = False,
        cut: bool = False,
        unheard: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, retryable=retryable)
        self.reason = reason
        self.retry_after_s = _wait_s(retry_after_s)
        self.shared = shared or self.retry_after_s is not None
        self.cut = cut
        self.unheard = unheard or cut
        self.unheard_microusd: int | None = None


class ForgeFault(Fault):
    """A forge did not do what it was asked. reason: limit, connection, auth, exists, refused, answer or unknown.

    retry_after_s: how long it asked everybody with this token to wait, seconds, at most RETRY_AFTER_S_MAX.
    """

    exit_code = ExitCode.TRY_LATER

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        hint: str = "",
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, retryable=retryable)
        self.reason = reason
        self.retry_after_s = _wait_s(retry_after_s)


def _wait_s(asked_s: float | None) -> float | None:
    return None if asked_s is None or not 0 <= asked_s < math.inf else min(asked_s, RETRY_AFTER_S_MAX)


class PacedFault(ProviderFault):
    """A provider's account is asked as fast as this deployment allows: nothing was sent, and nobody else need wait
    because of it. retry_after_s: when to ask again."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__("unavailable", message, retryable=True, retry_after_s=retry_after_s)
        self.shared = False


class BudgetFault(Fault):
    """A budget that many runs share is used up: no model is asked. reason: batch_budget or day_budget.

    until: UTC time at which there is another one, None when somebody must raise this one.
    """

    exit_code = ExitCode.BUDGET

    def __init__(self, reason: Literal["batch_budget", "day_budget"], message: str, until: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.until = until
