"""Owns what a task asks of its delivery: how far a patch goes, when, and as what. Refuses to say what came of it
(delivered.py does).

One target has one branch and one pull request: the branch's name is a function of batch and target, so that a retry's
patch goes where the earlier one went.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from worker.contract.frozen import Frozen
from worker.contract.secret_name import SecretName

BRANCH_WORDS: Final = frozenset({"run", "batch", "target", "key"})
WORDS: Final = BRANCH_WORDS | {"task", "outcome", "verdict", "summary"}
"""What `{...}` may name in templates; `{summary}` in the body only."""
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_REF: Final = re.compile(r"(?!.*(//|\.\.|@\{|/\.|\.lock(/|$)))[A-Za-z0-9_][A-Za-z0-9._/+=#@-]*(?<![./])")

Kind = Literal["patch", "branch", "draft_pr", "pr"]
Label = Annotated[str, Field(min_length=1, max_length=50)]
Person = Annotated[str, Field(min_length=1, max_length=100)]


class Deliver(Frozen):
    """What becomes of a patch besides being kept. kind: `patch` keeps it only.

    when: of a changed run, its verdict is `verified`; a person `approved` its patch; or it is `changed`, whatever the
    verdict. A rejected patch is never delivered. branch, title, body: templates, see WORDS; the branch must hold
    {key} (which stands for batch and target) or {run}, so that no two targets share one. base: the branch that it
    shall go into, None for the one that the run started from, or the repository's default. token: NAME of the secret
    `DAWN_SECRET_<NAME>` of workers that deliver; None for the repository's own. api_url: where the forge's API is not
    at its host's usual place. rate_per_hour: of all runs that deliver with the token. open_per_repo: how many pull
    requests of ours may be open in a repository.
    """

    kind: Kind = "patch"
    when: Literal["verified", "approved", "changed"] = "verified"
    branch: Annotated[str, Field(max_length=120)] = "dawn/{target}-{key}"
    title: Annotated[str, Field(min_length=1, max_length=200)] = "{task}"
    body: Annotated[str, Field(max_length=10_000)] = "{summary}"
    labels: Annotated[tuple[Label, ...], Field(max_length=20)] = ()
    reviewers: Annotated[tuple[Person, ...], Field(max_length=15)] = ()
    base: Annotated[str, Field(max_length=200)] | None = None
    forge: Literal["auto", "github", "gitlab"] = "auto"
    api_url: Annotated[str, Field(pattern=r"^https?://[^\s@?#]+$")] | None = None
    token: SecretName | None = None
    rate_per_hour: Annotated[int, Field(ge=1, le=1_000)] = 20
    open_per_repo: Annotated[int, Field(ge=1, le=100)] = 3

    @field_validator("branch")
    @classmethod
    def _one_a_target(cls, branch: str) -> str:
        _known(branch, BRANCH_WORDS)
        if not {"run", "key"} & set(_PLACE.findall(branch)):
            raise ValueError("must hold {key} or {run}, so that no two targets share a branch")
        return _ref(branch, _PLACE.sub("x", branch))

    @field_validator("base")
    @classmethod
    def _a_branch(cls, base: str | None) -> str | None:
        return base if base is None else _ref(base, base)

    @field_validator("title")
    @classmethod
    def _title(cls, title: str) -> str:
        return _known(title, WORDS - {"summary"})

    @field_validator("body")
    @classmethod
    def _body(cls, body: str) -> str:
        return _known(body, WORDS)

    @model_validator(mode="after")
    def _agree(self) -> Deliver:
        if self.kind in ("patch", "branch") and (self.labels or self.reviewers):
            raise ValueError(f"labels and reviewers are a pull request's; kind is {self.kind}")
        return self


def filled(template: str, words: Mapping[str, str]) -> str:
    """The template with each `{name}` replaced, once: what a value holds is never read as a template."""
    return _PLACE.sub(lambda place: words[place[1]], template)


def _known(template: str, words: frozenset[str]) -> str:
    if unknown := sorted(set(_PLACE.findall(template)) - words):
        raise ValueError(f"{{{unknown[0]}}} names nothing; there are {', '.join(sorted(words))}")
    return template


def _ref(asked: str, name: str) -> str:
    if not _REF.fullmatch(name):
        raise ValueError("is no name of a branch")
    return asked
