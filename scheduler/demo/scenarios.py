"""Owns what each run of the demonstration must end as. Refuses to call anything else a success."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from scheduler.manifests import reading
from scheduler.runs import View
from worker.contract.task import Limits
from worker.store.archive import Archive
from worker.store.journal import Journal

FOLDER: Final = Path(__file__).parent

FORETOLD: Final = {
    "cart": ("changed", "verified", None),
    "calc": ("changed", "verified", None),
    "clock": ("changed", "verified", None),
    "gives-up": ("changed", "still_failing", None),
    "limit": ("failed", None, "limit/steps"),
}
"""Manifest -> outcome, verdict (None: not looked at), failure."""


def load(name: str, defaults: Limits) -> reading.Loaded:
    """A manifest of the demonstration."""
    return reading.load(FOLDER / f"{name}.yaml", defaults)


def diff(archive: Archive, view: View) -> str:
    """The patch of a run as text, "" when it has none."""
    artifacts = view.run.sealed.artifacts if view.run.sealed else {}
    if "patch.diff" not in artifacts:
        return ""
    return Journal(archive, view.task.run).get_blob(artifacts["patch.diff"]).decode("utf-8", "replace").rstrip("\n")


def last_words(view: View) -> str:
    """What a run without a patch left behind: the agent's words, or the report of how far it came."""
    return view.run.finished.text if view.run.finished else "nothing was done"


def surprises(views: Iterable[View]) -> list[str]:
    """One line for each run that did not end as its table foretells."""
    found = []
    for view in views:
        name = view.task.batch.removeprefix("demo-").rpartition("-")[0]
        outcome, verdict, failure = FORETOLD[name]
        sealed = view.run.sealed
        got = (sealed.outcome, sealed.verdict, str(sealed.failure or "")) if sealed else ("not sealed", None, "")
        if got[0] != outcome or got[2] != (failure or "") or verdict not in (None, got[1]):
            found.append(
                f"{name}: {got[0]} {got[1] or ''} {got[2]}, {outcome} {verdict or ''} {failure or ''} was due"
            )
    return found
