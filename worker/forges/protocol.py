"""Owns the words of a forge: Forge, PullRequest, and what a pull request's text says of where it is from. Refuses to
import a forge's SDK.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

BODY_CHARS: Final = 60_000
"""GitHub takes 65,536."""
LOOKED_AT: Final = 1_000
"""Open pull requests of a repository that are looked through for ours."""
_MARK: Final = re.compile(r"<!-- dawnfleet ((?:[a-z]+=[A-Za-z0-9._:-]+ )+)-->")

State = Literal["draft", "pr", "merged", "closed"]


@dataclass(frozen=True)
class PullRequest:
    """One, as the forge has it (a merge request, too). marks: where its text says that it is from, empty when it is
    not ours."""

    number: int
    url: str
    state: State
    branch: str
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return self.state in ("draft", "pr")


@dataclass(frozen=True)
class Repository:
    """One that a forge lists. url: where git fetches it. path: `owner/name`."""

    url: str
    path: str
    archived: bool
    fork: bool
    topics: tuple[str, ...] = ()


class Forge(Protocol):
    """One repository on a forge, through one token. Methods raise ForgeFault."""

    def find(self, branch: str) -> PullRequest | None:
        """The pull request of a branch of this repository: the open one, else the newest that was."""
        ...

    def ours(self) -> list[PullRequest]:
        """Open ones that carry our marks, of the newest LOOKED_AT open ones."""
        ...

    def open(self, *, branch: str, base: str, title: str, body: str, draft: bool) -> PullRequest:
        """A new one; or, where the forge refuses a second one of the branch, the one that is there."""
        ...

    def update(self, number: int, *, title: str, body: str) -> None:
        """Give it other words."""
        ...

    def furnish(self, number: int, *, labels: Sequence[str], reviewers: Sequence[str]) -> None:
        """Add labels and ask for reviews; what is there already stays."""
        ...


def marked(body: str, **marks: str) -> str:
    """A text that fits, with marks that nobody sees."""
    mark = f"<!-- dawnfleet {''.join(f'{name}={value} ' for name, value in marks.items())}-->"
    room = BODY_CHARS - len(mark) - 40
    text = body if len(body) <= room else f"{body[:room]}\n\n(cut; the summary has all)"
    return f"{text.rstrip()}\n\n{mark}\n"


def marks_of(body: str | None) -> dict[str, str]:
    """The marks of a text: the last ones, which we wrote; what a model wrote before them counts for nothing."""
    found = _MARK.findall(body or "")
    return dict(word.split("=", 1) for word in found[-1].split()) if found else {}
