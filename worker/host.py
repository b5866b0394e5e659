"""Owns the words between the loop and its attempt: Host, Tools, Stopped. Refuses to implement them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from worker.contract.cancel import Cancel
from worker.contract.events import Asked, Event, Parked, Record, ToolCall
from worker.contract.run import Run
from worker.contract.task import Task
from worker.models.protocol import ToolSpec
from worker.policy import Ruling
from worker.tools.tool import Tool


@dataclass(frozen=True)
class Stopped:
    """The attempt's Cancel was thrown (why: its reason). Nothing was committed for it; a call in flight is undone."""

    why: str


class Host(Protocol):
    """What the loop needs of its attempt. The records and the run always agree.

    Both end at the last commit, or at one observation that is *shown* ahead of its commit, which goes on in the
    background while the model thinks. There is at most one: every other commit and the next call wait for it first.
    What its commit raises (FencedFault, StoreFault, EngineFault) is raised there or by `settle`, and then run and
    records are again as of the last commit.
    """

    @property
    def task(self) -> Task: ...

    @property
    def cancel(self) -> Cancel:
        """Thrown from another thread to end the attempt now."""
        ...

    @property
    def run(self) -> Run:
        """The fold after the last record."""
        ...

    def records(self) -> Sequence[Record]:
        """The whole transcript, oldest first."""
        ...

    def working_s(self) -> float:
        """Working time of the run up to now, seconds (Run.working_s and what passed since the last commit)."""
        ...

    def commit(self, *events: Event) -> None:
        """Append the events as one segment. FencedFault when the run is no longer ours, StoreFault as it comes."""
        ...

    def inbox(self) -> Parked | Stopped | None:
        """Consume waiting messages (commits `steered`); says whether they ask to park (committed) or to stop."""
        ...

    def before_call(self, call: ToolCall, arguments: BaseModel) -> Ruling:
        """What the deployment's own hook says of a call."""
        ...

    def ask(self, asked: Asked) -> Parked:
        """Commit the question, and park until a person decides or it expires."""
        ...

    def wait_turn(self, wait_s: float) -> bool:
        """Wait for the rate of a provider's account, which is no working time; True when Cancel was thrown."""
        ...

    def wait_for_provider(self, pause_s: float, detail: str, *, paced: bool = False) -> Parked:
        """Commit that the run waits for its provider for so long, and why. paced: for its account's rate."""
        ...

    def wait_for_budget(self, until: str | None, detail: str) -> Parked:
        """Commit that the run waits for money: until that time, or until somebody raises the budget of its batch."""
        ...

    def observe(self, call: ToolCall, tool: Tool, arguments: Any) -> Parked | Stopped | None:
        """Run the call and show what came of it; the snapshot and the commit follow in the background. Stopped when
        Cancel was thrown and the call is undone, Parked (committed) when it waits and will be run again.

        Whatever a command does wrong is an observation. EngineFault and StoreFault as they come. The host bounds
        a call's time by the working time that is left.
        """
        ...

    def settle(self) -> bool:
        """Wait until all that is shown is committed; False when another observation was committed than was shown,
        because the workspace could not keep what the call did."""
        ...


class Tools(Protocol):
    """The tools on offer: what the model reads of them, and a call's text made into a tool with arguments."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]: ...

    def parse(self, call: ToolCall) -> tuple[Tool, Any] | str:
        """The tool and its validated arguments, or the error text that the model gets instead."""
        ...
