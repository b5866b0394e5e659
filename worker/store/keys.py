"""Owns the names of everything in an archive (FORMAT.md explains them). Refuses to read or write."""

from __future__ import annotations

import re
from datetime import datetime

from worker.contract.errors import IntegrityFault, InvalidFault

KEY_BYTES = 900
"""Longest key, UTF-8 bytes: S3 takes 1,024, and an archive's own prefix needs room too."""

PART_BYTES = 240
"""Longest part between two slashes, UTF-8 bytes: file systems take 255."""

SEQ_DIGITS = 9
"""Segments sort as text: nine digits allow a billion."""

_UNFIT = re.compile(r"[\x00-\x1f\\\x7f]")


def check(key: str) -> str:
    """The key itself when every store can hold it: parts that are not empty, do not start with a dot, have no
    backslash (SeaweedFS takes it for a slash) or control character, and fit KEY_BYTES and PART_BYTES.
    Raises InvalidFault otherwise."""
    try:
        parts = [part.encode() for part in key.split("/")]
    except UnicodeEncodeError:
        raise InvalidFault(f"key {key!r} is not valid text") from None
    if len(key.encode()) > KEY_BYTES or any(len(part) > PART_BYTES for part in parts):
        raise InvalidFault(
            f"key {key[:60]!r}... is too long", hint=f"at most {PART_BYTES} bytes a part, {KEY_BYTES} in all"
        )
    if any(not part or part.startswith(b".") for part in parts):
        raise InvalidFault(f"key {key!r} has an empty part or one that starts with a dot")
    if _UNFIT.search(key):
        raise InvalidFault(f"key {key!r} has a backslash or a control character")
    return key


def check_folder(prefix: str) -> str:
    """The prefix itself when it is a full folder (ends with `/`) or the archive's root (empty)."""
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidFault(f"prefix {prefix!r} is not a full folder", hint="end it with /")
        check(prefix[:-1])
    return prefix


def segment(run: str, seq: int) -> str:
    return f"runs/{run}/journal/{seq:0{SEQ_DIGITS}d}.jsonl"


def delegate(run: str, call: str) -> str:
    """The name under which the delegate of a call has a task, a journal and blobs of its own, like a run."""
    return f"{run}/delegates/{call}"


def is_delegate(run: str) -> bool:
    return "/delegates/" in run


def journal(run: str) -> str:
    return f"runs/{run}/journal/"


def rollup(run: str, first: int) -> str:
    """A cache of the segments from number `first` on (see rollup.py)."""
    return f"runs/{run}/rollup/{first:0{SEQ_DIGITS}d}.jsonl"


def rollups(run: str) -> str:
    return f"runs/{run}/rollup/"


def segment_seq(key: str) -> int:
    """The number in a segment's or roll-up's key. Raises IntegrityFault for another key."""
    number = key.rsplit("/", 1)[-1].removesuffix(".jsonl")
    if not (number.isascii() and number.isdigit()):
        raise IntegrityFault(f"{key} is not a segment")
    return int(number)


def task(run: str) -> str:
    return f"runs/{run}/task.json"


def snapshot(run: str, digest: str) -> str:
    return f"runs/{run}/snapshots/{digest}"


def blob(run: str, digest: str) -> str:
    return f"runs/{run}/blobs/{digest}"


def decision(run: str, call: str) -> str:
    return f"runs/{run}/decisions/{call}.json"


def decisions_folder(run: str) -> str:
    return f"runs/{run}/decisions/"


def inbox(run: str, n: int) -> str:
    return f"runs/{run}/inbox/{n:06d}.json"


def inbox_folder(run: str) -> str:
    return f"runs/{run}/inbox/"


def delivery(run: str, n: int) -> str:
    return f"{deliveries(run)}{n:06d}.json"


def deliveries(run: str) -> str:
    return f"runs/{run}/deliveries/"


def review(run: str, n: int) -> str:
    return f"{reviews(run)}{n:06d}.json"


def reviews(run: str) -> str:
    return f"runs/{run}/reviews/"


def pushed(at: datetime, token: str, run: str) -> str:
    """Marker of a run that was delivered then, with a token of that name."""
    return f"{pushed_folder(at)}{at:%M%S}-{token}-{run}"


def pushed_folder(hour: datetime) -> str:
    return f"pushed/{hour:%Y-%m-%dT%H}/"


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


def batch_control_folder(batch: str) -> str:
    return f"batches/{batch}/control/"


def batch_retries(batch: str, n: int) -> str:
    return f"batches/{batch}/retries/{n:06d}.json"


def batch_retries_folder(batch: str) -> str:
    return f"batches/{batch}/retries/"


def announced(batch: str, n: int) -> str:
    """Marker of retries that are announced, or about to be, and perhaps not written yet."""
    return f"{announced_folder(batch)}{n:06d}"


def announced_folder(batch: str) -> str:
    return f"announced/{batch}/"


def work_marker(work: str, run: str) -> str:
    """Marker of a run that does the work of this key (scheduler/work.py)."""
    return f"work/{work}/{run}"


def work_folder(work: str) -> str:
    return f"work/{work}/"


def batch_report(batch: str, n: int, name: str) -> str:
    """name: `report.json`, and `report.md` and `report.html` that are made of it."""
    return f"{batch_reports_folder(batch)}{n:06d}/{name}"


def batch_reports_folder(batch: str) -> str:
    return f"batches/{batch}/report/"


def batch_notice(batch: str, n: int) -> str:
    return f"{batch_notices_folder(batch)}{n:06d}.json"


def batch_notices_folder(batch: str) -> str:
    return f"batches/{batch}/notices/"


def report_due(batch: str) -> str:
    """Marker of a batch whose last report is not written yet, or not told to all who asked for it."""
    return f"due/{batch}"


def schedule_spec(name: str, n: int) -> str:
    return f"{schedule_specs(name)}{n:06d}.json"


def schedule_specs(name: str) -> str:
    return f"{schedule_folder(name)}spec/"


def schedule_template(name: str, digest: str) -> str:
    return f"{schedule_folder(name)}templates/{digest}"


def schedule_folder(name: str) -> str:
    return f"schedules/{name}/"


def schedule_firing(name: str, due: str) -> str:
    """Its creation is the right to enqueue that firing. due: UTC, as zones.utc_text writes it."""
    return f"{schedule_folder(name)}{due}.json"


def schedule_begun(name: str, due: str) -> str:
    """Marker of a firing whose batch is perhaps not written yet."""
    return f"{schedule_folder(name)}begun/{due}"


def environment(key: str) -> str:
    return f"environments/{key}/env.json"


def environment_blob(key: str, digest: str) -> str:
    return f"environments/{key}/blobs/{digest}"


def baseline(key: str, checks: str) -> str:
    return f"environments/{key}/baselines/{checks}.json"


def baseline_folder(key: str) -> str:
    return f"environments/{key}/baselines/"


def image_folder(image_id: str) -> str:
    """Of an engine's image id, `sha256:<hex>` or hex alone."""
    return f"images/{image_id.removeprefix('sha256:')}/"


def image(image_id: str, digest: str) -> str:
    return f"{image_folder(image_id)}{digest}"


def built_image(digest: str) -> str:
    return f"images/built-{digest}.json"


def source(digest: str) -> str:
    return f"sources/{digest}"
