"""Owns images of a few megabytes that tests may load, remove and build on. Refuses to leave the choice of an engine's
name to chance: whoever makes one says what it is called."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile

from worker.sandbox.sandbox import DockerSandbox

PROGRAMS = ("sh", "cat", "head")


def tiny(sandbox: DockerSandbox, name: str, marker: str) -> str:
    """An image of a few megabytes that can run calls: a shell and two programs of this machine with their libraries.
    Returns its id."""
    root = io.BytesIO()
    with tarfile.open(fileobj=root, mode="w") as tar:
        added: set[str] = set()
        for program in PROGRAMS:
            path = os.path.realpath(shutil.which(program) or "")
            said = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
            for needed in [path, *re.findall(r"(/\S+)", said)]:
                target = f"bin/{program}" if needed == path else needed.lstrip("/")
                if target not in added:
                    tar.add(os.path.realpath(needed), target)
                    added.add(target)
        data = marker.encode()
        entry = tarfile.TarInfo("marker")
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    engine = sandbox._engine
    repository, _, tag = name.partition(":")
    engine._api.import_image_from_data(root.getvalue(), repository=repository, tag=tag)
    return str((engine.image(name) or {})["Id"])


def forget(sandbox: DockerSandbox, image_id: str) -> None:
    """As on a host that never had the image."""
    for name in (sandbox._engine.image(image_id) or {}).get("RepoTags") or ():
        sandbox._engine.remove_image(name)
    if sandbox._engine.image(image_id) is not None:
        sandbox._engine.remove_image(image_id)
    assert sandbox._engine.image(image_id) is None
