"""Owns a real browser for the tests of the pages, and the server that it reads. Refuses to let a page complain, run
what it was not written with, or reach anybody else unnoticed.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from npm_peers import npm_peers

from scheduler.launch import Interrupts
from scheduler.web.door import server
from scheduler.web.site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}
TURN_MS = 60_000
"""For one act of a page, on a machine that does much else."""
LISTEN = "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.violatedDirective))"
NOWHERE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
"""What a page asks of anybody else is told by its request, and reaches nobody."""
LINKS = "all => all.map((one) => new URL(one.getAttribute('href'), document.baseURI).href)"
IMPACTS = ("serious", "critical")
AXE = """async () => {
  const told = await axe.run(document, {resultTypes: ['violations'], preload: false});
  return told.violations.map((one) => [one.impact, one.id, one.nodes.slice(0, 5).map((node) => node.html)]);
}"""


def chromium() -> str:
    """An executable. Skips where there is none."""
    found = os.environ.get("DAWN_TEST_CHROMIUM") or shutil.which("chromium")
    if found is None:
        pytest.skip("no Chromium here: install it, or name one with DAWN_TEST_CHROMIUM")
    return found


class Window:
    """A window of the browser, for one origin. faults: what its pages did that none may do."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self.origin, self.context, self.faults = origin, context, list[str]()
        context.set_default_timeout(TURN_MS)
        context.add_init_script(LISTEN)
        context.on("request", lambda request: self._asked(request.url))
        context.on("console", lambda said: self._said(said.type, f"{said.text} ({said.location['url']})"))
        context.on("weberror", lambda error: self.faults.append(f"error: {error.error}"))
        context.on("dialog", self._asks)
        self.page = context.new_page()

    def go(self, path: str) -> Page:
        """Open a page of ours; fails where it has a fault, or did before."""
        answer = self.page.goto(path if "://" in path else self.origin + path)
        assert answer is None or answer.status < 400, f"{path}: {answer and answer.status}"
        self.check()
        return self.page

    def click(self, what: Locator) -> Page:
        """Click on what leads to another page, and look at that."""
        with self.page.expect_navigation(wait_until="load"):
            what.click()
        self.check()
        return self.page

    def press(self, key: str) -> Page:
        """Press a key that leads to another page."""
        with self.page.expect_navigation(wait_until="load"):
            self.page.keyboard.press(key)
        self.check()
        return self.page

    def check(self) -> None:
        """Fails for any fault so far, and where the canary of the hostile archive ran."""
        if self.page.evaluate("window.__canary"):
            self.faults.append("the canary ran")
        assert self.faults == [], f"{self.page.url}: {self.faults}"

    def sign_in(self, token: str = "decide") -> Window:
        self.go(f"/enter?token={token}")
        return self

    def _asked(self, url: str) -> None:
        if not url.startswith(("about:", self.origin)):
            self.faults.append(f"asked for {url}")

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.faults.append(f"{kind}: {text}")

    def _asks(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()


Open = Callable[..., Window]


@pytest.fixture(scope="module")
def _browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    path = chromium()
    # Of a module: while Playwright runs, no other test of this process can use asyncio.
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=[*options, NOWHERE])
        yield browser
        browser.close()


@pytest.fixture
def open_window(_browser: Browser) -> Iterator[Open]:
    """open_window(origin, dark=, phone=, script=): a fresh window, which must be without fault at the end."""
    made: list[Window] = []

    def open_window(origin: str, *, dark: bool = False, phone: bool = False, script: bool = True) -> Window:
        context = _browser.new_context(
            viewport=PHONE if phone else DESK,  # type: ignore[arg-type]
            has_touch=phone,
            color_scheme="dark" if dark else "light",
            java_script_enabled=script,
        )
        made.append(Window(context, origin))
        return made[-1]

    yield open_window
    for window in made:
        window.context.close()
    assert [fault for window in made for fault in window.faults] == []


@contextmanager
def served(site: Site) -> Iterator[str]:
    """The pages of a site on a real socket: its origin."""
    listening = server.listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    pressed = Interrupts()
    hosts = server.names("127.0.0.1", port)
    answering = threading.Thread(target=server.serve, args=(site, listening, hosts, pressed))
    answering.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        pressed.press()
        answering.join()
        listening.close()


@pytest.fixture
def origin(site: Site) -> Iterator[str]:
    """Where the pages of the fixture `site` are served; `sign_in` has its tokens."""
    with served(site) as origin:
        yield origin


def walk(window: Window, start: str = "/", most: int = 150, alike: int = 3) -> list[str]:
    """Open every page that is linked from the first on, breadth first, and yield nothing but their paths. alike: of
    pages that differ in their query only, how many are opened. Fails at the first fault."""
    return [path for path, _ in walked(window, start, most, alike)]


def walked(window: Window, start: str = "/", most: int = 150, alike: int = 3) -> Iterator[tuple[str, Page]]:
    """The same, with each page as it stands open."""
    todo, known, queries, opened = [start], {start}, dict[str, int](), 0
    while todo and opened < most:
        path = todo.pop(0)
        page = window.go(path)
        opened += 1
        yield path, page
        for link in page.eval_on_selector_all("a[href]", LINKS):
            parts = urlsplit(link.partition("#")[0])
            if f"{parts.scheme}://{parts.netloc}" != window.origin:
                raise AssertionError(f"{path} links {link}")
            to = parts.path + (f"?{parts.query}" if parts.query else "")
            if to in known or "as=json" in parts.query or queries.get(parts.path, 0) >= alike:
                continue
            known.add(to)
            if _is_page(window, to):
                queries[parts.path] = queries.get(parts.path, 0) + bool(parts.query)
                todo.append(to)


def _is_page(window: Window, path: str) -> bool:
    """False for what is kept and not shown, which must then be an attachment."""
    answer = window.context.request.get(window.origin + path, max_retries=2)
    assert answer.status < 400, f"{path}: {answer.status}"
    if answer.headers.get("content-type", "").startswith("text/html"):
        return True
    assert answer.headers.get("content-disposition", "").startswith("attachment"), path
    assert answer.headers["x-content-type-options"] == "nosniff"
    return False


def wider(page: Page) -> list[str]:
    """What makes the page itself scroll sideways: the elements that stick out, none for a page that fits."""
    found: list[str] = page.evaluate(
        """() => {
          const wide = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= wide) return [];
          const clips = (one) => getComputedStyle(one).overflowX !== 'visible';
          const scrolls = (one) => one && (clips(one) || scrolls(one.parentElement));
          const out = [...document.body.querySelectorAll('*')].filter((one) =>
            one.getBoundingClientRect().right > wide + 1 && !scrolls(one.parentElement));
          return out.slice(0, 5).map((one) => one.outerHTML.slice(0, 200)).concat(
            [document.documentElement.scrollWidth + ' > ' + wide]);
        }"""
    )
    return found


@pytest.fixture(scope="session")
def axe(request: pytest.FixtureRequest) -> str:
    """The text of axe-core."""
    _, peers = npm_peers(request.config)
    return (Path(peers) / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def faults_of(page: Page, axe: str) -> list[str]:
    """Serious and critical faults of accessibility on a page, as axe-core finds them."""
    page.evaluate(axe)
    return [f"{impact} {id}: {nodes}" for impact, id, nodes in page.evaluate(AXE) if impact in IMPACTS]
