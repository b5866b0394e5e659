"""Owns where the targets of a manifest are listed: in it, in a file, in a folder of clones, in an earlier batch, on a
forge. Refuses to read what a repository holds.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationError, field_validator

from scheduler.manifests import pack
from scheduler.manifests.complaints import complaints
from scheduler.manifests.targets import Origin
from worker.contract.errors import ConflictFault, ForgeFault, InvalidFault, NotFoundFault
from worker.contract.frozen import Frozen, later
from worker.contract.places import MAX_BYTES, Document, Place, Problem
from worker.contract.search import GitHubSearch, GitLabSearch
from worker.contract.secret_name import SecretName
from worker.contract.task import Repo

ID_CHARS_MAX: Final = 200
VARS_MAX: Final = 50
VAR_CHARS_MAX: Final = 10_000

Where = Literal[
    "changed", "no_change", "failed", "cancelled", "skipped", "reused",
    "verified", "unverified", "still_failing", "broke", "flaky",
    "not_reached", "all",
]  # fmt: skip
"""Of a target in an earlier batch: its outcome, its verdict, or that it has none yet or was skipped."""


def text_file(path: Path, what: str, *, pipe: bool = False) -> str:
    """Its text, at most MAX_BYTES. Raises InvalidFault that names it; what: such as `a manifest in YAML`. pipe: it
    may be one, since a person named it: what only a manifest names could wait there for ever."""
    try:
        if not pipe and path.exists() and not path.is_file():
            raise InvalidFault(f"{path} is no regular file", hint=f"name {what}")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InvalidFault(f"{path} is larger than {MAX_BYTES >> 20} MiB", hint=f"name {what}")
        return data.decode("utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise InvalidFault(f"cannot read {path}: {error}", hint=f"name {what}, UTF-8") from error


def _printable(text: str) -> str:
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise ValueError("must hold no control characters")
    return text


def _data(text: str) -> str:
    if any(ord(letter) < 32 and letter not in "\n\t" for letter in text):
        raise ValueError("must hold no control characters but newlines and tabs")
    return text


At = Callable[[str], Place]
"""The place of an entry's key of that name, "" for the entry."""
VarName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
VarText = Annotated[str, Field(max_length=VAR_CHARS_MAX), AfterValidator(_data)]


class Target(Frozen):
    """One repository. repo: URL or local path. ref: branch, tag or commit; without it, the repository's HEAD. path:
    the folder inside it to work in. image: overrides environment.image. id: unique in the batch; without one, it is
    made of repository and path. vars: texts that prompt and commands name as {{ vars.NAME }}. secret: NAME of what
    opens it, `DAWN_SECRET_<NAME>` in the worker's environment."""

    repo: Annotated[str, Field(min_length=1)]
    ref: Annotated[str, Field(min_length=1)] | None = None
    path: str = ""
    image: Annotated[str, Field(min_length=1)] | None = None
    id: Annotated[str, Field(min_length=1, max_length=ID_CHARS_MAX), AfterValidator(_printable)] | None = later(None)
    vars: Annotated[dict[VarName, VarText], Field(max_length=VARS_MAX)] = later({})
    secret: SecretName | None = later(None)

    @field_validator("path")
    @classmethod
    def _plain(cls, path: str) -> str:
        try:
            Repo(url="-", path=path)
        except ValidationError as error:
            raise ValueError(str(error.errors()[0]["ctx"]["error"])) from None
        return path

    def expand(self, reach: Reach, at: At) -> Iterator[Listed]:
        """Itself."""
        yield Listed(self, at)


@dataclass(frozen=True)
class Listed:
    """A target that a source names. at: the place of its key of that name. origin: where its code is, when that is
    known without looking."""

    target: Target
    at: At
    origin: Origin | None = None


@dataclass(frozen=True)
class Reach:
    """What a source may look at. folder: what paths are relative to. outside: asks archive and forges; None offline,
    and then such sources list nothing."""

    folder: Path
    outside: Outside | None = None


class FromFile(Frozen):
    """Targets in a file beside the manifest. file: a table, NAME.csv, whose first line names its columns (repo, ref,
    path, image, id, secret; any other is a var), or a text with one repository a line, where # begins a comment.
    Paths in it are relative to the manifest."""

    file: Annotated[str, Field(min_length=1)]

    def expand(self, reach: Reach, at: At) -> Iterator[Listed | Problem]:
        """Its lines, and what is wrong in them."""
        try:
            text = text_file(reach.folder / self.file, "a list of repositories")
            rows = _table(text) if self.file.endswith(".csv") else _lines(text)
            for line, row in rows:
                yield from _listed(row, Place(line, 1, file=self.file))
        except InvalidFault as fault:
            yield at("file").problem("file", fault.message, fault.hint)
        except csv.Error as error:
            yield at("file").problem("file", f"{self.file} is no table: {error}")


class FromFolder(Frozen):
    """Every git repository directly inside a folder. folder: relative to the manifest."""

    folder: Annotated[str, Field(min_length=1)]

    def expand(self, reach: Reach, at: At) -> Iterator[Listed | Problem]:
        """By name."""
        found = False
        try:
            for path in sorted((reach.folder / self.folder).iterdir()):
                if path.is_dir() and not path.name.startswith(".") and pack.git_dir(path) is not None:
                    found = True
                    yield Listed(Target(repo=str(Path(self.folder) / path.name)), at)
        except (OSError, InvalidFault) as error:
            yield at("folder").problem("file", f"cannot read {self.folder}: {error}")
            return
        if not found:
            message = f"{self.folder} holds no git repository"
            yield at("folder").problem("target", message, "name the folder that the clones lie in")


class Previous(Frozen):
    """Targets of an earlier batch. batch: its id, or the name that its manifests have, for the latest of them. where:
    one or more of changed, no_change, failed, cancelled, skipped, reused (outcomes), verified, unverified,
    still_failing, broke, flaky (verdicts), not_reached (no end yet, or skipped) and all."""

    batch: Annotated[str, Field(min_length=1)]
    where: Annotated[
        tuple[Where, ...],
        Field(min_length=1),
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value, Where | tuple[Where, ...]),
    ]

    @property
    def told(self) -> str:
        return f"batch {self.batch}"


class FromPrevious(Frozen):
    """Targets of an earlier batch that ended in some way, read from the archive when a plan is made or submitted."""

    previous: Previous

    @property
    def asked(self) -> Previous:
        return self.previous

    def expand(self, reach: Reach, at: At) -> Iterator[Listed | Problem]:
        """In that batch's order; nothing offline."""
        return _outside(reach, self.asked, "previous", at)


class FromGitHub(Frozen):
    """Repositories of GitHub, asked for when a plan is made or submitted."""

    github: GitHubSearch

    @property
    def asked(self) -> GitHubSearch:
        return self.github

    def expand(self, reach: Reach, at: At) -> Iterator[Listed | Problem]:
        """By path, which is their id; nothing offline. Raises ForgeFault where it may go better another time."""
        return _outside(reach, self.asked, "github", at)


class FromGitLab(Frozen):
    """Repositories of a group of GitLab, asked for when a plan is made or submitted."""

    gitlab: GitLabSearch

    @property
    def asked(self) -> GitLabSearch:
        return self.gitlab

    def expand(self, reach: Reach, at: At) -> Iterator[Listed | Problem]:
        """By path, which is their id; nothing offline. Raises ForgeFault where it may go better another time."""
        return _outside(reach, self.asked, "gitlab", at)


def _kind(value: Any) -> str:
    """The key that says where an entry's targets are."""
    written = value if isinstance(value, Mapping) else type(value).model_fields if isinstance(value, Frozen) else ()
    return next((key for key in ("file", "folder", "previous", "github", "gitlab") if key in written), "repo")


FromOutside = FromPrevious | FromGitHub | FromGitLab
"""Who else must be asked which targets there are."""
Asked = Previous | GitHubSearch | GitLabSearch
"""What they are asked. Each has `told`, for people."""
Outside = Callable[[Asked], Sequence[tuple[Target, Origin | None]]]
"""Raises NotFoundFault, ConflictFault, ForgeFault, StoreFault."""
Source = Annotated[
    Annotated[Target, Tag("repo")]
    | Annotated[FromFile, Tag("file")]
    | Annotated[FromFolder, Tag("folder")]
    | Annotated[FromPrevious, Tag("previous")]
    | Annotated[FromGitHub, Tag("github")]
    | Annotated[FromGitLab, Tag("gitlab")],
    Discriminator(_kind),
]
"""An entry of a manifest's targets. Each kind has `expand`."""


def _outside(reach: Reach, asked: Asked, key: str, at: At) -> Iterator[Listed | Problem]:
    try:
        for target, origin in () if reach.outside is None else reach.outside(asked):
            yield Listed(target, at, origin)
    except (NotFoundFault, ConflictFault, ForgeFault) as fault:
        if fault.retryable:
            raise
        yield at(key).problem("target", fault.message, fault.hint)


def _lines(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if repo := re.sub(r"(^|\s)#.*", "", line).strip():
            yield number, {"repo": repo}


def _table(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, fields) of each row; an empty cell of a column that is no var is left out. Raises csv.Error."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns = next(rows, [])
    twice = sorted(name for name, times in Counter(columns).items() if times > 1)
    if "repo" not in columns or twice:
        raise csv.Error(f"two columns {twice[0]!r}" if twice else "its first line names no column repo")
    own = Target.model_fields.keys() - {"vars"}
    line = rows.line_num + 1
    for cells in rows:
        if len(cells) > len(columns):
            raise csv.Error(f"line {line} has {len(cells)} cells, for {len(columns)} columns")
        named = dict(zip(columns, cells, strict=False))
        if cells:
            texts = {name: cell for name, cell in named.items() if name not in own}
            yield line, {name: cell for name, cell in named.items() if name in own and cell} | {"vars": texts}
        line = rows.line_num + 1


def _listed(row: Mapping[str, Any], place: Place) -> Iterator[Listed | Problem]:
    def at(key: str) -> Place:
        return replace(place, where=key)

    try:
        yield Listed(Target.model_validate(row), at)
    except ValidationError as error:
        for told in complaints(Document(), error, Target):
            yield at(told.where).problem(told.code, told.message, told.hint)
