"""Owns reading YAML 1.2 so that every complaint can name line and column. Refuses to know what a document means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

MAX_BYTES: Final = 4 * 2**20
MAX_NODES: Final = 200_000
"""Aliases are counted each time they are used, so that a small file cannot grow into a huge document."""
MAX_DEPTH: Final = 40

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One complaint: line and column count from 1, where is the dotted path of the value, "" for the document."""

    line: int
    column: int
    where: str
    message: str


@dataclass
class Document:
    """data: plain Python values. problems: what is wrong with the YAML itself (data is None when unreadable)."""

    data: Any = None
    problems: list[Problem] = field(default_factory=list)
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def problem(self, path: Path, message: str, *, at_key: bool = False) -> Problem:
        """A complaint about the value (or key) at path, placed at the nearest enclosing thing that exists."""
        near = path
        while near and near not in self.values:
            near = near[:-1]
        places = self.keys if at_key and near in self.keys else self.values
        line, column = places.get(near, (1, 1))
        return Problem(line, column, dotted(path), message)


def dotted(path: Path) -> str:
    """`targets[0].repo` for ("targets", 0, "repo")."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read(text: str) -> Document:
    """Parse one document. Never raises: what is wrong stands in `problems`, every duplicate key with its line."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    document = Document()
    if len(text) > MAX_BYTES:
        document.problems.append(Problem(1, 1, "", f"is larger than {MAX_BYTES >> 20} MiB"))
        return document
    yaml = YAML(typ="safe", pure=True)
    yaml.allow_duplicate_keys = True
    try:
        root = yaml.compose(text)
        if root is not None and _walk(root, document):
            document.data = yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        document.problems.append(Problem(line, column, "", error.problem or "is not YAML"))
    except YAMLError as error:
        document.problems.append(Problem(1, 1, "", str(error).splitlines()[0]))
    except (ValueError, RecursionError) as error:
        document.problems.append(Problem(1, 1, "", f"is not YAML we can read: {error}"))
    return document


def _walk(root: Any, document: Document) -> bool:
    """Note every place and every duplicate key; False when the document is too large or too deep to load."""
    pending: list[tuple[Path, Any]] = [((), root)]
    seen = 0
    while pending:
        path, node = pending.pop()
        seen += 1
        place = (node.start_mark.line + 1, node.start_mark.column + 1)
        if seen > MAX_NODES or len(path) > MAX_DEPTH:
            document.problems.append(Problem(*place, "", "has too many values or is nested too deep"))
            return False
        document.values[path] = place
        if node.id == "mapping":
            first: dict[str, int] = {}
            for key, value in node.value:
                name = str(key.value)
                line, column = key.start_mark.line + 1, key.start_mark.column + 1
                if name in first:
                    message = f"duplicate key, first given on line {first[name]}"
                    document.problems.append(Problem(line, column, dotted((*path, name)), message))
                    continue
                first[name] = line
                document.keys[(*path, name)] = (line, column)
                pending.append(((*path, name), value))
        elif node.id == "sequence":
            pending.extend(((*path, index), value) for index, value in enumerate(node.value))
    return True
