"""Owns reading issues as tasks: the JSON list that GitHub's API answers, or a folder of Markdown files. Refuses to
take pull requests, and comments, for what is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scheduler.imports.fleet import ImportFault, Wanted, text_of
from worker.contract.errors import InvalidFault
from worker.contract.events import read_json

FILE_BYTES: Final = 256 * 2**20
ISSUE: Final = re.compile(r"(https://[A-Za-z0-9.-]+(?::\d+)?/[A-Za-z0-9_.-]+/([A-Za-z0-9_.-]+))/issues/\d+")


def read(path: Path, repo: str | None) -> list[Wanted]:
    """All issues of a file, or of a folder. repo: of all of them; None where each tells its own.

    Raises ImportFault with everything that is no issue, InvalidFault for what cannot be read.
    """
    found = _documents(path, repo) if path.is_dir() else _listed(path, repo)
    wanted: list[Wanted] = []
    problems: list[str] = []
    for one in found:
        if isinstance(one, Wanted):
            wanted.append(one)
        else:
            problems.append(one)
    if problems:
        raise ImportFault(path, problems)
    return wanted


def _listed(path: Path, repo: str | None) -> Iterator[Wanted | str]:
    try:
        rows = read_json(_bytes(path))
    except ValueError:
        rows = None
    if not isinstance(rows, list):
        raise InvalidFault(f"{path} is no JSON list", hint="as GET /repos/OWNER/NAME/issues answers it")
    for number, row in enumerate(rows, start=1):
        if not (isinstance(row, dict) and "pull_request" in row):
            yield _issue(f"{path}: issue {number} of the list", row, repo)


def _issue(where: str, row: Any, repo: str | None) -> Wanted | str:
    if not isinstance(row, dict) or not isinstance(row.get("title"), str) or not row["title"].strip():
        return f"{where} has no title"
    number, body = row.get("number"), row.get("body") or ""
    if not isinstance(number, int) or not isinstance(body, str):
        return f"{where} has no number, or a body that is no text"
    told = ISSUE.fullmatch(str(row.get("html_url")))
    if repo is None and told is None:
        return f"{where} tells no repository by its html_url; name one with --repo"
    name = told[2] if told else Path(repo or "").name
    title = " ".join(row["title"].split())
    return Wanted(f"{name}#{number}", repo or (told[1] if told else ""), "", text_of(f"# {title}\n\n{body}".rstrip()))


def _documents(path: Path, repo: str | None) -> Iterator[Wanted | str]:
    if repo is None:
        raise InvalidFault(f"files in {path} tell no repository", hint="name it with --repo")
    for file in sorted(path.glob("*.md")):
        try:
            text = _bytes(file).decode("utf-8-sig")
        except UnicodeDecodeError:
            yield f"{file} is not UTF-8"
            continue
        if not text.strip():
            yield f"{file} is empty"
            continue
        title = "" if text.lstrip().startswith("# ") else f"# {file.stem}\n\n"
        yield Wanted(
            text_of(file.stem).replace("\n", " ").replace("\t", " "), repo, "", text_of(title + text.strip())
        )


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise InvalidFault(f"cannot read {path}: {error.strerror}", hint="name a file or a folder") from error
    if len(data) > FILE_BYTES:
        raise InvalidFault(f"{path} is larger than {FILE_BYTES >> 20} MiB")
    return data
