"""Owns S3Archive, an archive in a bucket (`s3://bucket/prefix`). Refuses stores that ignore conditional writes.
The one door to boto3.

Create-only is `If-None-Match: *`, on single and multipart uploads. Each upload carries a nonce as metadata: a writer
whose answer was lost, and whose repeated request is then refused, recognises its own object.
"""

from __future__ import annotations

import hashlib
import io
import random
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
from botocore.response import StreamingBody

from worker.contract.errors import Fault, IntegrityFault, NotFoundFault, StoreFault, UsageFault
from worker.contract.settings import Settings
from worker.store import keys
from worker.store.archive import prove_create_only

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

CHUNK_BYTES: Final = 2**20
ATTEMPTS: Final = 6
"""Tries of one request; boto3 waits a random time up to 1, 2, 4, 8, 16 s between. With 30 % lost 1 in 1,400 fails."""

CONFLICT_TRIES: Final = 8
"""409 says that two conditional writes of one key met: one of them asks again."""

STREAM_TRIES: Final = 5
"""A download that breaks off goes on from where it was."""

SKEW_S: Final = 300
"""S3 refuses requests whose time is 15 minutes off; from here on a refusal is blamed on the clock."""

DELETE_BATCH: Final = 1000
NONCE: Final = "dawn-nonce"
_CREDENTIALS_HINT = "check DAWN_S3_ACCESS_KEY_ID and DAWN_S3_SECRET_ACCESS_KEY, or boto3's own configuration"


class S3Archive:
    """See Archive. Thread-safe; the client is made at the first request, which is the first to reach the store."""

    def __init__(self, url: str, settings: Settings) -> None:
        """url: `s3://bucket/prefix`, prefix optional. Raises UsageFault when it names no bucket."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        prefix = prefix.strip("/")
        if not bucket or "@" in bucket:
            raise UsageFault(f"{url!r} does not name a bucket", hint="write it like s3://bucket/prefix")
        self.url = url
        self._bucket = bucket
        self._prefix = f"{keys.check(prefix)}/" if prefix else ""
        self._settings = settings
        self._lock = threading.Lock()
        self._made: S3Client | None = None

    def create(self, key: str, data: bytes | Path) -> bool:
        if isinstance(data, bytes):
            return self._create(key, io.BytesIO(data), self._sender(len(data)))
        with open(data, "rb") as source:
            return self._create(key, source, self._sender(data.stat().st_size))

    def overwrite(self, key: str, data: bytes) -> None:
        with self._translated(key):
            etag = self._client.put_object(Bucket=self._bucket, Key=self._name(key), Body=data)["ETag"]
        self._prove(key, io.BytesIO(data), etag, _md5(data).hexdigest())

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        data = bytearray()
        with closing(self._stream(key, 0, None)) as chunks:
            for chunk in chunks:
                data += chunk
                if len(data) > max_bytes:
                    raise IntegrityFault(f"{key} is larger than {max_bytes} bytes")
        return bytes(data)

    def chunks(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        return self._stream(key, start, None if length is None else start + length)

    def size(self, key: str) -> int | None:
        try:
            return int(self._head(key)["ContentLength"])
        except NotFoundFault:
            return None

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return (key for key, _ in self._objects(prefix, after))

    def aged(self, prefix: str, *, older_than_s: float) -> Iterator[str]:
        limit = datetime.now(UTC) - timedelta(seconds=older_than_s)
        return (key for key, written in self._objects(prefix, "") if written < limit)

    def folders(self, prefix: str) -> Iterator[str]:
        keys.check_folder(prefix)
        for page in self._pages(prefix, {"Delimiter": "/"}):
            for entry in page.get("CommonPrefixes", ()):
                yield entry["Prefix"].removeprefix(self._prefix + prefix).rstrip("/")

    def delete(self, keys: Iterable[str]) -> None:
        names = [self._name(key) for key in keys]
        for start in range(0, len(names), DELETE_BATCH):
            batch = names[start : start + DELETE_BATCH]
            with self._translated(batch[0]):
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": [{"Key": name} for name in batch], "Quiet": True}
                )
            for error in answer.get("Errors", ()):
                if error.get("Code") != "NoSuchKey":
                    raise StoreFault(f"{error.get('Key')} could not be deleted: {error.get('Message')}")

    def probe(self) -> None:
        prove_create_only(self.create, self, "single upload")
        prove_create_only(
            lambda key, data: self._create(key, io.BytesIO(data), self._send_parts), self, "multipart upload"
        )

    def sweep(self, *, older_than_s: float) -> int:
        swept, limit = 0, datetime.now(UTC) - timedelta(seconds=older_than_s)
        with self._translated("unfinished uploads"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            for page in pages:
                for upload in page.get("Uploads", ()):
                    if upload["Initiated"] < limit:
                        self._client.abort_multipart_upload(
                            Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                        )
                        swept += 1
        return swept

    @property
    def _client(self) -> S3Client:
        with self._lock:
            if self._made is None:
                settings = self._settings
                self._made = boto3.session.Session().client(
                    "s3",
                    endpoint_url=settings.s3_endpoint_url,
                    region_name=settings.s3_region,
                    aws_access_key_id=settings.s3_access_key_id,
                    aws_secret_access_key=settings.s3_secret_access_key,
                    config=Config(
                        signature_version="s3v4",
                        # Newer checksums are sent as chunked bodies, which some stores keep with their framing.
                        request_checksum_calculation="when_required",
                        response_checksum_validation="when_required",
                        s3={"addressing_style": "path" if settings.s3_path_style else "virtual"},
                        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                        connect_timeout=10,
                        read_timeout=60,
                        max_pool_connections=32,
                        tcp_keepalive=True,
                    ),
                )
            return self._made

    def _name(self, key: str) -> str:
        return self._prefix + keys.check(key)

    def _head(self, key: str) -> Any:
        with self._translated(key):
            return self._client.head_object(Bucket=self._bucket, Key=self._name(key))

    def _objects(self, prefix: str, after: str) -> Iterator[tuple[str, datetime]]:
        """Keys greater than `after`, and when each was written."""
        keys.check_folder(prefix)
        for page in self._pages(prefix, {"StartAfter": self._prefix + after} if after else {}):
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(self._prefix)
                if key > after and not key.endswith("/"):  # some tools leave empty objects as folders
                    yield key, entry["LastModified"]

    def _pages(self, prefix: str, options: dict[str, Any]) -> Iterator[Any]:
        with self._translated(prefix):
            pages = self._client.get_paginator("list_objects_v2")
            yield from pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix, **options)

    def _sender(self, size: int) -> _Sender:
        return self._send_whole if size <= self._settings.s3_part_bytes else self._send_parts

    def _create(self, key: str, source: BinaryIO, send: _Sender) -> bool:
        """Send the source, prove what arrived, and say whether the object is ours."""
        nonce = uuid.uuid4().hex
        if send == self._send_parts and self.size(key) is not None:
            return False  # saves the upload; the condition on the last request is what decides
        for attempt in range(CONFLICT_TRIES):
            source.seek(0)
            with self._translated(key):
                try:
                    etag, expected = send(self._name(key), source, nonce)
                except ClientError as error:
                    if _status(error) == 409:
                        time.sleep(random.uniform(0, 0.05 * 2**attempt))
                        continue
                    if _status(error) != 412 and _code(error) != "NoSuchUpload":
                        raise
                    # Either somebody was first, or an earlier try of ours was and its answer got lost.
                    found = self._head(key)
                    if found.get("Metadata", {}).get(NONCE) != nonce:
                        return False
                    etag, expected = found["ETag"], ""
            self._prove(key, source, etag, expected)
            return True
        raise StoreFault(f"{key}: the store answered {CONFLICT_TRIES} times that another write is going on")

    def _send_whole(self, name: str, source: BinaryIO, nonce: str) -> tuple[str, str]:
        data = source.read()
        answer = self._client.put_object(
            Bucket=self._bucket, Key=name, Body=data, IfNoneMatch="*", Metadata={NONCE: nonce}
        )
        return answer["ETag"], _md5(data).hexdigest()

    def _send_parts(self, name: str, source: BinaryIO, nonce: str) -> tuple[str, str]:
        """Upload part by part, one part in memory; an upload that fails is aborted, a crash leaves it to `sweep`."""
        where: Any = {"Bucket": self._bucket, "Key": name}
        where["UploadId"] = self._client.create_multipart_upload(**where, Metadata={NONCE: nonce})["UploadId"]
        parts: list[CompletedPartTypeDef] = []
        digests = b""
        try:
            while data := source.read(self._settings.s3_part_bytes):
                number = len(parts) + 1
                answer = self._client.upload_part(**where, PartNumber=number, Body=data)
                parts.append({"PartNumber": number, "ETag": answer["ETag"]})
                digests += _md5(data).digest()
            done = self._client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
        except BaseException:
            with suppress(BotoCoreError, ClientError):
                self._client.abort_multipart_upload(**where)
            raise
        return done["ETag"], f"{_md5(digests).hexdigest()}-{len(parts)}"

    def _prove(self, key: str, source: BinaryIO, etag: str, expected: str) -> None:
        """See that the store holds what was sent: by its ETag where that is an MD5 (which covers the size too), else
        by reading the object back. What arrived damaged is removed, so that the key can be tried again."""
        if etag.strip('"') == expected:
            return
        source.seek(0)
        sent, stored = hashlib.sha256(), hashlib.sha256()
        while data := source.read(CHUNK_BYTES):
            sent.update(data)
        for data in self._stream(key, 0, None):
            stored.update(data)
        if sent.digest() != stored.digest():
            self.delete([key])
            raise IntegrityFault(
                f"{key} was stored damaged by {self.url}", hint="does the endpoint keep chunked bodies with framing?"
            )

    def _stream(self, key: str, start: int, end: int | None) -> Generator[bytes]:
        """Bytes start (included) to end (excluded); a download that breaks off goes on from where it was."""
        for attempt in range(1, STREAM_TRIES + 1):
            body = self._open(key, start, end)
            if body is None:
                return
            try:
                for chunk in body.iter_chunks(CHUNK_BYTES):
                    start += len(chunk)
                    yield chunk
                return
            except BotoCoreError as error:
                if attempt == STREAM_TRIES:
                    raise _fault(key, self.url, error) from error
            finally:
                body.close()

    def _open(self, key: str, start: int, end: int | None) -> StreamingBody | None:
        """The body of a range, None when it starts at or after the object's end."""
        if end is not None and start >= end:
            return None
        options = {} if start == 0 and end is None else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        with self._translated(key):
            try:
                return self._client.get_object(Bucket=self._bucket, Key=self._name(key), **options)["Body"]  # type: ignore[arg-type]
            except ClientError as error:
                if _status(error) == 416:
                    return None
                raise

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise _fault(key, self.url, error) from error


_Sender = Callable[[str, BinaryIO, str], tuple[str, str]]
"""(object name, source at its start, nonce) -> (ETag that the store answered, ETag that is right)."""


def _fault(key: str, url: str, error: BotoCoreError | ClientError) -> Fault:
    """What boto3 said, as a fault that names the way out."""
    what = f"{url} failed at {key}: {error}"
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return StoreFault(what, hint=_CREDENTIALS_HINT, retryable=False)
    if not isinstance(error, ClientError):
        return StoreFault(what, hint="is the network up, and DAWN_S3_ENDPOINT_URL right?")
    status, code, offset_s = _status(error), _code(error), _clock_offset_s(error)
    if code == "RequestTimeTooSkewed" or (status == 403 and abs(offset_s) > SKEW_S):
        off = f"{abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} the store's" if offset_s else "wrong"
        return StoreFault(f"{url} refuses {key}: this machine's clock is {off}", hint="set the clock")
    if code == "NoSuchBucket":
        return StoreFault(what, hint="create the bucket first", retryable=False)
    if status == 404:
        return NotFoundFault(f"{key} is not in the archive")
    if status in (401, 403):
        return StoreFault(what, hint=_CREDENTIALS_HINT, retryable=False)
    if status == 501:
        return StoreFault(what, hint="the store lacks a function that is needed; use another", retryable=False)
    return StoreFault(what)


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _clock_offset_s(error: ClientError) -> float:
    """Seconds by which this machine is ahead of the store, 0 when the answer has no date."""
    try:
        theirs = parsedate_to_datetime(error.response["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, ValueError):
        return 0.0
    return (datetime.now(UTC) - theirs).total_seconds()


def _md5(data: bytes) -> Any:
    return hashlib.md5(data, usedforsecurity=False)
