"""Owns how a root filesystem is made from the host's own apt sources. Refuses to know a mirror of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from worker.contract.errors import EnvironmentFault

DEBOOTSTRAP_TIMEOUT_S = 1800
APT_FOLDER = Path("/etc/apt")
OTHER_WAYS = "load images saved elsewhere by `dawn images save FILE` with `dawn images load FILE`"
KEPT_SETTINGS = ("Acquire::Check-Valid-Until", "Acquire::Check-Date")
"""Settings of the host's apt that say how old a mirror may be; a frozen mirror needs them inside as well."""


@dataclass(frozen=True)
class AptSource:
    """One place packages come from. key: path of the keyring it names, "" for apt's own."""

    uri: str
    suite: str
    components: tuple[str, ...]
    key: str = ""

    def line(self) -> str:
        """Its one-line form."""
        option = f"[signed-by={self.key}] " if self.key else ""
        return f"deb {option}{self.uri} {self.suite} {' '.join(self.components)}"


def parse_list(text: str) -> list[AptSource]:
    """The `deb` lines of a *.list file; comments and `deb-src` are left out."""
    found = []
    for raw in text.splitlines():
        match = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(\S.*)", raw.split("#", 1)[0].strip())
        if match:
            options = dict(part.split("=", 1) for part in (match[1] or "").split() if "=" in part)
            found.append(AptSource(match[2], match[3], tuple(match[4].split()), options.get("signed-by", "")))
    return found


def parse_deb822(text: str) -> list[AptSource]:
    """The `deb` stanzas of a *.sources file, one source per URI and suite; disabled stanzas are left out.

    A key written into the stanza itself (not a path) reads as "".
    """
    found = []
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        unfolded = re.sub(r"\n[ \t]+", " ", stanza)
        pairs = (line.split(":", 1) for line in unfolded.splitlines() if ":" in line)
        fields = {name.strip().lower(): value.strip() for name, value in pairs}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in {"no", "false"}:
            continue
        key = fields.get("signed-by", "")
        found += [
            AptSource(uri, suite, tuple(fields.get("components", "").split()), key if key.startswith("/") else "")
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
        ]
    return found


def host_sources(folder: Path = APT_FOLDER) -> list[AptSource]:
    """Every source of the host, in apt's own order."""
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    found: list[AptSource] = []
    for file in files:
        if file.suffix in {".list", ".sources"} and file.is_file():
            parse = parse_list if file.suffix == ".list" else parse_deb822
            found += parse(file.read_text(encoding="utf-8", errors="replace"))
    return found


def distribution_sources(sources: list[AptSource], codename: str) -> list[AptSource]:
    """Those of the distribution itself, its main suite first: others (a vendor's) have no `main` under its name.

    Raises EnvironmentFault("image") when the main suite is not among them.
    """
    suites = (codename, f"{codename}-updates", f"{codename}-security")
    ours = [
        source
        for suite in suites
        for source in sources
        if source.suite == suite and "main" in source.components and re.match(r"https?://", source.uri)
    ]
    if not ours or ours[0].suite != codename:
        raise EnvironmentFault(
            "image",
            f"the host's apt sources name no http mirror of {codename or 'a Debian or Ubuntu release'}",
            hint=OTHER_WAYS,
        )
    return ours


@contextmanager
def debootstrapped(progress: Callable[[str], None]) -> Iterator[Path]:
    """A folder that holds a minimal root filesystem of the host's own release, removed afterwards.

    Installs debootstrap by apt when it is missing. Raises EnvironmentFault("image") saying what to do when this
    user or machine cannot.
    """
    if os.geteuid() != 0:
        raise EnvironmentFault(
            "image",
            "no registry answers, and only root can make a base by debootstrap",
            hint=f"run `dawn images build` once as root, or {OTHER_WAYS}",
        )
    sources = distribution_sources(host_sources(), _codename())
    _require_debootstrap(progress)
    with tempfile.TemporaryDirectory(prefix="dawnfleet-root-") as name:
        root = Path(name) / "root"
        main = sources[0]
        progress(f"making a base by debootstrap ({main.suite}); this takes a minute")
        options = ["--variant=minbase", "--include=ca-certificates", f"--components={','.join(main.components)}"]
        if main.key:
            options.append(f"--keyring={main.key}")
        try:
            _run(["debootstrap", *options, main.suite, str(root), main.uri], timeout_s=DEBOOTSTRAP_TIMEOUT_S)
        finally:
            # One that died leaves these mounted, and removing the folder must not walk into them.
            for mounted in ("proc", "sys"):
                subprocess.run(["umount", "--lazy", str(root / mounted)], capture_output=True)
        _adopt(root, sources)
        yield root


def _codename() -> str:
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r'^VERSION_CODENAME="?([a-z]+)', text, re.MULTILINE)
    return match[1] if match else ""


def _require_debootstrap(progress: Callable[[str], None]) -> None:
    if shutil.which("debootstrap"):
        return
    progress("installing debootstrap")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "update", "-q"], timeout_s=300, env=environment)
    _run(["apt-get", "install", "-qy", "--no-install-recommends", "debootstrap"], timeout_s=300, env=environment)


def _adopt(root: Path, sources: list[AptSource]) -> None:
    """Let apt inside look where the host's apt looks, and take out what an image never needs."""
    etc = root / "etc" / "apt"
    (etc / "sources.list").write_text("".join(source.line() + "\n" for source in sources), encoding="utf-8")
    for key in {source.key for source in sources if source.key}:
        inside = root / key.lstrip("/")
        if not inside.exists():
            inside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(key, inside)
    dump = _run(["apt-config", "dump"], timeout_s=30).stdout
    kept = [line for line in dump.splitlines() if line.split(" ", 1)[0] in KEPT_SETTINGS]
    (etc / "apt.conf.d" / "90host").write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    for pattern in (
        "var/cache/apt/archives/*.deb",
        "var/cache/apt/*.bin",
        "var/lib/apt/lists/*",
        "var/log/*",
        "usr/share/man/*",
        "usr/share/info/*",
        "usr/share/locale/*",
    ):
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _run(argv: list[str], *, timeout_s: float, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout_s, env=env, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault("image", f"{argv[0]} did not run: {error}", hint=OTHER_WAYS) from error
    if done.returncode != 0:
        tail = " | ".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise EnvironmentFault("image", f"{argv[0]} failed with exit code {done.returncode}: {tail}", hint=OTHER_WAYS)
    return done
