"""Owns the colours of code: which lexer reads a file, and its tokens as spans. Refuses to colour at any price: a text
may be made so that a lexer takes time that grows with its square, so each is short and the time is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pygments.lexer import Lexer

Span = tuple[str, str]
"""(class of code.css, "" for none; text)."""

CHUNK_CHARS: Final = 2_000
"""What a lexer is handed at once: on texts made against them some take time that grows with its square. The slowest
found of this length takes 0.5 s of a processor (C#), the others 0.2 s (tests/bench/diffs.py --lexers); then the time
is used up."""
LINE_CHARS: Final = 500
"""A longer line is data or was minified: it is not coloured."""
PAGE_S: Final = 0.5
"""That colours may take for one page."""

BY_NAME: Final = {
    "makefile": "make", "gnumakefile": "make", "dockerfile": "docker", "cmakelists.txt": "cmake", "gemfile": "ruby",
    "rakefile": "ruby", "go.mod": "", ".bashrc": "bash", ".gitconfig": "ini", ".editorconfig": "ini",
    "pipfile": "toml", "cargo.lock": "toml", "poetry.lock": "toml", "uv.lock": "toml", "jenkinsfile": "groovy",
}  # fmt: skip
BY_SUFFIX: Final = {
    "py": "python", "pyi": "python", "pyx": "python", "js": "javascript", "mjs": "javascript", "cjs": "javascript",
    "jsx": "jsx", "ts": "typescript", "tsx": "typescript", "go": "go", "rs": "rust", "java": "java", "kt": "kotlin",
    "kts": "kotlin", "c": "c", "h": "c", "cc": "cpp", "cpp": "cpp", "cxx": "cpp", "hpp": "cpp", "hh": "cpp",
    "cs": "csharp", "rb": "ruby", "gemspec": "ruby", "php": "php", "sh": "bash", "bash": "bash", "zsh": "bash",
    "json": "json", "yaml": "yaml", "yml": "yaml", "toml": "toml", "ini": "ini", "cfg": "ini", "html": "html",
    "htm": "html", "css": "css", "scss": "scss", "sql": "sql", "xml": "xml", "svg": "xml", "mk": "make",
    "dockerfile": "docker", "cmake": "cmake", "pl": "perl", "lua": "lua", "swift": "swift", "scala": "scala",
    "gradle": "groovy", "groovy": "groovy", "r": "r", "properties": "properties", "proto": "protobuf",
}  # fmt: skip
"""A closed list: Pygments has lexers of every quality, and some choose another one by what the text says."""


class Allowance:
    """The time that colours may still take. seconds: of the processor, of all texts together that are read with it;
    a busy machine takes no colours away. Of one thread."""

    def __init__(self, seconds: float = PAGE_S, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._until = clock() + seconds

    @property
    def is_used_up(self) -> bool:
        return self._clock() >= self._until


def highlighted(path: str, lines: Sequence[str], allowance: Allowance) -> list[tuple[Span, ...]]:
    """The spans of each line, whose texts make up that line; none for one that is not coloured."""
    lexer = _lexer(path)
    told: list[tuple[Span, ...]] = []
    if lexer is None:
        return [()] * len(lines)
    for chunk in _chunks(lines):
        told += _coloured(lexer, chunk, allowance) or [()] * len(chunk)
    return told


def _chunks(lines: Sequence[str]) -> list[list[str]]:
    """Neighbours that a lexer reads together; a line that is too long stands alone."""
    chunks: list[list[str]] = []
    room = 0
    for line in lines:
        if len(line) >= room or len(line) > LINE_CHARS:
            chunks.append([])
            room = CHUNK_CHARS
        chunks[-1].append(line)
        room = 0 if len(line) > LINE_CHARS else room - len(line) - 1
    return chunks


def _coloured(make: type[Lexer], lines: list[str], allowance: Allowance) -> list[tuple[Span, ...]] | None:
    """None when it takes too long, or when what comes out is not what went in."""
    if len(lines[0]) > LINE_CHARS:
        return None
    told: list[list[Span]] = [[]]
    try:
        for _, token, text in make().get_tokens_unprocessed("\n".join(lines) + "\n"):
            if allowance.is_used_up:
                return None
            for number, piece in enumerate(text.split("\n")):
                if number:
                    told.append([])
                if piece:
                    _add(told[-1], (_class(token), piece))
    except Exception:  # a lexer that trips over a text has no colours for it; what it shows is the text
        return None
    told.pop()
    if ["".join(text for _, text in spans) for spans in told] != lines:
        return None
    return [tuple(spans) for spans in told]


def _add(spans: list[Span], span: Span) -> None:
    if spans and spans[-1][0] == span[0]:
        span = (span[0], spans.pop()[1] + span[1])
    spans.append(span)


@lru_cache(maxsize=512)
def _class(token: Any) -> str:
    """The short name of a token, of the nearest kind that has one."""
    from pygments.token import STANDARD_TYPES, Error, Text

    if token in Error or token in Text:  # half a file is full of errors that are none
        return ""
    while token not in STANDARD_TYPES:
        token = token.parent
    short = STANDARD_TYPES[token]
    return f"c-{short}" if short else ""


@lru_cache(maxsize=256)
def _lexer(path: str) -> type[Lexer] | None:
    from pygments.lexers import find_lexer_class_by_name

    name = path.rpartition("/")[2].lower()
    alias = BY_NAME.get(name, BY_SUFFIX.get(name.rpartition(".")[2], ""))
    return find_lexer_class_by_name(alias) if alias else None
