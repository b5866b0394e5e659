"""What a task's Dockerfile may say, and what an engine is sent of it."""

from __future__ import annotations

import pytest

from worker.contract.dockerfile import Mistake, read

SOUND = """\
# syntax=docker/dockerfile:1
ARG RELEASE=3.11
FROM python:${RELEASE}-slim AS tools

RUN apt-get update \\
 # a comment between two lines

 && echo $((1 << 3)) <<< "x" >/made
  from python
COPY --from=tools --chown=1000 /made /made
COPY --from=0 /made /also
FROM tools
FROM scratch
"""


def test_its_bases_are_named_once_and_stages_are_none() -> None:
    """With the value of an ARG before the first FROM; `python` without a tag is ours, and another image."""
    found = read(SOUND)
    assert found.mistakes == ()
    assert found.bases == ("python:3.11-slim", "python")


def test_an_engine_is_sent_the_bases_that_were_looked_at() -> None:
    """Each by its id, with labels on all that comes of it; every other line stays as it was written."""
    ids = {"python:3.11-slim": "sha256:aa", "python": "sha256:bb"}
    sent = read(SOUND).pinned(ids, lambda base: {"b": base}).split("\n")
    written = SOUND.split("\n")
    assert sent[2:4] == ["FROM sha256:aa AS tools", 'LABEL b="sha256:aa"']
    assert sent[9:11] == ["FROM sha256:bb", 'LABEL b="sha256:bb"']
    assert sent[13:] == ["FROM tools", "FROM scratch", 'LABEL b=""', ""]
    assert sent[4:9] + sent[11:13] == written[3:8] + written[9:11]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("FROM a\n  COPY . /app\n", 2, "COPY needs files"),
        ("FROM a\nADD https://example.org/x /x", 2, "ADD needs files or an address"),
        ("FROM a\nCOPY --from=other /x /x", 2, "--from=other is no stage before it"),
        ("FROM a AS b\nCOPY --from=b /x /x", 2, "--from=b is no stage before it"),
        ("FROM a\nRUN --mount=type=secret,id=x cat", 2, "RUN --mount needs BuildKit"),
        ("FROM a\nRUN cat <<EOF >/x\nhello\nEOF\nRUN true", 2, "a here-document needs BuildKit"),
        ("FROM a\nRUM true", 2, "RUM is no instruction"),
        ("FROM $X", 1, "nothing gives $X in FROM a value"),
        ("FROM ${X:-a}", 1, "nothing gives $ in FROM a value"),
        ("FROM --platform=linux/arm64 a", 1, "FROM takes no --platform here"),
        ("FROM a b", 1, "FROM names one image"),
        ("RUN true\nFROM a", 1, "RUN stands before the first FROM"),
        ("# nothing\n", 1, "has no FROM"),
        ("#escape=`\nFROM a", 1, "changes how lines are continued"),
    ],
)
def test_what_cannot_be_built_is_told_with_its_line(text: str, line: int, said: str) -> None:
    """There are no files beside it, and no BuildKit; a stage cannot be copied into itself."""
    told = read(text).mistakes
    assert [(one.line, said in one.message) for one in told] == [(line, True)] or said in {
        one.message for one in told
    }


def test_every_mistake_is_told_at_once() -> None:
    """Also those behind a FROM that names nothing; the column is that of the keyword."""
    found = read("FROM\nADD a b\n\n\t COPY \\\n  c d\nWORKDIR /x\n").mistakes
    assert [(one.line, one.column) for one in found] == [(1, 1), (2, 1), (4, 3)]
    assert isinstance(found[0], Mistake)
