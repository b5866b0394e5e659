"""Owns what may be asked of a forge for repositories: an organization, a group, a search. Refuses to say how: a
forge's adapter does.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from worker.contract.frozen import Frozen
from worker.contract.secret_name import SecretName

Topic = Annotated[str, Field(pattern=r"^[^\s:\"]+$", max_length=100)]
Api = Annotated[str, Field(pattern=r"^https?://[^\s@?#]+$")]


class _Search(Frozen):
    topic: Topic | None = None
    archived: bool = False
    forks: bool = False
    token: SecretName | None = None
    secret: SecretName | None = None

    def left_out(self) -> tuple[str, ...]:
        """What it does not want, in words."""
        wanted = (("archived ones", self.archived), ("forks", self.forks))
        topic = () if self.topic is None else (f"those without topic {self.topic}",)
        return (*(word for word, taken in wanted if not taken), *topic)


class GitHubSearch(_Search):
    """Repositories of GitHub, by org or by query. org: all of an organization. query: as in GitHub's search, which
    names at most 1,000. topic: only those that carry it. archived, forks: whether these are taken, too. api_url: of
    another GitHub, like `https://host/api/v3`. token: NAME of the secret `DAWN_SECRET_<NAME>` with which this machine
    asks. secret: NAME of the secret of workers that opens what is found."""

    org: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=100)] | None = None
    query: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*$", max_length=256)] | None = None
    api_url: Api = "https://api.github.com"

    @model_validator(mode="after")
    def _one_way(self) -> GitHubSearch:
        if (self.org is None) == (self.query is None):
            raise ValueError("must have org or query, one of them")
        return self

    @property
    def told(self) -> str:
        return f"github org {self.org}" if self.org else f"github query {self.query!r}"


class GitLabSearch(_Search):
    """Repositories of a group of GitLab. group: its path. subgroups: whether those of groups in it are taken, too.
    topic: only those that carry it. archived, forks: whether these are taken, too. api_url: of another GitLab, like
    `https://host`. token: NAME of the secret `DAWN_SECRET_<NAME>` with which this machine asks. secret: NAME of the
    secret of workers that opens what is found."""

    group: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_.-]*(/[A-Za-z0-9_.][A-Za-z0-9_.-]*)*$")]
    subgroups: bool = True
    api_url: Api = "https://gitlab.com"

    @property
    def told(self) -> str:
        return f"gitlab group {self.group}"


class FoundRepo(Frozen):
    """One that was found. url: where git fetches it. path: its name on the forge, `owner/name`."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s@]+$", max_length=2_000)]
    path: Annotated[str, Field(pattern=r"^[^\s/]+(/[^\s/]+)+$", max_length=1_000)]
