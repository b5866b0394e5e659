"""Counts what it takes to review a night of sixty patches: row by row, and by groups. `tests/bench/review.py`.

Four groups and four patches that are like nothing else, on real pages in a real browser. An act is one click or one
key; a page is one that the browser opened. No time is taken: how long a person reads is theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from browsers import NOWHERE, Window, chromium, served
from doubles import MemoryArchive
from playwright.sync_api import Browser, Locator, sync_playwright
from presentable import Scene, presentable
from webs import site_of

from scheduler.web.page import address
from worker.store import keys

SIZES = (24, 16, 10, 6)


class Hand:
    """A person at the pages, and what they did."""

    def __init__(self, browser: Browser, origin: str) -> None:
        self.window = Window(browser.new_context(), origin).sign_in()
        self.page = self.window.page
        self.acts = self.pages = 0

    def go(self, path: str) -> None:
        """A page whose address they know, or that stands in the head of every page."""
        self.acts += 1
        self.pages += 1
        self.window.go(path)

    def click(self, what: Locator) -> None:
        self.window.click(what)
        self._done()

    def type(self, key: str) -> None:
        """A key that leads nowhere yet."""
        self.acts += 1
        self.page.keyboard.press(key)

    def press(self, key: str) -> None:
        self.window.press(key)
        self._done()

    def _done(self) -> None:
        self.acts += 1
        self.pages += 1


def open_reviews(scene: Scene) -> list[str]:
    """Runs whose patch nobody has looked at."""
    runs = [run for named in scene.runs.values() for run in named]
    return [run for run in runs if scene.archive.size(keys.review(run, 0)) is None]


def by_rows(hand: Hand, scene: Scene) -> None:
    """The queue: open the first, and approve one after the other with a key."""
    hand.go("/review")
    hand.click(hand.page.locator("tbody a[href^='/review/']").first)
    while open_reviews(scene):
        hand.type("a")  # says what the second one does
        hand.press("a")


def by_groups(hand: Hand, scene: Scene) -> None:
    """Each group at once, after the forms that it has were opened; then the rest in the queue."""
    groups = address("/batches/{batch}/groups", batch=scene.batch)
    hand.go(groups)
    for number in range(hand.page.locator("section.group").count()):
        opened: set[str] = set()
        while left := [one for one in _to_open(hand, number) if one not in opened]:
            hand.click(
                hand.page.locator("section.group").nth(number).get_by_role("link", name=left[0], exact=True).last
            )
            opened.add(left[0])
            hand.go(groups)
        hand.click(
            hand.page.locator("section.group").nth(number).get_by_role("button", name=re.compile("Approve all"))
        )
        hand.go(groups)
    if open_reviews(scene):
        by_rows(hand, scene)


def _to_open(hand: Hand, number: int) -> list[str]:
    """Targets of a group that its page wants opened first."""
    wanted = hand.page.locator("section.group").nth(number).locator("p", has_text="Before all").locator("a")
    return [name.strip() for name in wanted.all_inner_texts()]


def main(as_json: bool) -> None:
    told = {}
    options = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=[*options, NOWHERE])
        for way in (by_rows, by_groups):
            scene = presentable(MemoryArchive(), sizes=SIZES, finished=True)  # type: ignore[arg-type]
            patches = len(open_reviews(scene))
            with served(site_of(scene.archive)) as origin:
                hand = Hand(browser, origin)
                way(hand, scene)
                hand.window.context.close()
            told[way.__name__] = {"patches": patches, "acts": hand.acts, "pages": hand.pages}
        browser.close()
    if not as_json:
        for name, count in told.items():
            print(f"{name:<10} {count['patches']} patches: {count['acts']} clicks and keys, {count['pages']} pages")
    print(json.dumps(told))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Count what a review takes.")
    parser.add_argument("--json", action="store_true", help="Only the line of JSON.")
    main(parser.parse_args().json)
