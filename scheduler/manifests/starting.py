"""Owns the manifest that a new user starts from. Refuses to ask for anything that leaves the machine or costs money.

A line of it that begins with `#` and no blank is a setting that works when the `#` is taken away.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scheduler.manifests import pack
from scheduler.manifests.targets import locate
from worker.contract.places import read

SOMEWHERE: Final = "https://git.example.org/team/service"

START: Final = """\
# A batch for Dawnfleet: one task, asked of many repositories.
#
#   dawn validate fleet.yaml     every mistake at once, offline
#   dawn submit fleet.yaml       run it; the same again completes what is missing
#
# A # without a blank behind it is a setting to take over. All of them, with what they mean: dawn schema
# Nothing leaves this machine: what comes of each run is a patch, and its verdict, in the archive.

version: 1
name: fleet

targets:
TARGETS
  # Also what a table (columns repo, ref, path, image, id; any other is a var) or a plain list names, every
  # repository in a folder, what failed in an earlier batch, and what an organization or a group of a forge has:
  #- file: repositories.csv
  #- folder: clones/
  #- previous: {batch: fleet, where: [failed, still_failing]}
  #- github: {org: acme, topic: nightly, token: GITHUB}
  #- gitlab: {group: acme/web, token: GITLAB}
#exclude: ["*/legacy-*"]
#max_targets: 100

task:
  # Commands run first, in order. {{ vars.NAME }}, {{ repo.label }} and {{ target.id }} are filled for each target.
  commands:
    - git log -1 --stat
  # A model goes on from there, until the checks are green or a limit is met.
  #model: anthropic/NAME
  #prompt_file: prompt.md

environment:
  # python, node, base, any image of the engine; auto: by what the repository holds; {dockerfile: PATH}: built of it
  image: python
  #setup: pip install -e .
  # Another word has every environment prepared anew.
  #cache_keys: ["2026-11"]

# Each must exit with 0 when the work is done. They also run on the untouched code, to know what was red before.
#checks: [tests=pytest -q, lint=ruff check .]

# Of one run, and of all together.
limits: {steps: 50, working_time_s: 1800, cost_usd: 1}
budget: {usd: 10, on_limit: pause}

# What a patch may not do; workflows of the repository's own CI are protected without a word.
#guards: {max_files: 50, max_lines: 2000}

# A few targets first, then a quarter, then the rest; no more of them once too many have failed.
#waves: [3, 25%, rest]
#breaker: {failure_rate: 0.3, min_runs: 5}

# Runs pause at a committed step when the window closes, and go on when it opens again.
#window: {open: "22:00", close: "06:00", zone: Europe/Berlin}

# How far a patch goes: patch keeps it here. Others: branch, draft_pr, pr.
#deliver: {kind: patch, when: verified}

# A call that the policy asks about waits for a person: dawn approve, dawn deny.
on_ask: park
#labels: [team=web]
"""


def starting_manifest(origins: Sequence[str], folder: Path) -> str:
    """A manifest of these URLs, folders or archive files, which validates in folder; a folder of clones becomes one
    source. Raises InvalidFault for what cannot be a target."""
    entries = [_entry(text, folder) for text in origins or [SOMEWHERE]]
    return START.replace("TARGETS", "\n".join(entries))


def _entry(text: str, folder: Path) -> str:
    place = folder / Path(text).expanduser()
    if place.is_dir() and pack.git_dir(place) is None and any(pack.git_dir(one) for one in place.iterdir()):
        return f"  - folder: {_scalar(text)}"
    locate(text, folder)
    return f"  - repo: {_scalar(text)}\n    #ref: main\n    #vars: {{owner: somebody}}"


def _scalar(text: str) -> str:
    """As YAML: in quotes only where it would be read as something else."""
    return text if read(f"- {text}").data == [text] else json.dumps(text)
