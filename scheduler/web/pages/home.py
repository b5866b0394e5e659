"""Owns the first page: what happened last night, and what needs a person. Refuses to decide anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler.runs import Listed
from scheduler.web.page import Asked, Page, Way
from scheduler.web.site import Site

NEWEST: Final = 10


@dataclass(frozen=True)
class Home:
    """batches: the newest, newest first."""

    archive: str
    batches: tuple[Listed, ...]


def home(site: Site, asked: Asked) -> Page:
    newest = site.seen.batches()[: -NEWEST - 1 : -1]
    return Page("home.html", "Home", Home(site.archive.url, tuple(newest)), "dawn status", follows="all")


WAYS: Final = (Way("/", home),)
