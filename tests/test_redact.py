"""Masking of known secrets (H57, T67)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.contract.errors import UsageFault
from worker.contract.redact import Redactor, redactor_from_env, traces, without_passwords

TOKEN = 'tok/+ en"ß\\42'
LINES = [base64.b64encode(bytes(range(n, n + 48))).decode() for n in range(0, 96, 48)]
PEM = "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *LINES, "c2hvcnQ=", "-----END OPENSSH PRIVATE KEY-----", ""])
REDACTOR = Redactor({"TOKEN": TOKEN, "KEY": PEM, "REMOTE": "https://bot:p%40ss-word-1@git.example/x"})


@pytest.mark.parametrize(
    "form",
    [
        TOKEN,
        json.dumps(TOKEN)[1:-1],
        json.dumps(TOKEN, ensure_ascii=False)[1:-1],
        quote(TOKEN),
        quote(TOKEN, safe=""),
        quote(TOKEN, safe="").lower(),
    ],
)
def test_a_secret_is_masked_in_every_form_it_is_written_in(form: str) -> None:
    """Raw, JSON-escaped and URL-encoded, in text and in bytes."""
    assert REDACTOR.text(f"a {form} b") == "a [secret TOKEN] b"
    assert REDACTOR.data(f"a {form} b".encode()) == b"a [secret TOKEN] b"


@pytest.mark.parametrize("before", ["", "x", "xy", "xyz", "x-access-token:"])
@pytest.mark.parametrize("after", ["", "1", "12"])
def test_a_secret_is_masked_inside_base64(before: str, after: str) -> None:
    """A Basic header holds the secret at any alignment; what is left decodes to no more than its neighbours."""
    masked = REDACTOR.text(base64.b64encode(f"{before}{TOKEN}{after}".encode()).decode())
    assert "[secret TOKEN]" in masked
    assert len(masked.replace("[secret TOKEN]", "")) <= len(before) * 4 / 3 + 8


def test_each_long_line_of_a_key_is_masked_by_itself() -> None:
    """A key printed with line numbers or CRLF is still masked, while its public header stays readable."""
    printed = "\r\n".join(f"{n}: {line}" for n, line in enumerate(PEM.splitlines()))
    masked = REDACTOR.text(printed)
    assert not any(line in masked for line in LINES)
    assert "-----BEGIN OPENSSH PRIVATE KEY-----" in masked
    assert REDACTOR.text(PEM.strip()) == "[secret KEY]"


def test_the_password_of_a_secret_address_is_masked_alone() -> None:
    """Programs print parts of an address, decoded or not."""
    assert REDACTOR.text("login p@ss-word-1 failed") == "login [secret REMOTE] failed"
    assert "p%40ss-word-1" not in REDACTOR.text("fatal: https://bot:p%40ss-word-1@git.example/y")


def test_what_only_looks_like_a_token_is_left_alone() -> None:
    """Masking a repository's own test data would make its files uneditable."""
    text = "ghp_" + "a" * 36 + " https://user:password@example.com AKIAIOSFODNN7EXAMPLE"
    assert REDACTOR.text(text) == text


def test_nested_values_are_masked_in_keys_and_leaves() -> None:
    """A provider's native content is JSON, not text."""
    assert REDACTOR.nested({TOKEN: [1, None, ("x", TOKEN)]}) == {"[secret TOKEN]": [1, None, ("x", "[secret TOKEN]")]}


def test_the_longest_of_two_overlapping_secrets_wins() -> None:
    """A secret that starts with another one leaves no rest behind."""
    redactor = Redactor({"SHORT": "abcdefgh", "LONG": "abcdefgh-ijkl"})
    assert redactor.text("abcdefgh-ijkl abcdefgh") == "[secret LONG] [secret SHORT]"


pieces = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.sampled_from([b"abcdefgh", b"abcdefgh-ijkl", b"abcd", b"efgh-", b"ghabcdef", b"\n", b"abcdefgh-ijk"]),
    ),
    max_size=30,
)


@given(pieces=pieces, cuts=st.lists(st.integers(0, 400), max_size=20))
@settings(deadline=None, max_examples=300)
def test_a_secret_split_between_chunks_is_masked_as_if_it_had_come_in_one_piece(
    pieces: list[bytes], cuts: list[int]
) -> None:
    """However a stream is cut, what is written equals masking the whole (H57)."""
    redactor = Redactor({"SHORT": "abcdefgh", "LONG": "abcdefgh-ijkl", "OTHER": "gh-ijklmn"})
    data = b"".join(pieces)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    stream = redactor.stream()
    written = [stream.feed(data[start:end]) for start, end in pairwise(edges)]
    assert b"".join([*written, stream.close()]) == redactor.data(data)


def test_a_stream_holds_back_no_more_than_the_longest_secret() -> None:
    """Memory stays bounded however much is written."""
    stream = REDACTOR.stream()
    fed = 50 * b"x" * 1000
    assert len(fed) - len(stream.feed(fed)) < REDACTOR.longest


def test_without_secrets_nothing_changes() -> None:
    """An empty mapping, or empty values, mask nothing and hold nothing back."""
    redactor = Redactor({"EMPTY": " \n"})
    assert redactor.stream().feed(b"\xff\x00abc") == b"\xff\x00abc"
    assert redactor.text("abc") == "abc"


def test_a_secret_too_short_to_mask_is_refused_with_a_hint() -> None:
    """A four-letter secret would be masked inside ordinary words."""
    with pytest.raises(UsageFault, match="secret PIN is shorter than 8") as caught:
        Redactor({"PIN": "1234567"})
    assert caught.value.hint
    assert "1234567" not in str(caught.value)


def test_the_environment_names_what_is_secret() -> None:
    """DAWN_SECRET_* under their short name, keys and the passwords of addresses under their variable."""
    env = {
        "DAWN_SECRET_GITHUB": "gh-token-1\n",
        "ANTHROPIC_API_KEY": "anthropic-1",
        "AWS_SECRET_ACCESS_KEY": "aws-secret-1",
        "DAWN_REDIS_URL": "redis://:redis-pass-1@host:6379/0",
        "HOME": "/home/somebody",
        "OPENAI_API_KEY": "EMPTY",
    }
    text = "gh-token-1 anthropic-1 aws-secret-1 redis-pass-1 /home/somebody EMPTY"
    assert redactor_from_env(env).text(text) == (
        "[secret GITHUB] [secret ANTHROPIC_API_KEY] [secret AWS_SECRET_ACCESS_KEY] [secret DAWN_REDIS_URL]"
        " /home/somebody EMPTY"
    )


def test_a_secret_that_is_not_utf8_is_masked_as_its_bytes() -> None:
    """The environment may hold any bytes; Python keeps them as surrogates."""
    redactor = redactor_from_env({"DAWN_SECRET_RAW": "caf\udce9-secret"})
    assert redactor.data(b"a caf\xe9-secret b") == b"a [secret RAW] b"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://:s3cret@host:6379/0", "redis://:***@host:6379/0"),
        ("could not reach http://ann:p@ss:w@host/x now", "could not reach http://ann:***@host/x now"),
        ("unix:///run/valkey.sock?db=0&password=s3cret&x=1", "unix:///run/valkey.sock?db=0&password=***&x=1"),
        ("http://host:6379/a:b@c and s3://bucket/x", "http://host:6379/a:b@c and s3://bucket/x"),
    ],
)
def test_passwords_of_addresses_are_not_shown(address: str, shown: str) -> None:
    """However short a password is, an address is shown without it and otherwise as it is."""
    assert without_passwords(address) == shown


@pytest.mark.parametrize(
    "written",
    [
        lambda value: value,
        lambda value: json.dumps({"key": value}),
        lambda value: value.replace("\n", "\r\n"),
        lambda value: base64.b64encode(b"user:" + value.encode()).decode(),
        lambda value: base64.urlsafe_b64encode(b"a" + value.encode()).decode(),
        lambda value: quote(value, safe=""),
    ],
    ids=["plain", "json", "crlf", "basic", "urlsafe", "url"],
)
def test_a_written_secret_leaves_one_of_its_traces(written: Callable[[str], str]) -> None:
    """In any of the forms that are masked; a long key is looked for as a whole and by one line, not by each."""
    value = "-----BEGIN KEY-----\n" + "\n".join(f"line/{number:02}+of-the-key" for number in range(50)) + "\n"
    found = traces(value)
    assert any(one in written(value).encode() for one in found)
    assert len(found) < 30
