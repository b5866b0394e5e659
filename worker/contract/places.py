"""Owns reading YAML 1.2 so that every complaint can name line and column. Refuses to know what a document means."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal

MAX_BYTES: Final = 4 * 2**20
MAX_NODES: Final = 200_000
"""Aliases are counted each time they are used, so that a small file cannot grow into a huge document."""
MAX_DEPTH: Final = 40
TOO_DEEP: Final = f"is nested deeper than {MAX_DEPTH} levels"
SURROGATE: Final = re.compile("[\ud800-\udfff]")

Path = tuple[str | int, ...]

Code = Literal[
    "yaml",  # the text is no YAML, too large or too deep
    "duplicate-key",  # a mapping says a key twice
    "unknown-key",  # a key that nothing reads
    "missing",  # a key that must be there
    "type",  # text where a number belongs, and the like
    "value",  # of the right type, but not allowed, or against another value
    "file",  # a file that the document names cannot be used
    "template",  # a {{ place }} that cannot be filled
    "target",  # a repository that cannot be used, or none is left
    "duplicate-id",  # two targets say the same id
    "too-many",  # more targets than max_targets
]
"""The kinds of complaints, a closed set: programs may tell them apart by it."""


@dataclass(frozen=True)
class Place:
    """line and column count from 1; where is the dotted path of the value, "" for the document. file: the one that
    it stands in, "" for the document itself."""

    line: int
    column: int
    where: str = ""
    file: str = ""

    def problem(self, code: Code, message: str, hint: str = "") -> Problem:
        """A complaint about what stands here."""
        return Problem(self.line, self.column, self.where, message, code, hint, self.file)


@dataclass(frozen=True)
class Problem:
    """One complaint, and where (see Place). hint: what to do about it, or empty."""

    line: int
    column: int
    where: str
    message: str
    code: Code = "value"
    hint: str = ""
    file: str = ""


@dataclass
class Document:
    """data: plain Python values. problems: what is wrong with the YAML itself (data is None when unreadable)."""

    text: str = ""
    data: Any = None
    problems: list[Problem] = field(default_factory=list)
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def place(self, path: Path, *, at_key: bool = False) -> Place:
        """Of the value (or key) at path, or of the nearest enclosing thing that exists."""
        near = path = self._written(path)
        while near and near not in self.values:
            near = near[:-1]
        places = self.keys if at_key and near in self.keys else self.values
        return Place(*places.get(near, (1, 1)), dotted(path))

    def problem(
        self, path: Path, message: str, *, at_key: bool = False, code: Code = "value", hint: str = ""
    ) -> Problem:
        """A complaint about the value (or key) at path."""
        return self.place(path, at_key=at_key).problem(code, message, hint)

    def inside(self, path: Path, mark: str, count: int) -> Place:
        """Where in the text at path the mark stands for the count-th time (from 0)."""
        start = self.place(path)
        lines = self.text.split("\n")[start.line - 1 :]
        lines[0] = " " * (start.column - 1) + lines[0][start.column - 1 :]
        for number, line in enumerate(lines):
            if count < (found := line.count(mark)):
                column = len(mark.join(line.split(mark)[: count + 1])) + 1
                return Place(start.line + number, column, start.where)
            count -= found
        return start

    def _written(self, path: Path) -> Path:
        """Without the number of an entry that was written alone, where a list of one belongs."""
        for at, part in enumerate(path):
            if part == 0 and path[:at] in self.values and path[: at + 1] not in self.values:
                return self._written((*path[:at], *path[at + 1 :]))
        return path


def dotted(path: Path) -> str:
    """`targets[0].repo` for ("targets", 0, "repo")."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read(text: str) -> Document:
    """Parse one document. Never raises: what is wrong stands in `problems`, every duplicate key with both places."""
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import MaxDepthExceededError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    document = Document(text)

    def refuse(message: str, line: int = 1, column: int = 1) -> None:
        document.problems.append(Place(line, column).problem("yaml", message))

    if len(text) > MAX_BYTES:
        refuse(f"is larger than {MAX_BYTES >> 20} MiB")
        return document
    if text.startswith("%"):
        refuse("is read as YAML 1.2 and takes no % directive")
        return document
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MAX_DEPTH  # while it is read: what is nested deeper takes long
    yaml.allow_duplicate_keys = True
    try:
        root = yaml.compose(text)
        if root is not None and _walk(root, document):
            document.data = yaml.constructor.construct_document(root)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        deep = isinstance(error, MaxDepthExceededError)
        refuse(TOO_DEEP if deep else error.problem or "is not YAML", line, column)
    except YAMLError as error:
        refuse(str(error).splitlines()[0])
    except (ValueError, RecursionError) as error:
        refuse(f"is not YAML we can read: {error}")
    return document


def _walk(root: Any, document: Document) -> bool:
    """Note every place and every duplicate key; False when the document holds what must not be loaded."""
    pending: list[tuple[Path, Any]] = [((), root)]
    seen = 0
    while pending:
        path, node = pending.pop()
        seen += 1
        at = (node.start_mark.line + 1, node.start_mark.column + 1)
        if refused := _refused(node, len(path), seen):
            document.problems.append(Place(*at).problem("yaml", refused))
            return False
        document.values[path] = at
        if node.id == "mapping":
            first: dict[str, tuple[int, int]] = {}
            for key, value in node.value:
                name = str(key.value)
                at = (key.start_mark.line + 1, key.start_mark.column + 1)
                if name in first:
                    message = "is given twice, first on line {} column {}".format(*first[name])
                    twice = Place(*at, dotted((*path, name)))
                    document.problems.append(twice.problem("duplicate-key", message, "keep one of them"))
                    continue
                first[name] = document.keys[(*path, name)] = at
                pending.append(((*path, name), value))
        elif node.id == "sequence":
            pending.extend(((*path, index), value) for index, value in enumerate(node.value))
    return True


def _refused(node: Any, depth: int, seen: int) -> str:
    """Why a node, the seen-th of its document, must not be loaded; empty when it may."""
    if seen > MAX_NODES:
        return f"makes more than {MAX_NODES:,} values, each alias counted where it is used"
    if depth > MAX_DEPTH:
        return TOO_DEEP
    if node.id == "scalar" and SURROGATE.search(node.value):
        return "holds half a character (a lone surrogate)"
    return ""
