"""Owns the process edge of `dawn`: settings, archive, Redis, clock, who asks. Refuses to be used below the CLI."""

from __future__ import annotations

import getpass
import os
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from worker.contract.errors import UsageFault

if TYPE_CHECKING:
    from scheduler.budget import Spending
    from worker.contract.settings import Settings
    from worker.store.archive import Archive
    from worker.store.hints import Hints


def settings(archive: str | None = None) -> Settings:
    """The deployment, from DAWN_*. archive: the address of another archive than its own, None for that.

    Raises UsageFault that names each variable with a wrong value."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from worker.contract.settings import Settings

    try:
        return Settings() if archive is None else Settings(archive=archive)
    except ValidationError as error:
        wrong = [
            f"DAWN_{'__'.join(str(part) for part in details['loc']).upper()}: {details['msg']}"
            for details in error.errors(include_url=False, include_input=False)
        ]
        raise UsageFault("; ".join(wrong), hint="correct or unset these variables") from None
    except SettingsError as error:
        raise UsageFault(f"a DAWN_ variable cannot be read: {error}", hint="correct or unset it") from None


def archive(where: Settings) -> Archive:
    """The archive of the deployment."""
    from worker.store.archive import open_archive

    return open_archive(where.archive_url, where)


def hints(where: Settings) -> Hints | None:
    """The Redis of a running stack, None when there is none."""
    from scheduler.stack import connected
    from worker.store.hints import Hints

    url = connected(where).redis_url
    return None if url is None else Hints(url)


def spent_today(where: Settings) -> Spending | None:
    """What the deployment spent today, where it has a budget of a day and its Redis can be asked: the archive alone
    is enough for the rest."""
    from scheduler.budget import spending_of_day
    from worker.contract.errors import HintsFault

    redis = None if where.day_budget_usd is None else hints(where)
    if redis is None or where.day_budget_usd is None:
        return None
    try:
        return spending_of_day(redis, where.day_budget_usd, datetime.now(UTC))
    except HintsFault:
        return None


def stamp() -> str:
    """Now, UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def actor() -> str:
    """Who is asking, for the journal: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
