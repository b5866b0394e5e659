"""Owns what is stored of a prepared environment: env.json and the baselines beside it. Refuses to prepare one."""

from __future__ import annotations

from typing import Final, Literal

from worker.contract.events import CheckResult, Digest, Instruction
from worker.contract.frozen import Frozen, later
from worker.contract.results import Colour

ENVIRONMENT_VERSION: Final = 2
"""2 added `instructions`."""
BASELINE_VERSION: Final = 2
"""2 added `tests`."""


class PreparedEnvironment(Frozen):
    """`environments/<key>/env.json`, written once: where every run with this key starts.

    branch: "" when the ref is a tag or commit. image_name: what an engine calls the image that it was made of; image:
    the engine's id of the image that calls run in; setup_tag: the name that `setup`'s image has on an engine, None
    without setup.
    stored_image: digest of an image under `images/`, None when it is not stored. snapshot: digest of the level 0, a
    blob beside env.json, of snapshot_bytes. listing, tree: digests of the workspace (see SnapshotRef). tracked:
    files of the start commit, those of submodules included. notes: what a person should know, one line each.
    instructions: what the repository tells agents.
    """

    v: Literal[1, 2] = ENVIRONMENT_VERSION
    key: Digest
    commit: str
    branch: str
    image_name: str
    image: str
    setup_tag: str | None = None
    stored_image: Digest | None = None
    snapshot: Digest
    snapshot_bytes: int
    listing: Digest
    tree: Digest
    tracked: int
    notes: tuple[str, ...] = ()
    instructions: tuple[Instruction, ...] = later(())


class BuiltImage(Frozen):
    """`images/built-<digest>.json`: the image that somebody built of a Dockerfile, its bases and cache keys, whose
    digest that is. image: the engine's id; stored_image: digest of its object under `images/`. What says so may go at
    any time: then the image is built anew."""

    v: Literal[1] = 1
    image: str
    stored_image: Digest


class Baseline(Frozen):
    """`environments/<key>/baselines/<digest of checks and limits>.json`: the checks on the untouched start commit.

    Blobs of the results lie beside env.json. tests: of each check that wrote a report, test -> how it ended.
    """

    v: Literal[1, 2] = BASELINE_VERSION
    checks: tuple[CheckResult, ...]
    tests: dict[str, dict[str, Colour]] = later({})
