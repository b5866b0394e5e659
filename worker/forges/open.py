"""Owns the way from a repository's address to its forge. Refuses to guess where the address does not say it. An SDK
loads only where its forge is asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import SplitResult, urlsplit

from worker.contract.delivery import Deliver
from worker.contract.errors import ForgeFault
from worker.forges.protocol import Forge

_SCP: Final = re.compile(r"(?:[^@/]+@)?([^:/]+):(?!//)(.+)")


@dataclass(frozen=True)
class Place:
    """kind: of the forge. api_url: of its API. path: of the repository on it, `owner/name`."""

    kind: Literal["github", "gitlab"]
    api_url: str
    path: str


def push_url(url: str, token: str) -> str:
    """Where the token opens a repository for pushes: one that is no SSH key does so over https."""
    parts = _parts(url)
    if parts.scheme != "ssh" or is_key(token):
        return url
    return f"https://{parts.hostname}{parts.path}"


def is_key(token: str) -> bool:
    """Whether it is an SSH private key, which opens no API."""
    return "PRIVATE KEY" in token


def place_of(url: str, deliver: Deliver) -> Place:
    """Where pull requests of a repository live. Raises ForgeFault where nobody can tell."""
    parts = _parts(url)
    host, path = (parts.hostname or "").lower(), parts.path.strip("/").removesuffix(".git")
    kind = deliver.forge
    if kind == "auto":
        known = [name for name in ("github", "gitlab") if name in host.split(".")]
        if len(known) != 1:
            raise ForgeFault("unknown", f"nobody knows what forge {host or url!r} is", hint="`forge: github|gitlab`")
        kind = "github" if known == ["github"] else "gitlab"
    if path.count("/") < 1 or (kind == "github" and path.count("/") != 1):
        raise ForgeFault("unknown", f"{url} names no repository of a forge: owner/name is missing")
    usual = {
        "github": "https://api.github.com" if host == "github.com" else f"https://{host}/api/v3",
        "gitlab": f"https://{host}",
    }
    return Place(kind, deliver.api_url or usual[kind], path)


def open_forge(url: str, deliver: Deliver, token: str, ca_bundle: Path | None = None) -> Forge:
    """The forge of a repository. token: as git takes it, `token` or `user:token`. Raises ForgeFault."""
    if is_key(token):
        raise ForgeFault("auth", "the token is an SSH key: it can push, and open no pull request")
    place, verify = place_of(url, deliver), str(ca_bundle) if ca_bundle else True
    secret = token.rpartition(":")[2]
    if place.kind == "github":
        from worker.forges.github import GitHub

        return GitHub(place.api_url, place.path, secret, verify)
    from worker.forges.gitlab import GitLab

    return GitLab(place.api_url, place.path, secret, verify)


def _parts(url: str) -> SplitResult:
    scp = _SCP.fullmatch(url)
    return urlsplit(f"ssh://{scp[1]}/{scp[2]}" if scp else url)
