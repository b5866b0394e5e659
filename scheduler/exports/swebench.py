"""Owns SWE-bench predictions, one JSON object a line: instance_id, model_name_or_path, model_patch. Refuses a patch
that is not text, which this format cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scheduler.exports.chosen import Chosen, patch_of
from scheduler.exports.words import encoded
from worker.contract.errors import InvalidFault
from worker.contract.task import Task

INSTANCE: Final = "instance="
"""What the label of a run begins with that is one of an instance (see imports/swebench.py)."""


def instance_of(task: Task) -> str:
    """The instance that a run is of: its label says it, else its target's name stands for it."""
    return next((label.removeprefix(INSTANCE) for label in task.labels if label.startswith(INSTANCE)), task.target)


def lines(chosen: Chosen) -> Iterator[bytes]:
    """A prediction for each run that has ended; one without a patch has an empty one, which counts as not solved."""
    for view in chosen.ended:
        try:
            patch = patch_of(chosen.archive, view).decode()
        except UnicodeDecodeError:
            raise InvalidFault(
                f"the patch of run {view.task.run} is not UTF-8 and fits no prediction",
                hint="export it as it is: --format patches",
            ) from None
        prediction = {
            "instance_id": instance_of(view.task),
            "model_name_or_path": view.task.model,
            "model_patch": patch,
        }
        yield encoded(prediction) + b"\n"
