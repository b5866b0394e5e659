"""Owns masking a spooled output before it is stored or shown. Refuses to hold a large output in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from worker.contract.redact import Redactor

COPY_BYTES: Final = 2**20


def mask_file(path: Path, redactor: Redactor) -> int:
    """Mask the file in its place; returns its size in bytes."""
    if path.stat().st_size <= COPY_BYTES:
        # Most outputs: not written again where nothing is masked, since a rename may wait for the disk.
        data = path.read_bytes()
        clean = redactor.data(data)
        if clean != data:
            path.write_bytes(clean)
        return len(clean)
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
