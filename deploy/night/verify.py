"""An independent judge of a night: for every sealed run of a local archive it rebuilds the base from the stored
source, applies the stored patch, reruns the checks in containers and compares with the stored verdict.

It knows the archive only as FORMAT.md describes it and imports nothing of Dawnfleet, so that a bug there cannot hide
itself here. Refuses to run anything of a repository on the host: unpacking, set-up, patching and checks happen in
containers of the plain base image. Reads only runs whose source is an sdist or tarball.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
SETUP_TIMEOUT_S = 900
CHECKS_TIMEOUT_S = 900
PARALLEL = 2

PREPARE = """
set -e
mkdir -p /room/base && cd /room/base
tar -xzf /in/source --strip-components=1 --no-same-owner
sh /in/setup </dev/null >/room/setup.log 2>&1 || { tail -n 20 /room/setup.log; exit 90; }
rm -rf /room/base && mkdir /room/base && cd /room/base
tar -xzf /in/source --strip-components=1 --no-same-owner
cp -a /room/base /room/patched && cd /room/patched
git init -q . && if [ -s /in/patch ]; then git apply --binary --whitespace=nowarn /in/patch; fi
rm -rf .git && chown -R 1000:1000 /room
"""

CHECK = """
export HOME=/tmp/home PYTHONDONTWRITEBYTECODE=1; mkdir -p $HOME
for room in base patched; do
  cd /room/$room
  for check in /in/check-*; do
    sh "$check" </dev/null >/tmp/out 2>&1; code=$?
    echo "$room $(basename "$check") $code"
    [ $code = 0 ] || tail -n 5 /tmp/out >&2
  done
done
"""


@dataclass(frozen=True)
class Judged:
    run: str
    target: str
    stored: str
    measured: str

    @property
    def agrees(self) -> bool:
        return self.stored == self.measured


def events(run: Path) -> list[dict[str, Any]]:
    """Every event of a run, in order."""
    lines = [line for part in sorted((run / "journal").glob("*.jsonl")) for line in part.read_text().splitlines()]
    return [json.loads(line)["event"] for line in lines]


def docker(*words: str, timeout_s: float, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["docker", *words], input=data, capture_output=True, timeout=timeout_s, check=False)


def base_image(name: str) -> str:
    """The newest locally built image of that name, which no run has touched."""
    listed = docker("images", "--format", "{{.Repository}}:{{.Tag}}", f"dawnfleet/{name}", timeout_s=30)
    tags = listed.stdout.decode().split()
    if not tags:
        raise SystemExit(f"verify: no image dawnfleet/{name} here; run `dawn images build` first")
    return tags[0]


def measure(archive: Path, run: Path, task: dict[str, Any], patch: bytes) -> str:
    """The verdict two fresh rooms give: verified, still_failing or broke; or `error: ...`."""
    import io
    import tarfile

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        parts = {
            "source": (archive / "sources" / task["repo"]["source"]).read_bytes(),
            "patch": patch,
            "setup": (task["environment"]["setup"] or "true").encode(),
            **{f"check-{n}": check["command"].encode() for n, check in enumerate(task["checks"])},
        }
        for name, data in parts.items():
            entry = tarfile.TarInfo(f"in/{name}")
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    name = f"night-verify-{uuid.uuid4().hex[:12]}"
    try:
        made = docker(
            "create", "--name", name, "-v", f"{CA_BUNDLE}:{CA_BUNDLE}:ro", "-e", f"PIP_CERT={CA_BUNDLE}",
            base_image(task["environment"]["image"]), "sh", "-c", PREPARE, timeout_s=60,
        )  # fmt: skip
        if made.returncode:
            return f"error: {made.stderr.decode()[-200:]}"
        docker("cp", "-", f"{name}:/", timeout_s=120, data=packed.getvalue())
        prepared = docker("start", "-a", name, timeout_s=SETUP_TIMEOUT_S)
        if prepared.returncode:
            return f"error: setup or patch: {(prepared.stdout + prepared.stderr).decode(errors='replace')[-300:]}"
        docker("commit", name, f"{name}:room", timeout_s=300)
        judged = docker(
            "run", "--rm", "--network", "none", "--user", "1000:1000", f"{name}:room", "sh", "-c", CHECK,
            timeout_s=CHECKS_TIMEOUT_S,
        )  # fmt: skip
    finally:
        docker("rm", "-f", name, timeout_s=60)
        docker("rmi", "-f", f"{name}:room", timeout_s=60)
    codes: dict[str, list[int]] = {"base": [], "patched": []}
    for line in judged.stdout.decode().splitlines():
        room, _, code = line.split()
        codes[room].append(int(code))
    if len(codes["patched"]) != len(task["checks"]):
        return f"error: {judged.stderr.decode(errors='replace')[-300:]}"
    pairs = list(zip(codes["base"], codes["patched"], strict=True))
    if any(base == 0 and patched != 0 for base, patched in pairs):
        return "broke"
    return "still_failing" if any(patched != 0 for _, patched in pairs) else "verified"


def judge(archive: Path, run: Path) -> Judged:
    task = json.loads((run / "task.json").read_text())
    sealed = next((event for event in reversed(events(run)) if event["type"] == "sealed"), None)
    if sealed is None:
        return Judged(run.name, task["target"], "not sealed", "-")
    digest = sealed["artifacts"].get("patch.diff")
    patch = (run / "blobs" / digest).read_bytes() if digest else b""
    return Judged(run.name, task["target"], sealed["verdict"] or "none", measure(archive, run, task, patch))


def main() -> int:
    archive = Path(sys.argv[1])
    chosen = set(sys.argv[2:])
    runs = [
        run
        for run in sorted((archive / "runs").iterdir())
        if not chosen or json.loads((run / "task.json").read_text())["batch"] in chosen
    ]
    with ThreadPoolExecutor(PARALLEL) as pool:
        judged = list(pool.map(lambda run: judge(archive, run), runs))
    for row in judged:
        word = "agrees " if row.agrees else "DIFFERS"
        print(f"{word} {row.target:45} stored {row.stored:14} measured {row.measured}")
    agreed = sum(row.agrees for row in judged)
    print(f"{agreed} of {len(judged)} verdicts agree")
    return 0 if judged and agreed == len(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
