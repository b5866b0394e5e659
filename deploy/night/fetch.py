"""Downloads the sdists of packages.toml as plain files and checks their digests; refuses to build or unpack one.

An installer asked to download an sdist would run its build code on this host. Files come from the index pip is
set up with (its configuration, else its built-in default), so no address stands here.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tomllib
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
MAX_SDIST_BYTES = 32 * 2**20
TIMEOUT_S = 60


def index_url() -> str:
    """The index pip would ask, without a trailing slash."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode == 0 and asked.stdout.strip():
        return asked.stdout.strip().rstrip("/")
    from pip._internal.models.index import PyPI

    return PyPI.simple_url.rstrip("/")


def fetch(name: str, filename: str, sha256: str, folder: Path, index: str) -> Path:
    """The verified sdist at folder/filename. Raises SystemExit when the index lacks it or the digest differs."""
    target = folder / filename
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == sha256:
        return target
    page = f"{index}/{name}/"
    request = urllib.request.Request(page, headers={"Accept": SIMPLE_JSON})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        files = json.load(answer)["files"]
    address = next((file["url"] for file in files if file["filename"] == filename), None)
    if address is None:
        raise SystemExit(f"fetch: {name}: the index does not list {filename}")
    with urllib.request.urlopen(urllib.parse.urljoin(page, address), timeout=TIMEOUT_S) as answer:
        data = answer.read(MAX_SDIST_BYTES + 1)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise SystemExit(f"fetch: {filename}: sha256 is {found}, {sha256} was pinned")
    partial = target.with_suffix(".part")
    partial.write_bytes(data)
    partial.rename(target)
    return target


def packages(names: list[str] | None = None) -> list[dict[str, str]]:
    """The entries of packages.toml, all or those named, in file order."""
    entries: list[dict[str, str]] = tomllib.loads((HERE / "packages.toml").read_text())["package"]
    return [entry for entry in entries if not names or entry["name"] in names]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    index = index_url()
    for entry in packages(sys.argv[2:]):
        print(fetch(entry["name"], entry["sdist"], entry["sha256"], folder, index))


if __name__ == "__main__":
    main()
