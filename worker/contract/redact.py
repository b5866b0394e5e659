"""Owns the masking of known secrets in text and bytes. Refuses to guess: only values it was given are masked, and
passwords where the address itself shows that they are one.

Patterns of well-known tokens (`ghp_...`, `AKIA...`, `user:password@`) are deliberately absent: repositories hold
such strings in their tests, and a model that reads a masked line can no longer edit it.

A secret is found as it stands, JSON-escaped, URL-encoded, and inside Base64 (`Authorization: Basic`). Of a
value of several lines (a PEM key) each long line is found by itself; of a URL, its password. This covers what
programs do to a value by accident; a program that wants to hide a secret can always encode it further.
Mask before cutting: half a secret at the edge of a cut is not found.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote, urlsplit

from worker.contract.errors import UsageFault

MIN_CHARS: Final = 8
"""A shorter value would be masked inside ordinary words."""
MIN_LINE_CHARS: Final = 16
"""Of a value of several lines, lines from this length on are masked wherever they stand alone."""

SECRET_PREFIX: Final = "DAWN_SECRET_"
MODEL_SECRET_PREFIX: Final = "DAWN_MODEL_SECRET_"
"""Of what the deployment's own models are given (worker/models/processes.py)."""
_KEYS: Final = (
    "DAWN_ANTHROPIC_API_KEY",
    "ANTHROPIC_API_KEY",
    "DAWN_OPENAI_API_KEY",
    "OPENAI_API_KEY",
    "DAWN_S3_ACCESS_KEY_ID",
    "DAWN_S3_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)
_URLS: Final = ("DAWN_REDIS_URL", "DAWN_OPENAI_BASE_URL", "DAWN_ANTHROPIC_BASE_URL", "DAWN_S3_ENDPOINT_URL")
_PASSWORD: Final = re.compile(r"(://[^\s/?#:@]*:)[^\s/?#]+(?=@)|([?&]password=)[^\s&#]+")


class Redactor:
    """Puts `[secret NAME]` where a secret's value stood. Safe to share between threads."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """secrets: name -> value; empty values count as absent. Raises UsageFault for one too short to mask."""
        masks: dict[str, str] = {}
        for name, value in secrets.items():
            value = value.strip()
            if value and len(value) < MIN_CHARS:
                raise UsageFault(
                    f"secret {name} is shorter than {MIN_CHARS} characters and cannot be masked safely",
                    hint="use a longer one, or leave it out",
                )
            for form in _forms(value) if value else ():
                masks.setdefault(form, f"[secret {name}]")
        # Longest first: where two forms start at one place the regular expression takes the first listed.
        forms = sorted(masks, key=len, reverse=True)
        self._masks = masks
        self._byte_masks = {_bytes(form): mask.encode() for form, mask in masks.items()}
        self._pattern = re.compile("|".join(map(re.escape, forms)) or r"(?!)")
        self._byte_pattern = re.compile(b"|".join(re.escape(_bytes(form)) for form in forms) or rb"(?!)")
        self.longest = max(map(len, self._byte_masks), default=0)

    def text(self, text: str) -> str:
        """text with every secret masked."""
        if not any(form in text for form in self._masks):  # a plain search is far cheaper than the alternation
            return text
        return self._pattern.sub(lambda match: self._masks[match[0]], text)

    def data(self, data: bytes) -> bytes:
        """data with every secret masked, whatever else the bytes are."""
        if not any(form in data for form in self._byte_masks):
            return data
        return self._byte_pattern.sub(lambda match: self._byte_masks[match[0]], data)

    def nested(self, value: Any) -> Any:
        """A JSON-like value with every string in it masked, keys too."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.nested(key): self.nested(item) for key, item in value.items()}
            case list() | tuple():
                return type(value)(self.nested(item) for item in value)
            case _:
                return value

    def stream(self) -> RedactingStream:
        """For bytes that come in chunks: a secret split between chunks is masked too."""
        return RedactingStream(self)

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """(masked bytes that no later byte can change, the rest as it came)."""
        decided = len(data) - self.longest + 1
        if decided <= 0:
            return b"", data
        out: list[bytes] = []
        position = 0
        for match in self._matches(data):
            if match.start() >= decided:
                break
            out += data[position : match.start()], self._byte_masks[match[0]]
            position = match.end()
        out.append(data[position:decided])
        return b"".join(out), data[max(position, decided) :]

    def _matches(self, data: bytes) -> Iterator[re.Match[bytes]]:
        return self._byte_pattern.finditer(data) if any(form in data for form in self._byte_masks) else iter(())


class RedactingStream:
    """Feed chunks, write what comes back, close at the end. Holds back at most the longest secret's length."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """What can be written now."""
        done, self._rest = self._redactor.split(self._rest + chunk)
        return done

    def close(self) -> bytes:
        """What was held back."""
        rest, self._rest = self._rest, b""
        return self._redactor.data(rest)


def redactor_from_env(env: Mapping[str, str]) -> Redactor:
    """Masks `DAWN_SECRET_NAME` as NAME, and `DAWN_MODEL_SECRET_*`, the provider and store keys and passwords in the
    addresses of a deployment under their variable's name. Raises UsageFault for one of the first two kinds that is
    too short; a key or password too short is left alone, because those are the stand-ins of local servers ("test",
    "EMPTY")."""
    secrets = {
        name.removeprefix(SECRET_PREFIX): value
        for name, value in env.items()
        if name.startswith((SECRET_PREFIX, MODEL_SECRET_PREFIX))
    }
    for name in (*_KEYS, *_URLS):
        value = env.get(name, "").strip()
        if name in _URLS:
            value = url_password(value) or ""
        if len(value) >= MIN_CHARS:
            secrets.setdefault(name, value)
    return Redactor(secrets)


def without_passwords(text: str) -> str:
    """text with the password of every address in it (`redis://user:password@host`, `?password=...`) as `***`. For
    what the control plane shows of a deployment's own addresses; text of a repository or a model stays as it is."""
    return _PASSWORD.sub(lambda match: f"{match[1] or match[2]}***", text)


def traces(value: str) -> set[bytes]:
    """What stands in a file that a program wrote the value to, in any of the forms that are masked. Of a value of
    several lines, also its longest line; the others are where that is."""
    value = value.strip()
    parts = {value, max(_key_lines(value), key=len, default=value), url_password(value) or value}
    return {_bytes(form) for part in parts if len(part) >= MIN_CHARS for form in _written(part)}


def _forms(value: str) -> Iterator[str]:
    for part in (value, *_key_lines(value), url_password(value) or ""):
        if len(part) >= MIN_CHARS:
            yield from _written(part)


def _key_lines(value: str) -> list[str]:
    lines = [line.strip() for line in value.splitlines()] if "\n" in value else []
    return [line for line in lines if len(line) >= MIN_LINE_CHARS and not line.startswith("-----")]


def _written(part: str) -> Iterator[str]:
    yield part
    yield json.dumps(part)[1:-1]
    yield json.dumps(part, ensure_ascii=False)[1:-1]
    raw = _bytes(part)
    for encoded in (quote(raw), quote(raw, safe=""), quote_plus(raw)):
        yield encoded
        yield re.sub(r"%[0-9A-F]{2}", lambda escape: escape[0].lower(), encoded)
    yield from _base64_cores(raw)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # as Python reads an environment that is not UTF-8


def _base64_cores(value: bytes) -> Iterator[str]:
    """The characters of Base64 that value alone decides, for each of its three alignments in a longer text."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + value)
        core = encoded[-(-before * 8 // 6) : (before + len(value)) * 8 // 6].decode()
        yield core
        yield core.translate(str.maketrans("+/", "-_"))


def url_password(value: str) -> str | None:
    """The password in an address, decoded; None in what has none."""
    try:
        password = urlsplit(value).password if "://" in value else None
    except ValueError:
        return None
    return unquote(password) if password else None
