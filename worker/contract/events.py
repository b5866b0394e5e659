"""Owns the events a journal is made of, and their line on disk. Refuses to interpret them (that is run.py).

One append is one segment, `journal/<seq>.jsonl`: one or more lines, one Record each. A record names the hash
of the line before it; the first names the SHA-256 of task.json, so the journal binds the task.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from worker.contract.canonical import canonical as canonical
from worker.contract.canonical import digest as digest
from worker.contract.canonical import read_json as read_json
from worker.contract.reply import Reply as Reply
from worker.contract.reply import ToolCall as ToolCall
from worker.contract.reply import Usage as Usage
from worker.contract.results import CheckResult as CheckResult
from worker.contract.results import Compared as Compared
from worker.contract.results import Contradiction as Contradiction
from worker.contract.results import Digest as Digest
from worker.contract.results import Instruction as Instruction
from worker.contract.results import Observation as Observation
from worker.contract.results import ObservationStatus as ObservationStatus
from worker.contract.results import PatchStat as PatchStat
from worker.contract.results import PlanItem as PlanItem
from worker.contract.results import Reported as Reported
from worker.contract.results import SnapshotRef as SnapshotRef
from worker.contract.task import Frozen, later
from worker.contract.zones import Moment as Moment

JOURNAL_VERSION: Final = 4
"""2 added `instructions` to `prepared` and `price_source` to `compacted`; 3 added `delegated`,
`paced` to `parked` and `waited_ms` to every line; 4 added what JUnit XML tells to checks and `verdict`, `guards` to
`verdict` and `fed_back`, `contradictions` and `reused` to `sealed`, `image_name`
to `prepared`."""


FailureClass = Literal["limit", "agent", "refused", "provider", "env", "infra"]
REASONS: dict[str, frozenset[str]] = {
    "limit": frozenset({"steps", "tokens", "cost", "wall", "context", "batch_budget", "day_budget"}),
    "agent": frozenset({"loop", "empty_replies", "malformed_calls", "failing_calls"}),
    "refused": frozenset({"refusal", "content_filter", "guard"}),
    "provider": frozenset({"auth", "bad_request", "connection", "unavailable"}),
    "env": frozenset({"repository", "ref", "setup", "image", "check"}),
    "infra": frozenset({"worker_lost", "engine", "keeper", "store", "disk"}),
}
"""The closed set: why a run failed. class -> reasons."""

OutcomeName = Literal["changed", "no_change", "failed", "cancelled", "skipped", "reused"]
VerdictName = Literal["verified", "unverified", "still_failing", "broke", "flaky"]
DecisionName = Literal["approved", "denied", "answered", "cancelled", "expired"]
MessageKind = Literal["message", "cancel", "pause", "unpause", "closed", "budget", "breaker"]


class Failure(Frozen):
    """cls and reason come from REASONS; detail is one line for a person."""

    cls: FailureClass
    reason: str
    detail: str = ""

    def model_post_init(self, _: Any) -> None:
        if self.reason not in REASONS[self.cls]:
            raise ValueError(f"{self.cls}/{self.reason} is not in the closed set")

    def __str__(self) -> str:
        return f"{self.cls}/{self.reason}"


class Submitted(Frozen):
    """The first line of a journal. A fork names its parent, the segment it was forked at and that line's hash; what
    stands after it in segment 0 was copied from the parent (see fork.py)."""

    type: Literal["submitted"] = "submitted"
    by: str
    parent: str | None = None
    parent_seq: int | None = None
    parent_hash: Digest | None = None


class Claimed(Frozen):
    """A lease holder starts a stretch of the run; the attempt is named by this event's segment number.

    previous: how the attempt before ended, as far as known ("" for the first).
    """

    type: Literal["claimed"] = "claimed"
    worker: str
    engine: str
    lane: str
    previous: str = ""


class Prepared(Frozen):
    """environment: digest of env.json; takeover, verdict and fork use digests, never the key. snapshot: the level 0
    of its own that a fork begins with; None for a run that starts from the environment's. instructions: nearest to
    the start folder first; a fork has them from its parent. image: the engine's id. image_name: that was chosen by
    what the repository holds; None for a task that says which."""

    type: Literal["prepared"] = "prepared"
    environment_key: str
    environment: Digest
    baseline: Digest | None = None
    commit: str
    image: str
    image_name: str | None = later(None)
    reused: bool
    duration_ms: int = 0
    snapshot: SnapshotRef | None = None
    instructions: tuple[Instruction, ...] = later(())


class Replied(Frozen):
    """step counts from 1. phase: commands (no model was asked) or model."""

    type: Literal["replied"] = "replied"
    step: int
    phase: Literal["commands", "model"]
    reply: Reply
    context_tokens: int = 0
    duration_ms: int = 0


class Called(Frozen):
    """An outside call is about to start (recorded before, because it cannot be rolled back)."""

    type: Literal["called"] = "called"
    call_id: str


class Observed(Frozen):
    type: Literal["observed"] = "observed"
    observation: Observation
    snapshot: SnapshotRef | None = None
    plan: tuple[PlanItem, ...] | None = None
    files: tuple[str, ...] = ()


class Delegated(Frozen):
    """The delegate of a call has come as far as segment `seq` of its own journal, where a line has this hash. usage,
    cost_microusd: of its replies since the last such event of the call; the run pays for them."""

    type: Literal["delegated"] = "delegated"
    call_id: Annotated[str, Field(pattern=r"^\w{1,100}$")]
    seq: int
    hash: Digest
    usage: Usage = Usage()
    cost_microusd: int | None = 0


class Asked(Frozen):
    """A call needs a person; binding is the digest of tool, arguments and snapshot that a decision names."""

    type: Literal["asked"] = "asked"
    call_id: str
    kind: Literal["approval", "question"] = "approval"
    question: str
    binding: Digest


class Decided(Frozen):
    type: Literal["decided"] = "decided"
    call_id: str
    decision: DecisionName
    by: str
    decided_at: str = ""
    reason: str = ""


class Steered(Frozen):
    """A message of the run's inbox or its batch's control (scope) was read. n: its number there. Only a `message`
    reaches the model. The text of a `budget` is what the whole batch may spend from now on, in dollars."""

    type: Literal["steered"] = "steered"
    scope: Literal["run", "batch"] = "run"
    n: int
    kind: MessageKind
    by: str
    sent_at: str = ""
    text: str = ""


class Parked(Frozen):
    """The run waits without a worker. paced: for its turn at the rate of its provider's account, so that nothing is
    wrong with the provider."""

    type: Literal["parked"] = "parked"
    waiting: Literal["approval", "question", "window", "provider", "budget", "paused"]
    until: Moment | None = None
    detail: str = ""
    paced: bool = later(False)


class Yielded(Frozen):
    """The attempt gave the run back. not_before: UTC time before which nobody should claim it again."""

    type: Literal["yielded"] = "yielded"
    why: Literal["drain", "infra", "lost"]
    failure: Failure | None = None
    not_before: Moment | None = None


class Unrecorded(Frozen):
    """Money that may have been spent on a reply nobody kept: at most the estimate of that call."""

    type: Literal["unrecorded"] = "unrecorded"
    cost_microusd: int | None = None
    tokens: int = 0
    detail: str = ""


class Compacted(Frozen):
    """The context before step `through` is replaced by summary. An empty summary replaces nothing: what the model
    wrote was of no use, and only its cost counts."""

    type: Literal["compacted"] = "compacted"
    through: int
    summary: str
    usage: Usage = Usage()
    cost_microusd: int | None = None
    price_source: str = later("")


class FedBack(Frozen):
    """The model has the turn again: red checks are shown to it and the guards that its patch hit, or, without any,
    words that came as it finished."""

    type: Literal["fed_back"] = "fed_back"
    text: str
    checks: tuple[CheckResult, ...] = ()
    guards: tuple[str, ...] = later(())


class Finished(Frozen):
    """The agent's part is over. failure is None when it said it was done."""

    type: Literal["finished"] = "finished"
    text: str = ""
    failure: Failure | None = None


class Verdict(Frozen):
    """What the clean room measured. verdict is None when nothing was to be measured (cancelled).

    tests: one a check whose reports could be compared; matrix: digest of a blob with every test of them. guards: what
    the patch does that the task forbids, one line each.
    """

    type: Literal["verdict"] = "verdict"
    verdict: VerdictName | None
    checks: tuple[CheckResult, ...] = ()
    baseline: tuple[CheckResult, ...] = ()
    patch: PatchStat = PatchStat()
    duration_ms: int = 0
    tests: tuple[Compared, ...] = later(())
    matrix: Digest | None = later(None)
    guards: tuple[str, ...] = later(())


class Sealed(Frozen):
    """The end of a run, written once. artifacts: name -> digest under the run's blobs.

    damaged: number of the first segment that cannot be read, None for a sound journal. Such a seal follows the last
    sound line in the chain and the last segment in number: what lies between is neither read nor hidden.
    contradictions: of the agent's last words with what was measured (see claims.py).
    reused: the run whose equal work was verified earlier, where the outcome is that; its patch is this one's.
    """

    type: Literal["sealed"] = "sealed"
    outcome: OutcomeName
    verdict: VerdictName | None = None
    failure: Failure | None = None
    artifacts: dict[str, Digest] = {}
    detail: str = ""
    damaged: int | None = None
    reused: str | None = later(None)
    contradictions: tuple[Contradiction, ...] = later(())


Event = Annotated[
    Submitted
    | Claimed
    | Prepared
    | Replied
    | Called
    | Observed
    | Delegated
    | Asked
    | Decided
    | Steered
    | Parked
    | Yielded
    | Unrecorded
    | Compacted
    | FedBack
    | Finished
    | Verdict
    | Sealed,
    Field(discriminator="type"),
]


class Record(Frozen):
    """One line of a journal.

    seq: number of its segment; at: UTC, ISO 8601 with milliseconds; attempt: seq of the claim it was written
    under, None for the scheduler's; nonce: of this append, so that a writer whose answer was lost knows its own;
    prev: SHA-256 of the line before, without its newline (for the very first: of task.json). waited_ms: how long
    the attempt had waited, since what it committed before, for its turn at the rate of a provider's account: that
    was no working time.
    """

    v: Literal[1, 2, 3, 4] = JOURNAL_VERSION
    run: str
    seq: int
    at: Moment
    attempt: int | None = None
    nonce: str
    prev: Digest
    waited_ms: Annotated[int, Field(ge=0)] = later(0)
    event: Event

    def line(self) -> bytes:
        """The record as its canonical JSON line, without newline.

        A field `sum`, the SHA-256 of the line without it, is added: the chain covers every line but the last, and
        a byte that flips in the last must be noticed too.
        """
        return _summed(self.model_dump(mode="json"))

    @classmethod
    def parse(cls, line: bytes) -> Record:
        """The record of a line, exactly as `line` wrote it. Raises ValueError for anything else."""
        fields = read_json(line)
        if not isinstance(fields, dict) or _summed(fields) != line:
            raise ValueError("not the bytes that were written")
        del fields["sum"]
        return cls.model_validate(fields)


def _summed(fields: dict[str, Any]) -> bytes:
    rest = {name: value for name, value in fields.items() if name != "sum"}
    return canonical(rest | {"sum": digest(canonical(rest))})
