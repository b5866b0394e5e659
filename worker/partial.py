"""Owns the patch of a run that ended before anybody made one: its last snapshot, laid down once more. Refuses to
judge it, and to write anything: what it makes goes to stdout.

`python -m worker.partial RUN` prints the patch; `dawn diff` starts it.
"""

from __future__ import annotations

import os
import sys

from worker.contract.cancel import Cancel
from worker.contract.errors import ConflictFault, Fault
from worker.contract.events import digest
from worker.contract.redact import redactor_from_env, without_passwords
from worker.contract.settings import Settings
from worker.environments import recorded, restore_chain
from worker.main import archive_id
from worker.publish import PATCH, make_patch
from worker.sandbox.protocol import Owner, Sandbox
from worker.store.archive import Archive, open_archive
from worker.store.journal import Journal


def partial_patch(archive: Archive, sandbox: Sandbox, run: str) -> bytes:
    """The work tree of the run's last commit as a patch against its start commit, b"" when they are equal.

    Raises ConflictFault for a run that was never prepared, and what restoring and making a patch raise.
    """
    journal = Journal(archive, run)
    state, task = journal.load(), journal.task()
    if state.prepared is None:
        raise ConflictFault(f"run {run} ended before its repository was there")
    # A claim that nobody made yet, so no janitor takes it for an attempt that ended. One left by a crash goes first.
    owner = Owner(archive_id(archive), run, state.last_seq + 1, "verdict")
    for left, resource in sandbox.owned(owner.archive):
        if left == owner:
            sandbox.remove(resource)
    prepared = recorded(archive, sandbox, state.prepared)
    with sandbox.workspace(owner, prepared.image, task.limits) as workspace:
        workspace.restore(restore_chain(archive, prepared, state))
        redactor = redactor_from_env(os.environ)
        made = make_patch(workspace, task, put_blob=lambda data: digest(data), redactor=redactor, cancel=Cancel())
    return made.files.get(PATCH, b"")


def main() -> int:
    """The process. Exit code 0, or a fault's own."""
    from worker.sandbox.sandbox import DockerSandbox

    try:
        settings = Settings()
        sandbox = DockerSandbox(settings)
        try:
            patch = partial_patch(open_archive(settings.archive_url, settings), sandbox, sys.argv[1])
        finally:
            sandbox.close()
    except Fault as fault:
        print(f"error: {without_passwords(str(fault))}", file=sys.stderr)
        return int(fault.exit_code)
    sys.stdout.buffer.write(patch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
