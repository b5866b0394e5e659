"""Owns the bytes that values are hashed by: canonical JSON, and the archive's one digest. Refuses to touch a file."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> bytes:
    """JSON for hashing: sorted keys, no spaces, ASCII escapes (so that any str, even a lone surrogate, is kept)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def read_json(data: bytes) -> Any:
    """What `canonical` wrote, lone surrogates included. Raises ValueError for anything else."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def digest(data: bytes) -> str:
    """SHA-256 in hex, the only digest the archive uses."""
    return hashlib.sha256(data).hexdigest()
