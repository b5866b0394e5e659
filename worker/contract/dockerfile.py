"""Owns what may stand in the Dockerfile that a task brings: its stages, what they are built on, and each instruction
that needs what a build here does not have. Refuses to build it.

A build is given the text and nothing beside it, by the engine's own builder: no files to copy, no BuildKit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

KEYWORDS: Final = (
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER"),
    *("ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
)
SCRATCH: Final = "scratch"
"""Not an image: a stage on it begins empty."""
NO_FILES: Final = "no file is sent along with a Dockerfile"
FETCH_HINT: Final = "the repository is not part of an image; fetch what is, with RUN"

_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*$")
_PLACE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*)|)")
_HERE = re.compile(r"(?<!\S)\d*<<-?[\"']?([A-Za-z_]\w*)[\"']?(?!\S)")


@dataclass(frozen=True)
class Mistake:
    """line, column: from 1."""

    line: int
    column: int
    message: str
    hint: str = ""


@dataclass(frozen=True)
class Stage:
    """first, last: its FROM in the lines of the text, from 0. base: an image, `scratch`, or the name of an earlier
    stage (then `earlier`). name: "" for none."""

    first: int
    last: int
    base: str
    name: str
    earlier: bool


@dataclass(frozen=True)
class Dockerfile:
    """What was read of one. mistakes: all of it that cannot be built here; without them it may be."""

    text: str
    stages: tuple[Stage, ...]
    mistakes: tuple[Mistake, ...]

    @property
    def bases(self) -> tuple[str, ...]:
        """The images that it is built on, each once."""
        return tuple(dict.fromkeys(one.base for one in self.stages if not one.earlier and one.base != SCRATCH))

    def pinned(self, ids: Mapping[str, str], labels: Callable[[str], Mapping[str, str]]) -> str:
        """The text that an engine builds: each base by its id, so that it is the one that was looked at, and the
        labels of each on all that comes of it. ids: base -> id; labels: of an id, "" for `scratch`."""
        lines = self.text.split("\n")
        for stage in reversed(self.stages):
            image = ids.get(stage.base, stage.base) if not stage.earlier else stage.base
            told = [f"FROM {image}" + (f" AS {stage.name}" if stage.name else "")]
            if not stage.earlier:
                marks = labels(ids.get(stage.base, ""))
                told.append("LABEL " + " ".join(f'{name}="{value}"' for name, value in marks.items()))
            lines[stage.first : stage.last + 1] = told
        return "\n".join(lines)


@dataclass(frozen=True)
class _Instruction:
    """line: of its keyword, from 0; last: of its end. text: what follows the keyword, lines joined. column: of the
    keyword, from 1."""

    line: int
    last: int
    column: int
    keyword: str
    text: str

    def mistake(self, message: str, hint: str = "") -> Mistake:
        return Mistake(self.line + 1, self.column, message, hint)


def read(text: str) -> Dockerfile:
    """Never raises: what is wrong stands in `mistakes`."""
    stages: list[Stage] = []
    mistakes: list[Mistake] = []
    values: dict[str, str] = {}
    for number, line in enumerate(text.split("\n")):
        directive = _DIRECTIVE.match(line.strip())
        if directive is None:
            break
        if directive[1].lower() == "escape" and directive[2] != "\\":
            mistakes.append(Mistake(number + 1, 1, "changes how lines are continued", "continue them with \\"))
    here = ""
    for one in _instructions(text):
        if here:  # lines of a document, which is told where it begins
            here = "" if one.keyword == here else here
        elif one.keyword == "FROM":
            told = _stage(one, stages, values)
            if isinstance(told, Stage):
                stages.append(told)
            else:
                mistakes.append(told)
                stages.append(Stage(one.line, one.last, "", "", earlier=True))  # what follows is judged all the same
        elif one.keyword == "ARG" and not stages:
            name, given, value = one.text.strip().partition("=")
            if given:
                values[name.strip()] = value.strip().strip("\"'")
        else:
            mistakes += _mistakes(one, stages)
            found = _HERE.search(one.text) if one.keyword in ("RUN", "COPY") else None
            here = found[1].upper() if found else ""
    if not stages:
        mistakes.append(Mistake(1, 1, "has no FROM", "begin with what it is built on, such as `FROM python`"))
    return Dockerfile(text, tuple(stages), tuple(mistakes))


def _instructions(text: str) -> Iterator[_Instruction]:
    """Continued lines are one; blank lines and comments are none, also between continued ones."""
    begun: tuple[int, int] | None = None
    parts: list[str] = []
    lines = text.split("\n")
    for number, line in enumerate(lines):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            if begun is None or number + 1 < len(lines):
                continue
            bare = ""
        if begun is None and bare:
            begun = number, len(line) - len(line.lstrip()) + 1
        goes_on = bare.endswith("\\") and number + 1 < len(lines)
        parts.append(bare[:-1] if bare.endswith("\\") else bare)
        if not goes_on and begun is not None:
            keyword, _, rest = " ".join(parts).strip().partition(" ")
            yield _Instruction(begun[0], number, begun[1], keyword.upper(), rest)
            begun, parts = None, []


def _stage(one: _Instruction, before: list[Stage], values: Mapping[str, str]) -> Stage | Mistake:
    words = one.text.split()
    if words and words[0].startswith("--"):
        flag = words[0].partition("=")[0]
        return one.mistake(f"FROM takes no {flag} here", "images are of the engine's own kind")
    named = len(words) == 3 and words[1].upper() == "AS"
    if len(words) != 1 and not named:
        return one.mistake("FROM names one image", "write `FROM image`, or `FROM image AS name`")
    unknown = [place[1] or place[2] for place in _PLACE.finditer(words[0]) if (place[1] or place[2]) not in values]
    if unknown:
        said = f"nothing gives ${unknown[0] or ''} in FROM a value"
        return one.mistake(said, "give it one before the first FROM: `ARG NAME=value`")
    base = _PLACE.sub(lambda place: values[place[1] or place[2]], words[0])
    if not base or not base.isprintable() or any(letter in base for letter in "\"'\\ "):
        return one.mistake("FROM names no image", "such as `FROM python`")
    earlier = base.lower() in {stage.name.lower() for stage in before if stage.name}
    return Stage(one.line, one.last, base, words[2] if named else "", earlier)


def _mistakes(one: _Instruction, stages: list[Stage]) -> Iterator[Mistake]:
    keyword, flags = one.keyword, dict(_flags(one.text))
    if keyword not in KEYWORDS:
        near = difflib.get_close_matches(keyword, KEYWORDS, n=1)
        yield one.mistake(f"{keyword[:20]} is no instruction", f"did you mean {near[0]}?" if near else "")
    elif not stages and keyword != "ARG":
        yield one.mistake(f"{keyword} stands before the first FROM")
    elif keyword == "ADD":
        yield one.mistake(f"ADD needs files or an address: {NO_FILES}", FETCH_HINT)
    elif keyword == "COPY":
        source = flags.get("from")
        names = {*(stage.name.lower() for stage in stages[:-1] if stage.name), *map(str, range(len(stages) - 1))}
        if source is None:
            yield one.mistake(f"COPY needs files: {NO_FILES}", FETCH_HINT)
        elif source.lower() not in names:
            yield one.mistake(f"COPY --from={source} is no stage before it", "make one: `FROM image AS name`")
    elif keyword == "RUN" and flags:
        yield one.mistake(f"RUN --{next(iter(flags))} needs BuildKit, which is not used here", "leave it out")
    if keyword in ("RUN", "COPY") and _HERE.search(one.text):
        yield one.mistake("a here-document needs BuildKit, which is not used here", "join the lines with \\ and &&")


def _flags(text: str) -> Iterator[tuple[str, str]]:
    for word in text.split():
        if not word.startswith("--"):
            return
        name, _, value = word[2:].partition("=")
        yield name, value
