"""Owns the nouns of a morning report as it is stored, and its first line. Refuses to find out anything (morning.py).

What is stored (worker/store/FORMAT.md names it) is `Morning`, as canonical JSON; pages.py makes it readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from worker.contract.events import canonical, digest
from worker.contract.frozen import Frozen
from worker.contract.notify import Word
from worker.contract.task import usd_text

State = Literal[
    "verified", "failed", "flaky", "unverified", "cancelled",
    "waits_for_you", "waits", "working", "not_reached", "damaged", "not_written",
]  # fmt: skip
"""What became of a target. Every one is in exactly one state, so the numbers of the first line add up."""
SAID: Final[Mapping[State, str]] = {
    "verified": "verified",
    "failed": "failed",
    "flaky": "flaky",
    "unverified": "unverified",
    "cancelled": "cancelled",
    "waits_for_you": "waiting for you",
    "waits": "waiting",
    "working": "still running",
    "not_reached": "not reached",
    "damaged": "damaged",
    "not_written": "not written",
}


class Row(Frozen):
    """One target. detail: one line, "" for nothing to add. cost_microusd: of its standing run."""

    target: str
    run: str
    state: State
    outcome: str | None = None
    verdict: str | None = None
    steps: int = 0
    cost_microusd: int = 0
    cost_known: bool = True
    detail: str = ""


class Need(Frozen):
    """What waits for a person. commands: exactly what to type, one way each; what stands in capitals is to choose."""

    why: str
    targets: tuple[str, ...]
    commands: tuple[str, ...]


class Delivered(Frozen):
    """What a run brought. state: `patch` where nothing but the patch was asked for. get: a command or an address."""

    target: str
    run: str
    state: str
    get: str


class Group(Frozen):
    """Failures of one fingerprint. kind: class and reason, or the verdict. sample: the end of one's words."""

    fingerprint: str
    kind: str
    targets: tuple[str, ...]
    runs: tuple[str, ...]
    sample: str
    retry: str


class Changes(Frozen):
    """Against the batch of the same name before: targets that both asked. same: how many ended in the same state."""

    since: str
    newly_verified: tuple[str, ...] = ()
    newly_failing: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()
    same: int = 0
    only_now: tuple[str, ...] = ()


class Left(Frozen):
    """Targets that nobody began, for one reason."""

    why: str
    targets: tuple[str, ...]


class Spend(Frozen):
    """Millionths of a dollar. batch: of all its runs, retries and candidates too. known: False where a reply had no
    price. unrecorded: the part of it that was counted for replies nobody kept. day: of the whole deployment."""

    batch_microusd: int
    known: bool
    limit_microusd: int | None = None
    unrecorded_microusd: int = 0
    day_microusd: int | None = None
    day_limit_microusd: int | None = None


class Warned(Frozen):
    """What a reader should not overlook of a run."""

    target: str
    run: str
    text: str


class Morning(Frozen):
    """A report. at: UTC, when it was made; submitted_at: UTC, of its first run. ended: all its runs are sealed;
    delivering: patches of them that a worker is to deliver.
    runs: all it has, retries and candidates too; sealed: those that have ended. chain: of all their journals. note:
    why it was written, where the batch itself does not say."""

    v: Literal[1] = 1
    batch: str
    at: str
    submitted_at: str = ""
    headline: str
    ended: bool
    delivering: int = 0
    note: str = ""
    counts: dict[State, int]
    reused: int = 0
    needs: tuple[Need, ...] = ()
    delivered: tuple[Delivered, ...] = ()
    failures: tuple[Group, ...] = ()
    changes: Changes | None = None
    not_reached: tuple[Left, ...] = ()
    spend: Spend
    warnings: tuple[Warned, ...] = ()
    runs: int
    sealed: int
    chain: Literal["verified", "not checked", "damaged"] = "not checked"
    rows: tuple[Row, ...] = ()

    @property
    def state(self) -> str:
        """A digest of all it says of the batch: a report that would say the same again need not be written."""
        said = self.model_dump(mode="json", exclude={"at", "chain"})
        del said["spend"]["day_microusd"], said["spend"]["day_limit_microusd"]
        return digest(canonical(said))

    @property
    def news(self) -> tuple[Word, ...]:
        """What it is news of."""
        skipped = {left.why for left in self.not_reached}
        found: dict[Word, bool] = {
            "done": self.ended,
            "needs_person": bool(self.needs),
            "breaker": "breaker" in skipped,
            "budget": any(why.startswith("budget") for why in skipped),
            "unfinished": not self.ended or bool(skipped),
        }
        return tuple(word for word, there in found.items() if there)

    def stored(self) -> bytes:
        return canonical(self.model_dump(mode="json"))


def headline(counts: Mapping[State, int], spend: Spend) -> str:
    """`41 of 60 verified, 6 failed, 9 not reached, $38 of $60`: all that is not verified is named."""
    told = [f"{counts.get('verified', 0)} of {sum(counts.values())} verified"]
    told += [f"{counts[state]} {said}" for state, said in SAID.items() if state != "verified" and counts.get(state)]
    return ", ".join([*told, money(spend)])


def money(spend: Spend) -> str:
    """`$38 of $60`, `at least $38`, `unknown cost`."""
    spent = usd(spend.batch_microusd)
    if not spend.known:
        spent = f"at least {spent}" if spend.batch_microusd else "unknown cost"
    return spent if spend.limit_microusd is None else f"{spent} of {usd(spend.limit_microusd)}"


def usd(microusd: int) -> str:
    """Whole dollars without cents that say nothing."""
    return usd_text(microusd).removesuffix(".00")
