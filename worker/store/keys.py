"""Owns the names of everything in an archive (FORMAT.md explains them). Refuses to read or write."""

from __future__ import annotations

SEQ_DIGITS = 9
"""Segments sort as text: nine digits allow a billion."""


def segment(run: str, seq: int) -> str:
    return f"runs/{run}/journal/{seq:0{SEQ_DIGITS}d}.jsonl"


def journal(run: str) -> str:
    return f"runs/{run}/journal/"


def segment_seq(key: str) -> int:
    """The number in a segment's key."""
    return int(key.rsplit("/", 1)[1].split(".", 1)[0])


def task(run: str) -> str:
    return f"runs/{run}/task.json"


def snapshot(run: str, digest: str) -> str:
    return f"runs/{run}/snapshots/{digest}"


def blob(run: str, digest: str) -> str:
    return f"runs/{run}/blobs/{digest}"


def decision(run: str, call: str) -> str:
    return f"runs/{run}/decisions/{call}.json"


def inbox(run: str, n: int) -> str:
    return f"runs/{run}/inbox/{n:06d}.json"


def inbox_folder(run: str) -> str:
    return f"runs/{run}/inbox/"


def open_marker(run: str) -> str:
    return f"open/{run}"


def day_marker(day: str, run: str) -> str:
    return f"days/{day}/{run}"


def batch_manifest(batch: str) -> str:
    return f"batches/{batch}/manifest.yaml"


def batch_targets(batch: str) -> str:
    return f"batches/{batch}/targets.json"


def batch_control(batch: str, n: int) -> str:
    return f"batches/{batch}/control/{n:06d}.json"


def environment(key: str) -> str:
    return f"environments/{key}/env.json"


def environment_blob(key: str, digest: str) -> str:
    return f"environments/{key}/blobs/{digest}"


def baseline(key: str, checks: str) -> str:
    return f"environments/{key}/baselines/{checks}.json"


def image(image_id: str) -> str:
    return f"images/{image_id}.tar"


def source(digest: str) -> str:
    return f"sources/{digest}"
