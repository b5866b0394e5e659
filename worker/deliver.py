"""Owns the way from a sealed run's patch to its branch and pull request: lease > look > build > push > open. Refuses
to push over what is not ours, and to act without a record of it: what it is about to do is in the archive before, and
what came of it after. Whoever comes next finds there and on the forge how far it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import structlog

from worker.branch import Branch, Built, Refused, volume
from worker.contract import commit
from worker.contract.cancel import Cancel
from worker.contract.delivered import (
    Delivered,
    Delivery,
    accounts,
    branch_of,
    delivered,
    delivery_of,
    patch_of,
    readiness,
    review_state,
    token_of,
)
from worker.contract.delivery import Deliver, filled
from worker.contract.errors import (
    ConflictFault,
    EngineFault,
    EnvironmentFault,
    Fault,
    ForgeFault,
    IntegrityFault,
    NotFoundFault,
    StoreFault,
)
from worker.contract.run import Run
from worker.contract.task import Task
from worker.forges.open import open_forge
from worker.forges.protocol import Forge, PullRequest, marked
from worker.lease import Lease
from worker.station import Station
from worker.store.deliveries import mark, read_deliveries, read_reviews, write_delivery
from worker.store.inbox import Control
from worker.store.journal import Journal
from worker.toolbox import Cancelled

LOG = structlog.get_logger(__name__)

AGAIN_S: Final = 120.0
"""After what may go better another time: a forge or a remote that is away."""
FULL_S: Final = 900.0
"""Until a repository with as many open pull requests as may be is looked at again."""
DETAIL_CHARS: Final = 500

OpenForge = Callable[[str, Deliver, str], Forge]
T = TypeVar("T")


def run(run_id: str, station: Station, opens: OpenForge | None = None) -> str:
    """Deliver the run as far as it may go now. How that ended, for the log: `delivered`, `failed`, `held` or `later`
    for another time, `cancelled`, `lost` to somebody else, or `nothing` where there was nothing to do. opens: for
    (address, what is asked, token) the forge. Raises HintsFault when Redis is away."""
    cancel, journal = Cancel(), Journal(station.archive, run_id)
    try:
        task, folded = journal.task(), journal.load()
    except NotFoundFault:
        return "nothing"
    if task.deliver is None or folded.sealed is None:
        return "nothing"
    try:
        with Lease(station.hints, delivery_of(run_id), station.settings, cancel) as lease:
            return _Delivery(station, task, task.deliver, folded, lease, cancel, opens or _opens(station)).deliver()
    except ConflictFault:
        return "lost"
    except Cancelled:
        return "cancelled" if cancel.reason == "cancel" else "lost"
    except (ForgeFault, EngineFault, EnvironmentFault, StoreFault) as fault:
        wait_s = fault.retry_after_s if isinstance(fault, ForgeFault) else None
        LOG.warning("delivery_waits", fault=station.redactor.text(str(fault)), retry_after_s=wait_s)
        everybody, _, alone = accounts(task)
        station.hints.hold(alone if wait_s is None else everybody, wait_s or AGAIN_S)
        return "later"


def _opens(station: Station) -> OpenForge:
    return lambda url, deliver, token: open_forge(url, deliver, token, station.settings.ca_bundle)


@dataclass
class _Delivery:
    """One try at one run. fold: of its records, as far as they are written. marked: it counts for this hour."""

    station: Station
    task: Task
    asked: Deliver
    folded: Run
    lease: Lease
    cancel: Cancel
    opens: OpenForge
    fold: Delivered = field(default_factory=Delivered)
    marked: bool = False

    def deliver(self) -> str:
        archive, name = self.station.archive, self.task.run
        self.fold = delivered(read_deliveries(archive, name))
        review = review_state(self.folded, read_reviews(archive, name))
        ready = readiness(self.task, self.folded, review, asked=self.fold.asked) == "ready"
        if not ready or self.fold.ends(self.asked.kind):
            return "nothing"
        self.lease.each_beat(self._mind)
        try:
            return self._deliver()
        except (Refused, IntegrityFault) as refused:
            reason = str(refused)
        except ForgeFault as fault:
            if fault.retryable:
                raise
            reason = str(fault)
        reason = self.station.redactor.text(reason)[:DETAIL_CHARS]
        self._write("failed", state="error", detail=reason)
        LOG.warning("delivery_failed", detail=reason)
        return "failed"

    def _deliver(self) -> str:
        url, name = self.task.repo.url, branch_of(self.task)
        if url is None:
            raise Refused("the repository is a local one: there is nowhere to push, dawn diff has the patch")
        token = self._token()
        forge = self.opens(url, self.asked, token) if self.asked.kind != "branch" else None
        found = self._first(lambda: forge.find(name)) if forge else None
        with volume(self.station, self.task, self.folded) as workspace:
            branch = Branch(workspace, self.task, url, token, self.cancel, self._may_act)
            made = branch.build(self.station, self.folded)
            if (ended := self._without_push(made, found, name)) is not None:
                return ended
            if made.tip != made.commit:
                if forge and not (found and found.open) and (ended := self._elsewhere(forge, name)) is not None:
                    return ended
                self._push(branch, made)
        if forge is None:
            if self.fold.state != "branch" or self.fold.asked:  # it was pushed before
                self._write("saw", state="branch", branch=name, commit=made.commit)
            return "delivered"
        return self._pull_request(forge, name, made)

    def _without_push(self, made: Built, found: PullRequest | None, name: str) -> str | None:
        """The end of a delivery that needs no push; None where it goes on. Raises Refused where it may have none."""
        if made.there:
            self._write("saw", state="merged", branch=name, detail=f"{made.base} has these changes already")
            return "delivered"
        again = self.fold.asked and self.fold.state in ("closed", "error")
        if found is not None and not found.open and self._is_of_this_patch(found) and not again:
            detail = "somebody closed it; dawn deliver opens another" if found.state == "closed" else ""
            return self._saw(found, made, detail)
        if made.tip in ("", made.commit) or self._ours(made):
            return None
        if found is not None and found.open and made.holds:
            return self._saw(found, made, "somebody has gone on from it")
        raise Refused(f"branch {name} has commits of somebody else, the last by {made.tip_by}: {made.tip[:12]}")

    def _ours(self, made: Built) -> bool:
        """Whether the branch is where we left it: this run, or an earlier one of the same target that its last commit
        names. Who forges that name has not written our records."""
        if made.tip in self.fold.tips:
            return True
        try:
            task = Journal(self.station.archive, made.tip_run).task() if made.tip_run else None
        except StoreFault:
            raise
        except Fault:  # no run of ours, or one that cannot be read
            return False
        if task is None or (task.batch, task.target) != (self.task.batch, self.task.target):
            return False
        return made.tip in delivered(read_deliveries(self.station.archive, task.run)).tips

    def _elsewhere(self, forge: Forge, name: str) -> str | None:
        """The end of a delivery whose patch is open already, or for which there is no room; None where it goes on."""
        ours = self._first(forge.ours)
        for one in ours:
            if one.branch != name and self._marks.items() <= dict(one.marks).items():
                about = {"url": one.url, "number": one.number}
                self._write("saw", state=one.state, detail=f"the same patch is open as {one.branch}", **about)
                return "delivered"
        if len(ours) < self.asked.open_per_repo:
            return None
        LOG.info("delivery_held", open=len(ours))
        self.station.hints.hold(accounts(self.task)[1], FULL_S)
        return "held"

    def _push(self, branch: Branch, made: Built) -> None:
        about = {"branch": branch.name, "before": made.tip, "commit": made.commit}
        self._intend("push", **about)
        branch.push(made.tip, made.commit)
        self._write("push", state="branch", **about)

    def _pull_request(self, forge: Forge, name: str, made: Built) -> str:
        """Open it, or bring the one that is there up to date."""
        title, body, about = (
            commit.subject(self.task, self.folded),
            self._body(),
            {"branch": name, "commit": made.commit},
        )
        found, act = self._first(lambda: forge.find(name)), "saw"
        if found is None or not found.open:
            self._intend(act := "open", **about)
            draft, base = self.asked.kind == "draft_pr", made.base
            found = self._first(lambda: forge.open(branch=name, base=base, title=title, body=body, draft=draft))
        number = found.number
        if not self._is_of_this_patch(found):
            if act == "saw":
                self._intend(act := "update", **about)
            self._first(lambda: forge.update(number, title=title, body=body))
        if self.asked.labels or self.asked.reviewers:
            self._first(lambda: forge.furnish(number, labels=self.asked.labels, reviewers=self.asked.reviewers))
        self._write(act, state=found.state, url=found.url, number=number, **about)
        return "delivered"

    def _saw(self, found: PullRequest, made: Built, detail: str) -> str:
        about = {"branch": found.branch, "commit": made.commit, "url": found.url, "number": found.number}
        self._write("saw", state=found.state, detail=detail, **about)
        return "delivered"

    def _is_of_this_patch(self, found: PullRequest) -> bool:
        """One whose marks a person has removed counts as it."""
        return found.marks.get("patch", self._marks["patch"]) == self._marks["patch"]

    @property
    def _marks(self) -> dict[str, str]:
        """What two runs have in common that came to the same."""
        prepared = self.folded.prepared
        assert prepared is not None, "a patch has a base"
        return {"patch": str(patch_of(self.folded)), "base": prepared.commit}

    def _body(self) -> str:
        summary = self.folded.sealed.artifacts.get("summary.md") if self.folded.sealed else None
        journal = Journal(self.station.archive, self.task.run)
        text = "" if summary is None else journal.get_blob(summary).decode("utf-8", "replace")
        words = {name: commit.harmless(word) for name, word in commit.words(self.task, self.folded, text).items()}
        return marked(filled(self.asked.body, words), run=self.task.run, **self._marks)

    def _token(self) -> str:
        name = token_of(self.task)
        if not name:
            raise Refused("no token is named: `token: NAME` in deliver")
        token = self.station.secrets.get(name, "").strip()
        if not token:
            raise Refused(
                f"the token {name} has no value at worker {self.station.name}: set DAWN_SECRET_{name} there"
            )
        return token

    def _first(self, act: Callable[[], T]) -> T:
        """Act, if it still may."""
        self._may_act()
        return act()

    def _may_act(self) -> None:
        """Nothing begins past the lease's own deadline: somebody else may deliver by then."""
        self.lease.wait_current()
        if self.cancel.is_set():
            raise Cancelled(self.cancel.reason)

    def _mind(self) -> None:
        """End a delivery whose batch is cancelled, unless a person asked for this very one."""
        name, seen = f"batch:{self.task.batch}", self.folded.control_seen
        if not self.fold.asked and self.station.hints.poked([name]):
            said = Control(self.station.archive, self.task.batch).read(seen)
            if any(message.kind == "cancel" for message in said):
                self.cancel.set("cancel")

    def _intend(self, act: str, **about: Any) -> None:
        """Say what will be done; the first of it counts for this hour."""
        if not self.marked:
            mark(self.station.archive, self.task.run, token_of(self.task), self.station.now())
            self.marked = True
        self._write(act, step="intent", **about)

    def _write(self, act: str, **about: Any) -> None:
        """Raises ConflictFault when somebody else has the number."""
        who = {"by": self.station.name, "at": self.station.now(), "patch": self._marks["patch"]}
        record = Delivery.model_validate({"n": self.fold.seen, "act": act, **who, **about})
        write_delivery(self.station.archive, self.task.run, record)
        self.fold = self.fold.after(record)
