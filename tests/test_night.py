"""A night over published packages, with the pieces of deploy/night.sh: an independent script must agree with every
verdict. Needs the package index."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from deployments import Deployment

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

NIGHT = Path(__file__).parents[1] / "deploy" / "night"


def program(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """A program of deploy/night, as the script runs it."""
    command = [sys.executable, str(NIGHT / name), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_an_independent_script_agrees_over_all_packages(deployment: Deployment, tmp_path: Path) -> None:
    """With every verdict over every package of deploy/night/packages.toml: none fails, and some whose own tests are
    red here before and after are told to be so."""
    fetched = program("fetch.py", tmp_path / "sdists")
    assert fetched.returncode == 0, fetched.stderr
    targets = [{"repo": line} for line in fetched.stdout.splitlines()]
    manifest = tmp_path / "night.yaml"
    manifest.write_text((NIGHT / "night.yaml").read_text() + f"targets: {json.dumps(targets)}\n")
    done = deployment.dawn("submit", manifest, "--json", timeout_s=1200)
    rows = done.json["runs"]
    assert len(rows) == len(targets) > 0, done
    judged = program("verify.py", deployment.archive_url.removeprefix("file://"))
    assert judged.stdout.splitlines()[-1] == f"{len(targets)} of {len(targets)} verdicts agree", judged
    assert judged.returncode == 0
    assert deployment.left() == []
    assert {row["outcome"] for row in rows} == {"changed", "no_change"}
