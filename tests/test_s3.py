"""Owns what happens when an object store misbehaves, shown through a proxy in front of moto's server."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from proxies import HttpProxy, once, s3_error

from worker.contract.errors import IntegrityFault, StoreFault
from worker.contract.settings import Settings
from worker.store import s3
from worker.store.s3 import S3Archive

PART_BYTES = 5 * 2**20


@pytest.fixture
def proxy(moto: Settings) -> Iterator[HttpProxy]:
    with HttpProxy(str(moto.s3_endpoint_url)) as found:
        yield found


@pytest.fixture
def archive(moto: Settings, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> S3Archive:
    """An archive behind the proxy; requests are tried three times, to keep back-off short."""
    monkeypatch.setattr(s3, "ATTEMPTS", 3)
    changes = {"s3_endpoint_url": proxy.url, "s3_part_bytes": PART_BYTES}
    return S3Archive(f"s3://dawn/{uuid.uuid4().hex}", moto.model_copy(update=changes))


def is_put(method: str, path: str) -> bool:
    return method == "PUT"


def test_a_put_whose_answer_was_lost_is_still_ours(archive: S3Archive, proxy: HttpProxy) -> None:
    """The store commits and drops the answer; the repeated request is refused, yet create says True (F38)."""
    proxy.after = once(True, is_put)
    assert archive.create("runs/a/journal/0", b"mine")
    assert sum(line.startswith("PUT") for line in proxy.seen) == 2
    assert not archive.create("runs/a/journal/0", b"mine")


def test_a_multipart_whose_last_answer_was_lost_is_still_ours(
    archive: S3Archive, proxy: HttpProxy, tmp_path: Path
) -> None:
    """The same for the request that completes a multipart upload."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(PART_BYTES + 1))
    proxy.after = once(True, lambda method, path: method == "POST" and "uploadId=" in path)
    assert archive.create("images/x.tar", path)
    assert archive.get("images/x.tar") == path.read_bytes()


@pytest.mark.parametrize(
    ("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (409, "ConditionalRequestConflict")]
)
def test_passing_faults_are_retried(archive: S3Archive, proxy: HttpProxy, status: int, code: str) -> None:
    """Busy, broken and conflicting answers are asked again (F37)."""
    proxy.before = once(s3_error(status, code), is_put)
    assert archive.create("x", b"1")
    assert archive.get("x") == b"1"


def test_a_store_that_stays_broken_is_given_up(archive: S3Archive, proxy: HttpProxy) -> None:
    """After a bounded number of tries it is a retryable StoreFault that names address and key."""
    proxy.before = lambda method, path: s3_error(503, "SlowDown")
    with pytest.raises(StoreFault, match="SlowDown") as caught:
        archive.create("some/key", b"1")
    assert caught.value.retryable
    assert "some/key" in caught.value.message
    assert len(proxy.seen) == 3


def test_a_download_that_breaks_off_goes_on(archive: S3Archive, proxy: HttpProxy) -> None:
    """A body cut in the middle is read on from where it was."""
    data = os.urandom(3 * 2**20 + 5)
    archive.create("x", data)
    proxy.cut_bodies_at = 2**20
    assert archive.get("x") == data
    assert b"".join(archive.chunks("x", start=7, length=2**21)) == data[7 : 7 + 2**21]


def test_damage_on_the_way_is_found_and_removed(archive: S3Archive, proxy: HttpProxy) -> None:
    """A store that keeps other bytes than were sent is caught, and the key stays usable (T63)."""
    proxy.damage = lambda body: b"6\r\n" + body + b"\r\n0\r\n\r\n" if body == b"hello\n" else body
    with pytest.raises(IntegrityFault):
        archive.create("x", b"hello\n")
    proxy.damage = lambda body: body
    assert archive.create("x", b"hello\n")


def test_a_damaged_part_is_found(archive: S3Archive, proxy: HttpProxy, tmp_path: Path) -> None:
    """The same for one part of a large file."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(PART_BYTES + 100))
    proxy.damage = lambda body: b"0" * 100 if len(body) == 100 else body
    with pytest.raises(IntegrityFault):
        archive.create("x", path)
    assert archive.size("x") is None


@pytest.mark.parametrize("size", [6, 8 * 2**20])
def test_bodies_are_sent_plain(archive: S3Archive, proxy: HttpProxy, size: int) -> None:
    """What the store receives is what was given, without chunk framing (T63)."""
    received: list[bytes] = []
    proxy.damage = lambda body: received.append(body) or body  # type: ignore[func-returns-value]
    data = b"." + os.urandom(size - 1)  # a request of S3's own is XML and begins with <
    archive.create("x", data)
    assert b"".join(body for body in received if not body.startswith(b"<")) == data


def test_an_upload_that_fails_is_aborted(archive: S3Archive, proxy: HttpProxy, tmp_path: Path) -> None:
    """Nothing of it is visible, and no parts are left to pay for (F40)."""
    path = tmp_path / "large"
    path.write_bytes(bytes(PART_BYTES * 2))
    proxy.before = lambda method, path: s3_error(400, "Broken") if "partNumber=2" in path else None
    with pytest.raises(StoreFault):
        archive.create("x", path)
    assert any(line.startswith("DELETE") and "uploadId" in line for line in proxy.seen)
    assert archive.size("x") is None


def test_an_upload_left_by_a_crash_is_swept(archive: S3Archive) -> None:
    """Unfinished uploads of this archive are aborted, those of a neighbour in the bucket are not (F40)."""
    client = archive._client
    ours, neighbour = f"{archive.url.removeprefix('s3://dawn/')}/x", f"{uuid.uuid4().hex}/x"
    for key in (ours, neighbour):
        client.create_multipart_upload(Bucket="dawn", Key=key)
    assert archive.sweep(older_than_s=0) == 1
    left = [upload["Key"] for upload in client.list_multipart_uploads(Bucket="dawn").get("Uploads", ())]
    assert neighbour in left
    assert ours not in left


@pytest.mark.parametrize("act", ["create", "size"])
def test_a_wrong_clock_is_named(archive: S3Archive, proxy: HttpProxy, act: str) -> None:
    """RequestTimeTooSkewed tells by how much the clock is off, also where the answer has no body (T65)."""
    proxy.before = lambda method, path: s3_error(403, "RequestTimeTooSkewed")
    proxy.date = datetime.now(UTC) + timedelta(hours=2)
    with pytest.raises(StoreFault, match=r"clock is (7200|7199|7198) s behind") as caught:
        archive.create("x", b"1") if act == "create" else archive.size("x")
    assert caught.value.retryable
    assert "clock" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (403, "InvalidAccessKeyId", "DAWN_S3_ACCESS_KEY_ID"),
        (404, "NoSuchBucket", "create the bucket"),
        (501, "NotImplemented", "use another"),
    ],
)
def test_what_a_person_must_fix_is_not_retried(
    archive: S3Archive, proxy: HttpProxy, status: int, code: str, hint: str
) -> None:
    """Keys, bucket and abilities of the store: not retryable, with the way out."""
    proxy.before = lambda method, path: s3_error(status, code)
    with pytest.raises(StoreFault) as caught:
        archive.create("x", b"1")
    assert hint in caught.value.hint
    assert not caught.value.retryable
    assert len(proxy.seen) == 1


def test_nothing_listening(moto: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is away is retryable and names the setting."""
    monkeypatch.setattr(s3, "ATTEMPTS", 2)
    gone = S3Archive("s3://dawn", moto.model_copy(update={"s3_endpoint_url": "http://127.0.0.1:1"}))
    with pytest.raises(StoreFault) as caught:
        gone.size("x")
    assert caught.value.retryable
    assert "DAWN_S3_ENDPOINT_URL" in caught.value.hint


def test_missing_keys_are_named(moto: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without any credentials the settings are named."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    changes = {"s3_access_key_id": None, "s3_secret_access_key": None}
    with pytest.raises(StoreFault) as caught:
        S3Archive("s3://dawn", moto.model_copy(update=changes)).size("x")
    assert "DAWN_S3_ACCESS_KEY_ID" in caught.value.hint


def test_a_large_file_takes_little_memory(moto: Settings, tmp_path: Path) -> None:
    """80 MB go up part by part and come back equal, never whole in memory (T63)."""
    archive = S3Archive(f"s3://dawn/{uuid.uuid4().hex}", moto.model_copy(update={"s3_part_bytes": PART_BYTES}))
    path = tmp_path / "large"
    block = os.urandom(2**20)
    with open(path, "wb") as file:
        for _ in range(80):
            file.write(block)
    tracemalloc.start()
    archive.create("x", path)
    hasher = hashlib.sha256()
    for chunk in archive.chunks("x"):
        hasher.update(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    with open(path, "rb") as file:
        assert hasher.digest() == hashlib.file_digest(file, "sha256").digest()
    assert peak < 8 * PART_BYTES
