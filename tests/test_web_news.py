"""Open pages hear that what they show has changed, and show it: over HTTP, and in a real browser."""

from __future__ import annotations

import asyncio
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.cookiejar import CookieJar
from typing import Any
from urllib.parse import urlsplit

import pytest
from browsers import Open, served
from conftest import wait_for
from runs_made import Make, claimed, ended, name_runs, replied
from starlette.testclient import TestClient

from scheduler.web.door import news
from scheduler.web.page import Visitor
from scheduler.web.site import Site
from worker.contract.events import Event, Observation, Observed
from worker.store.archive import Archive
from worker.store.journal import Journal

Visit = Callable[..., TestClient]
HEADERS = {"last-event-id": "what-nobody-saw"}


def signed_in(origin: str, token: str) -> urllib.request.OpenerDirector:
    """Somebody's browser, as far as it matters here."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.open(f"{origin}/enter?token={token}", timeout=60).close()
    return opener


@pytest.fixture
def opened(origin: str) -> Iterator[Callable[..., Any]]:
    """opened(path, **headers): a response that is still being sent, of somebody who is signed in."""
    opener, made = signed_in(origin, "look"), []

    def opened(path: str, headers: dict[str, str] | None = None) -> Any:
        made.append(opener.open(urllib.request.Request(origin + path, headers=headers or {}), timeout=60))
        return made[-1]

    yield opened
    for response in made:
        response.close()


def append(archive: Archive, run: str, *events: Event) -> None:
    """Whoever works on the run commits these."""
    journal = Journal(archive, run)
    folded = journal.load()
    for event in events:
        folded = journal.append(folded, [event], attempt=folded.attempt, at="2026-11-30T02:10:00.000+00:00")


def seen_and_replied() -> list[Event]:
    """The first call ended, and a second step."""
    seen = Observation(call_id="c1", tool="run_command", status="ok", exit_code=0, output="fine")
    return [Observed(observation=seen), replied(2, text="a second thought")]


def told(response: Any) -> dict[str, str]:
    """The next message of a stream that has an event."""
    fields: dict[str, str] = {}
    for line in response:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "event" in fields:
            return fields
        else:
            fields = {}
    return fields


def test_a_change_is_told_once_to_all_who_listen(
    site: Site, opened: Callable[..., Any], archive: Archive, make_run: Make
) -> None:
    """Two listeners of a run hear of its next event, and one look serves both."""
    name_runs(archive, {"r1": "cart"})
    make_run("r1", claimed())
    first, second = opened("/news?of=run:r1", HEADERS), opened("/news?of=run:r1", HEADERS)
    before = told(first), told(second)
    assert before[0] == before[1]
    assert (site.news.listeners, site.news.topics) == (2, 1)
    append(archive, "r1", replied())
    after = told(first), told(second)
    assert after[0] == after[1]
    assert after[0]["event"] == "news"
    assert after[0]["data"] != before[0]["data"]


def test_a_listener_that_comes_back_hears_what_it_missed(
    opened: Callable[..., Any], archive: Archive, make_run: Make
) -> None:
    """The last stamp that a browser saw says whether its page is old."""
    name_runs(archive, {"r1": "cart"})
    make_run("r1", claimed())
    seen = told(opened("/news?of=run:r1", HEADERS))["id"]
    append(archive, "r1", *ended())
    assert told(opened("/news?of=run:r1", {"last-event-id": seen}))["data"] != seen


def test_nobody_looks_where_nobody_listens(
    site: Site, opened: Callable[..., Any], archive: Archive, make_run: Make
) -> None:
    """A client that is gone is let go, and with the last one the look ends."""
    name_runs(archive, {"r1": "cart"})
    make_run("r1", claimed())
    response = opened("/news?of=run:r1", HEADERS)
    told(response)
    assert site.news.topics == 1
    response.close()
    wait_for(lambda: site.news.topics == 0)


def test_listeners_are_bounded(opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than fits is told to come later; pages work without."""
    monkeypatch.setattr(news, "LISTENERS_MAX", 1)
    told_by = opened("/news?of=all")
    assert told_by.readline() == b": begun\n"
    with pytest.raises(urllib.error.HTTPError) as refused:
        opened("/news?of=all")
    assert refused.value.code == 503


def test_one_visitor_leaves_places_for_others(
    site: Site, origin: str, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has their share is told when to ask again, signed in anew or not; another still listens, and one page that
    is closed makes room."""
    monkeypatch.setattr(news, "LISTENERS_EACH", 2)
    held = [opened("/news?of=all") for _ in range(2)]
    assert [one.readline() for one in held] == [b": begun\n"] * 2
    with pytest.raises(urllib.error.HTTPError) as refused:
        opened("/news?of=all")
    assert (refused.value.code, refused.value.headers["retry-after"]) == (503, str(news.AGAIN_S))
    again = signed_in(origin, "look")
    with pytest.raises(urllib.error.HTTPError):
        again.open(f"{origin}/news?of=all", timeout=60)
    assert again.open(f"{origin}/batches", timeout=60).status == 200
    with signed_in(origin, "decide").open(f"{origin}/news?of=all", timeout=60) as other:
        assert other.readline() == b": begun\n"
        held[0].close()
        wait_for(lambda: site.news.listeners == 2)
        assert opened("/news?of=all").readline() == b": begun\n"


def test_who_asks_at_the_same_moment_gets_no_more(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is taken where the stream begins: of two that both saw it free, one ends at once."""
    monkeypatch.setattr(news, "LISTENERS_EACH", 1)

    async def both() -> list[list[bytes]]:
        who = Visitor("vera", "viewer")
        streams = [site.news.listen(site, who, "all", "") for _ in range(2)]
        first = [await anext(streams[0])]
        second = [part async for part in streams[1]]
        await streams[0].aclose()
        return [first, second]

    with ThreadPoolExecutor(1) as pool:  # Playwright may have this thread
        assert pool.submit(asyncio.run, both()).result(60) == [[b": begun\n\n"], []]
    assert site.news.listeners == 0


@pytest.mark.parametrize(("of", "status"), [("", 400), ("run:../x", 400), ("run:nobody", 404), ("batch:a/b", 400)])
def test_what_is_not_there_has_no_news(visit: Visit, of: str, status: int) -> None:
    """A word that is no run, and one that leads out of the archive, are refused."""
    assert visit("look").get("/news", params={"of": of}).status_code == status


def test_who_asks_for_no_words_listens_to_none(site: Site, origin: str) -> None:
    """A HEAD ends at once: a listener that hears nothing would take the place of one that does."""
    host = urlsplit(origin)
    connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=10)
    try:
        connection.request("HEAD", "/enter?token=look")
        first = connection.getresponse()
        first.read()
        connection.request("HEAD", "/news?of=all", headers={"cookie": first.headers["set-cookie"].partition(";")[0]})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
        connection.request("GET", "/favicon.ico")  # which waits for what is still being answered
        assert connection.getresponse().status == 204
        assert site.news.listeners == 0
    finally:
        connection.close()


def test_a_stranger_hears_nothing(visit: Visit) -> None:
    """News are for those who may see the page."""
    assert visit(None).get("/news", params={"of": "all"}).status_code == 401


def test_a_server_that_ends_lets_its_listeners_go(site: Site) -> None:
    """No open page keeps it from ending."""
    with served(site) as origin:
        response = signed_in(origin, "look").open(f"{origin}/news?of=all", timeout=60)
        assert response.readline() == b": begun\n"
    assert b"event" not in response.read()


def listening(page: Any) -> None:
    """Wait until the page hears news; wait_for_function may not evaluate anything on a page of this policy."""
    wait_for(lambda: page.evaluate("document.querySelector('#live')?._htmx?.sse?.lastEventId"))


@pytest.mark.full
def test_an_open_page_brings_itself_up_to_date(
    site: Site, origin: str, archive: Archive, make_run: Make, open_window: Open
) -> None:
    """A run ends while its batch is looked at: the page says so, stays where it was scrolled to, and keeps what is
    being typed into its filter; the cursor too."""
    name_runs(archive, {f"r{n}": f"target-{n}" for n in range(60)})
    for n in range(60):
        make_run(f"r{n}", *([claimed()] if n == 0 else []), target=f"target-{n}")
    window = open_window(origin).sign_in("look")
    page = window.go("/batches/night-0123456789ab")
    listening(page)
    page.locator("input[name=repo]").press_sequentially("half a wo")
    page.check("input[name=all]")
    page.focus("input[name=repo]")
    page.evaluate("window.scrollTo(0, 700)")
    at = page.evaluate("window.scrollY")
    assert at > 300
    append(archive, "r0", *ended(verdict="verified"))
    page.wait_for_selector("table .s-verified")
    assert page.evaluate("window.scrollY") == at
    assert page.input_value("input[name=repo]") == "half a wo"
    assert page.is_checked("input[name=all]")
    assert page.evaluate("document.activeElement.name") == "repo"
    window.check()


@pytest.mark.full
def test_a_page_that_was_refused_listens_later(
    site: Site, origin: str, archive: Archive, make_run: Make, open_window: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a visitor has too many pages open the next one is shown all the same, and hears news as soon as one of
    them is closed, without being loaded again."""
    monkeypatch.setattr(news, "LISTENERS_EACH", 1)
    name_runs(archive, {"r1": "cart"})
    make_run("r1", claimed())
    window = open_window(origin).sign_in("look")
    page = window.page
    page.goto("about:blank")
    wait_for(lambda: site.news.listeners == 0)
    other = signed_in(origin, "look").open(f"{origin}/news?of=all", timeout=60)
    assert other.readline() == b": begun\n"
    page.clock.install()
    with page.expect_response(lambda answer: "/news" in answer.url) as refused:
        page.goto(f"{origin}/batches/night-0123456789ab")
    assert refused.value.status == 503
    other.close()
    wait_for(lambda: site.news.listeners == 0)
    page.clock.fast_forward(news.AGAIN_S * 1_000)
    listening(page)
    append(archive, "r1", *ended(verdict="verified"))
    page.wait_for_selector("table .s-verified")
    assert all("503" in fault for fault in window.faults)
    window.faults.clear()


@pytest.mark.full
def test_an_opened_fold_stays_open(
    site: Site, origin: str, archive: Archive, make_run: Make, open_window: Open
) -> None:
    """A step is added while a reader has a fold open: the step appears, and the fold is as they left it."""
    name_runs(archive, {"r1": "cart"})
    make_run("r1", claimed(), replied())
    window = open_window(origin).sign_in("look")
    page = window.go("/runs/r1/steps")
    listening(page)
    fold = page.locator("main details").first
    fold.locator("summary").first.click()
    shown = page.locator("main").inner_text()
    append(archive, "r1", *seen_and_replied())
    wait_for(lambda: page.locator("main").inner_text() != shown)
    page.wait_for_selector("text=a second thought", state="attached")
    assert fold.get_attribute("open") is not None
    window.check()


@pytest.mark.full
def test_what_a_decision_is_written_about_does_not_change_meanwhile(
    site: Site, origin: str, archive: Archive, make_run: Make, open_window: Open
) -> None:
    """While a reason is in a form of a decision, news are told and not shown; what it is about stays."""
    name_runs(archive, {"r1": "cart"})
    make_run("r1", claimed())
    window = open_window(origin).sign_in("decide")
    page = window.go("/batches/night-0123456789ab")
    page.evaluate(
        """() => {
          const form = document.createElement('form');
          form.method = 'post';
          form.append(document.createElement('textarea'));
          document.querySelector('#main').append(form);
          form.firstChild.value = 'because';
        }"""
    )
    listening(page)
    append(archive, "r1", *ended(verdict="verified"))
    page.wait_for_selector("#changed", state="visible")
    assert page.input_value("#main textarea") == "because"
    assert page.locator("table .s-verified").count() == 0
    page.fill("#main textarea", "")  # what is not sent would be asked about
    page.click("#changed a")
    page.wait_for_selector("table .s-verified")
    window.check()
