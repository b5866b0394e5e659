"""Owns the making of models that are programs. Refuses to say what they do: a test gives the lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worker.models.processes import Programs
from worker.models.program import ProgramModel

SECRETS = {"DAWN_MODEL_SECRET_ACME": "hunter2-hunter2", "DAWN_SECRET_FORGE": "not for models", "HOME": "/root"}


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Callable[..., ProgramModel]]:
    """Makes a model of the Python lines of a program."""
    opened: list[Programs] = []

    def made(lines: str, *words: str) -> ProgramModel:
        path = tmp_path / f"program{len(opened)}"
        path.write_text(f"#!{sys.executable} -I\nimport json, os, signal, sys\n{lines}\n")
        path.chmod(0o755)
        opened.append(Programs({"mine": " ".join([str(path), *words])}, SECRETS))
        return ProgramModel("command:mine/large", "mine", "large", opened[-1])

    yield made
    for each in opened:
        each.close()
