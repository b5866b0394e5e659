"""Reviewing and approving in a real browser: keys, where one slip decides nothing, and a thumb on a phone."""

from __future__ import annotations

from typing import Any

import pytest
from browsers import Open, faults_of, served, wider
from playwright.sync_api import expect
from runs_made import Make, claimed, name_runs
from test_web_approvals import HOSTILE, asks
from test_web_review import BATCH, SHOP, ran, said  # noqa: F401
from webs import site_of

from worker.contract.surroundings import Environment
from worker.store.archive import Archive
from worker.store.decisions import read_decision
from worker.store.deliveries import read_reviews

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def test_keys_lead_through_the_queue_and_one_slip_approves_nothing(
    archive: Archive,
    ran: Any,  # noqa: F811
    open_window: Open,
) -> None:
    """j, k and Enter choose; a says what it would do, any other key takes it back, a second one does it."""
    for run in ("cart", "till"):
        ran(run, SHOP)
    name_runs(archive, {"cart": "cart", "till": "till"})
    with served(site_of(archive)) as origin:
        window = open_window(origin).sign_in()
        page = window.go("/review")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        page.keyboard.press("Enter")
        page.wait_for_url("**/review/cart")

        page.keyboard.press("a")
        expect(page.locator("[data-told]")).to_contain_text("Press a once more to approve")
        page.keyboard.press("x")
        expect(page.locator("[data-told]")).to_have_text("")
        page.keyboard.press("a")
        page.keyboard.press("r")
        expect(page.locator("[data-told]")).to_contain_text("Press r once more to reject")
        page.keyboard.press("c")
        page.keyboard.type("a fine arrangement")
        assert said(archive, "cart") == []

        page.keyboard.press("Escape")
        page.keyboard.press("a")
        page.keyboard.press("a")
        page.wait_for_url("**/review/till")
        assert said(archive, "cart") == [("approved", "rosa@here")]
        window.check()


def test_a_comment_is_not_left_behind_unasked(
    archive: Archive,
    ran: Any,  # noqa: F811
    open_window: Open,
) -> None:
    """A key or a link that would lead on from a comment that is not sent: the browser asks, and keeps it. Nothing is
    asked of who sends it, or has written none."""
    for run in ("cart", "shop", "till"):
        ran(run, SHOP)
    name_runs(archive, {run: run for run in ("cart", "shop", "till")})
    with served(site_of(archive)) as origin:
        window = open_window(origin).sign_in()
        page = window.go("/review/cart")
        window.press("j")
        page.wait_for_url("**/review/shop")
        comment = page.locator("textarea[name=comment]")
        page.keyboard.press("c")
        page.keyboard.type("jk: all right")
        page.keyboard.press("Escape")

        with page.expect_event("dialog") as asked:
            page.keyboard.press("j")
        assert asked.value.type == "beforeunload"
        with page.expect_event("dialog"):
            page.get_by_role("link", name="Queue", exact=True).first.click()
        assert page.url.endswith("/review/shop")
        expect(comment).to_have_value("jk: all right")
        assert [one.partition(":")[0] for one in window.faults] == ["dialog", "dialog"]
        window.faults.clear()

        page.keyboard.press("Escape")
        page.keyboard.press("a")
        window.press("a")
        assert said(archive, "shop") == [("approved", "rosa@here")]
        assert [one.comment for one in read_reviews(archive, "shop")] == ["jk: all right"]


def test_a_thumb_approves_on_a_phone(make_run: Make, archive: Archive, open_window: Open) -> None:
    """At 360 pixels nothing is wider than the screen, a button is 44 high, and what was shown is decided."""
    word = "x" * 300
    make_run("cart", claimed(), *asks(f"{HOSTILE}; dropdb {word}"), environment=Environment(network="full"))
    make_run("till", claimed(), *asks(kind="question", tool="ask_person", why=f"42 or {word}?"), target="till")
    name_runs(archive, {"cart": "cart", "till": "till"}, BATCH)
    with served(site_of(archive)) as origin:
        page = open_window(origin, phone=True).sign_in().go("/approvals")
        assert wider(page) == []
        button = page.locator("#ask-cart").get_by_role("button", name="Approve")
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 44
        button.tap()
        expect(page.get_by_role("status").first).to_contain_text("c1 approved")
        assert page.locator("#ask-cart").count() == 0
        made = read_decision(archive, "cart", "c1")
        assert made is not None
        assert (made.decision, made.by) == ("approved", "rosa@here")


def test_pages_that_decide_shut_nobody_out(
    archive: Archive,
    make_run: Make,
    ran: Any,  # noqa: F811
    open_window: Open,
    axe: str,
) -> None:
    """No serious fault of accessibility, light and dark, and at 360 pixels nothing is wider than the screen."""
    ran("cart", SHOP)
    for run in ("shop", "till"):  # one card of both
        make_run(run, claimed(), *asks(HOSTILE), target=run, model="anthropic/some", prompt="Fix it.")
    name_runs(archive, {"cart": "cart", "shop": "shop", "till": "till"})
    pages = ("/approvals", "/review", "/review/cart", "/runs/till/decide", "/runs/cart/decide", "/runs/cart/fork")
    found = []
    with served(site_of(archive)) as origin:
        for dark in (False, True):
            window = open_window(origin, dark=dark, phone=dark).sign_in()
            for path in (*pages, f"/batches/{BATCH}/decide"):
                page = window.go(path)
                found += [f"{path} {fault}" for fault in (*faults_of(page, axe), *wider(page))]
    assert found == []
