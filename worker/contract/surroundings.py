"""Owns where a task's work is done, as it is asked for: the image and what is made of it. Refuses to say what came of
it (environment.py).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from worker.contract.frozen import Frozen, later
from worker.contract.secret_name import SecretNames

AUTO: Final = "auto"
"""Instead of an image: the one that fits what the repository holds."""
CACHE_KEYS_MAX: Final = 16
DOCKERFILE_CHARS_MAX: Final = 64 * 2**10

CacheKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/=+-]{0,99}$")]


class Surroundings(Frozen):
    """setup: a script run as root with network, once, in preparation. network: of the agent's commands and of checks
    (full: the engine's bridge). resetup: whether setup is run anew before the checks of a patch that changes a list
    of dependencies. setup_secrets: NAMES of what setup finds as files `/run/secrets/<NAME>`; none of them may stay in
    image, work tree or HOME. cache_keys: words of your own, such as a month, that prepared environments are kept
    under. What the repository, the image and setup are is part of that already: change a word to have every
    environment prepared anew. lfs: the contents are fetched that the start commit keeps in Git LFS, not pointers."""

    setup: str | None = None
    network: Literal["none", "full"] = later("none")
    resetup: Literal["never", "on_change"] = later("never")
    setup_secrets: SecretNames = later(())
    cache_keys: Annotated[tuple[CacheKey, ...], Field(max_length=CACHE_KEYS_MAX)] = later(())
    lfs: bool = later(False)

    @model_validator(mode="after")
    def _only_for_setup(self) -> Surroundings:
        if self.setup_secrets and self.setup is None:
            raise ValueError("setup_secrets are for setup, and there is none")
        if self.setup_secrets and self.resetup == "on_change":
            raise ValueError("setup_secrets cannot go with `resetup: on_change`, which runs what an agent wrote")
        if self.lfs and self.resetup == "on_change":
            raise ValueError("`lfs` cannot go with `resetup: on_change`, which begins anew from the commit")
        return self

    @property
    def networked(self) -> bool:
        return self.network == "full"


class Environment(Surroundings):
    """image: a name of sandbox_images/images.toml, any image the engine can run, or `auto`. dockerfile: the text that
    the image is built of; image is then where it was read, relative to the manifest."""

    image: str = "python"
    dockerfile: Annotated[str, Field(max_length=DOCKERFILE_CHARS_MAX)] | None = later(None)
