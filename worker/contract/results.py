"""Owns the nouns that events carry: what a call, a snapshot, a check and a patch came to. Refuses to be an event."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from worker.contract.frozen import Frozen, later

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256, 64 lower-case hex digits."""

ObservationStatus = Literal["ok", "error", "timeout", "oom", "denied", "interrupted"]

Colour = Literal["passed", "failed", "skipped"]
"""How one test of a report ended; an error is a failure."""

Kind = Literal[
    "fixed", "broke", "flaky", "still_failing", "new_failing", "new_passing", "removed", "skipped_now", "passing",
    "skipped",
]  # fmt: skip
"""What became of one test between the start commit and the patch (see matrix.py)."""
KINDS: tuple[Kind, ...] = get_args(Kind)


class SnapshotRef(Frozen):
    """The workspace after a committed call.

    listing: digest of the whole listing. tree: digest of the work tree without .git, caches and ignored
    files. object: digest of the stored archive of changes, None when nothing changed. level: 0 for a full
    one, else the number of changes on top of the last full one. bytes: size of the object.
    """

    listing: Digest
    tree: Digest
    object: Digest | None = None
    level: int = 0
    bytes: int = 0


class Observation(Frozen):
    """What the model is told of a call. output is masked text, cut to the shown cap; blob holds the kept bytes.

    total_bytes: what the command wrote in all; kept_bytes: what the blob holds.
    """

    call_id: str
    tool: str
    status: ObservationStatus
    exit_code: int | None = None
    output: str = ""
    blob: Digest | None = None
    total_bytes: int = 0
    kept_bytes: int = 0
    duration_ms: int = 0


class Reported(Frozen):
    """The tests that a check's JUnit XML tells of. notes: what of it could not be read, one line each."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: tuple[str, ...] = ()


class CheckResult(Frozen):
    """One check in one room. status: green, red, timeout, oom, not_found (exit code 127 or 126). reported: None where
    no report was asked for, or none was written."""

    name: str
    status: Literal["green", "red", "timeout", "oom", "not_found"]
    exit_code: int | None = None
    duration_ms: int = 0
    blob: Digest | None = None
    tail: str = ""
    reported: Reported | None = later(None)


class Compared(Frozen):
    """The tests of one check against its baseline. counts: of those kinds that there are. named: the first tests of
    each kind that people want named."""

    check: str
    counts: dict[Kind, int]
    named: dict[Kind, tuple[str, ...]] = {}


class Contradiction(Frozen):
    """Something the agent's last words say, and what was measured instead: one line each."""

    claim: str
    evidence: str


class PatchStat(Frozen):
    """files: path -> (lines added, lines removed), None for binary. left_out: path -> why it is not inside."""

    digest: Digest | None = None
    bytes: int = 0
    files: dict[str, tuple[int, int] | None] = {}
    left_out: dict[str, str] = {}
    notes: tuple[str, ...] = ()

    @property
    def added(self) -> int:
        """Lines, of all its files that are no binary ones."""
        return sum(lines[0] for lines in self.files.values() if lines is not None)

    @property
    def removed(self) -> int:
        return sum(lines[1] for lines in self.files.values() if lines is not None)


class PlanItem(Frozen):
    """One line of the agent's plan."""

    text: str
    status: Literal["todo", "doing", "done"] = "todo"


class Instruction(Frozen):
    """A file in which the repository speaks to agents. path: below the repository; text: masked, cut where all of
    them together are too long."""

    path: str
    text: str
