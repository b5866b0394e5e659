"""Places for parked containers, shared by the worker processes of a host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from worker.sandbox.pool import Places

HOLDER = """
import sys, time
from pathlib import Path
from worker.sandbox.pool import Places
places = Places(Path(sys.argv[1]), 3)
assert places.take() and places.take()
print("held", flush=True)
time.sleep(600)
"""


def test_places_are_given_back(tmp_path: Path) -> None:
    """No more than the count are taken at a time, and a place that was given back is taken again."""
    places = Places(tmp_path, 2)
    assert [places.take() for _ in range(3)] == [True, True, False]
    places.give_back()
    assert [places.take() for _ in range(2)] == [True, False]
    places.close()


def test_places_are_the_hosts_and_go_with_their_process(tmp_path: Path) -> None:
    """What another process holds is not there for us, until it ends, however it ends."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        ours = Places(tmp_path, 3)
        assert [ours.take() for _ in range(2)] == [True, False]
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        assert [ours.take() for _ in range(3)] == [True, True, False]
        ours.close()
