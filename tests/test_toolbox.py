"""What is told of one of our in-container programs that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worker.contract.cancel import Cancel
from worker.contract.errors import EngineFault
from worker.sandbox.protocol import Output, Result
from worker.toolbox import SAID_CHARS, ask

SECRET = "hunter2-hunter2-hunter2"


@pytest.mark.parametrize("kept", [1, len(SECRET) // 2, len(SECRET) - 1, len(SECRET)])
def test_half_a_secret_at_the_edge_of_a_cut_is_masked(tmp_path: Path, kept: int) -> None:
    """What a program said is masked before it is cut: later nobody would find a part of it."""
    rest = "x" * (SAID_CHARS - kept)

    class Failed:
        def run(self, command: Any, *, cancel: Cancel) -> Result:
            (path := tmp_path / "output").write_text(f"fatal: {SECRET}{rest}")
            size = path.stat().st_size
            return Result("ok", 1, Output(path, size, size, size), 1)

    with pytest.raises(EngineFault) as caught:
        ask(Failed(), "x", {"op": "y"}, timeout_s=1, cancel=Cancel(), secrets={"TOKEN": SECRET})  # type: ignore[arg-type]
    assert SECRET[-kept:] + "x" not in str(caught.value)
    assert str(caught.value).endswith(rest)
