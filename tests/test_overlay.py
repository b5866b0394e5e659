"""An archive that is read through and written beside."""

from __future__ import annotations

import pytest
from doubles import MemoryArchive

from worker.contract.errors import NotFoundFault
from worker.store.overlay import Overlay

FRESH = "runs/r1/journal/"


@pytest.fixture
def below() -> MemoryArchive:
    """Holds a run and an environment."""
    archive = MemoryArchive()
    for key in ("runs/r1/task.json", "runs/r1/journal/000000000.jsonl", "environments/e/env.json"):
        archive.create(key, b"below")
    return archive


@pytest.fixture
def overlay(below: MemoryArchive) -> Overlay:
    return Overlay(below, MemoryArchive(), fresh=(FRESH,))


def test_what_lies_below_is_read_and_cannot_be_created_again(overlay: Overlay) -> None:
    """As if it were one archive."""
    assert overlay.get("runs/r1/task.json") == b"below"
    assert b"".join(overlay.chunks("environments/e/env.json", start=2)) == b"low"
    assert not overlay.create("runs/r1/task.json", b"above")
    assert overlay.size("runs/r1/task.json") == 5


def test_the_fresh_folder_begins_empty(overlay: Overlay) -> None:
    """A journal can be written once more, and the old one is not in the way."""
    key = f"{FRESH}000000000.jsonl"
    assert list(overlay.list(FRESH)) == []
    with pytest.raises(NotFoundFault):
        overlay.get(key)
    assert overlay.create(key, b"above")
    assert not overlay.create(key, b"again")
    assert list(overlay.list("runs/r1/")) == [key, "runs/r1/task.json"]


def test_nothing_below_is_ever_changed(overlay: Overlay, below: MemoryArchive) -> None:
    """Whatever is written, replaced, deleted or swept."""
    before = {key: below.get(key) for key in below.list("")}
    overlay.create("runs/r1/blobs/b", b"above")
    overlay.overwrite("runs/r1/task.json", b"above")
    assert overlay.get("runs/r1/task.json") == b"above"
    overlay.delete(["runs/r1/task.json", "environments/e/env.json"])
    overlay.sweep(older_than_s=0)
    overlay.probe()
    assert {key: below.get(key) for key in below.list("")} == before
    assert sorted(overlay.folders("runs/r1/")) == ["blobs", "journal"]
