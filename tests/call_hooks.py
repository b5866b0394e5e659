"""Owns before-call hooks that run in real workers: one notes each call that begins, one eats memory. Refuses to rule:
every call is allowed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

STEP_BYTES = 16 * 2**20
MOST_BYTES = 2**30
"""Eaten at most, should nothing stop it: a test's control group allows far less."""


def notes(asked: dict[str, Any]) -> dict[str, str]:
    """Adds a line `run call` to the file that NOTED_CALLS names."""
    with open(os.environ["NOTED_CALLS"], "a") as file:
        file.write(f"{asked['run']} {asked['call']['id']}\n")
    return {"action": "allow"}


def eats(asked: dict[str, Any]) -> dict[str, str]:
    """Eats memory before the first call that it is asked about, and never again: `ate` lies beside the notes."""
    ate = Path(os.environ["NOTED_CALLS"]).with_name("ate")
    if not ate.exists():
        ate.touch()
        eaten = [bytearray(os.urandom(4096) * (STEP_BYTES // 4096)) for _ in range(MOST_BYTES // STEP_BYTES)]
        del eaten
    return notes(asked)
