"""Owns how text of strangers is made harmless to read: repositories and models write names, output and errors.
Refuses to let a control byte or a mark of direction through, and to quote: whoever writes a format does.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final

_INVISIBLE: Final = ("Cc", "Cs", "Co", "Cn")
_DIRECTING: Final = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")
"""Marks that turn the direction of text or break lines: a name must not be able to look like another one."""
_BLANK: Final = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Letters that show as nothing, in which a text can hold another one. Those that join letters of a script stay."""


def plain(text: str, *, lines: bool = False) -> str:
    """The text with every control and direction character, and every letter that shows as nothing, written out
    (`\\x1b`); lines keeps newlines and tabs."""
    # Then nothing in it controls or directs, and nearly all text is.
    if text.isprintable() and (text.isascii() or _BLANK.search(text) is None):
        return text
    kept = "\n\t" if lines else ""
    return "".join(letter if letter in kept or _harmless(letter) else _written(letter) for letter in text)


def nested(value: Any) -> Any:
    """JSON values with every text in them plain, its lines kept."""
    if isinstance(value, str):
        return plain(value, lines=True)
    if isinstance(value, dict):
        return {nested(key): nested(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nested(item) for item in value]
    return value


def _harmless(letter: str) -> bool:
    return letter not in _DIRECTING and not _BLANK.match(letter) and unicodedata.category(letter) not in _INVISIBLE


def _written(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
