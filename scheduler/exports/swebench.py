"""Owns SWE-bench predictions, one JSON object a line: instance_id, model_name_or_path, model_patch. Refuses a patch
that is not text, which this format cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.exports.chosen import Chosen, maker, patch_of
from scheduler.exports.words import encoded
from worker.contract.errors import InvalidFault


def lines(chosen: Chosen) -> Iterator[bytes]:
    """A prediction for each target whose run has ended, named by its id. One without a patch has an empty one, which
    counts as not solved."""
    for view in chosen.standing:
        try:
            patch = patch_of(chosen.archive, maker(chosen.archive, view.run)).decode()
        except UnicodeDecodeError:
            raise InvalidFault(
                f"the patch of run {view.task.run} is not UTF-8 and fits no prediction",
                hint="export it as it is: --format patches",
            ) from None
        prediction = {
            "instance_id": view.task.target,
            "model_name_or_path": view.task.model,
            "model_patch": patch,
        }
        yield encoded(prediction) + b"\n"
