"""Owns masking a spooled output before it is stored or shown. Refuses to hold a whole output in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from worker.redact import Redactor

COPY_BYTES: Final = 2**20


def mask_file(path: Path, redactor: Redactor) -> int:
    """Replace the file by its masked self; returns its size in bytes."""
    masked = path.with_suffix(".masked")
    stream = redactor.stream()
    try:
        with path.open("rb") as source, masked.open("wb") as target:
            while chunk := source.read(COPY_BYTES):
                target.write(stream.feed(chunk))
            target.write(stream.close())
        masked.replace(path)
    finally:
        masked.unlink(missing_ok=True)
    return path.stat().st_size
