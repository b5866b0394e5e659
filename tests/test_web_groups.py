"""The page of a batch's groups: outliers first, and what has to be opened before all may be approved at once."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from runs_made import Make, claimed, name_runs
from starlette.testclient import TestClient
from test_groups import bump, diff

from scheduler.web.patches import groups
from scheduler.web.site import Site
from worker.contract.events import Finished, Sealed
from worker.store.archive import Archive
from worker.store.journal import Journal

BATCH = "night-0123456789ab"
EVIL = '"><b><img src=x onerror=alert(1)>'
ODD = diff("-everything", "+nothing at all", path="main.go")


@pytest.fixture
def client(visit: Callable[..., TestClient]) -> TestClient:
    return visit("look")


def batch(archive: Archive, make_run: Make, **patches: bytes) -> None:
    """A batch whose runs are named as their targets, and left these patches."""
    for run, patch in patches.items():
        sealed = Sealed(outcome="changed", artifacts={"patch.diff": Journal(archive, run).put_blob(patch)})
        make_run(run, claimed(), Finished(), sealed, target=run)
    name_runs(archive, {run: run for run in patches})


def three(archive: Archive, make_run: Make) -> None:
    other = diff("-shop_requires = ['six==1.0.0']", "+shop_requires = ['six==9.0.0']", path="setup.py")
    batch(archive, make_run, cart=bump("cart").patch, till=bump("till").patch, shop=other, odd=ODD)


def test_outliers_come_first_and_all_that_is_needed_is_linked(
    archive: Archive, make_run: Make, client: TestClient
) -> None:
    """Who stands alone, the representative, each other form, and what a person opens of them."""
    three(archive, make_run)
    page = client.get(f"/batches/{BATCH}/groups").text

    assert page.index("/runs/odd/diff") < page.index("/runs/cart/diff")
    assert "4 patches: 3 in 1 group, 1 alone. Whoever opens 3 of them has seen every form there is." in page
    assert re.search(r'open <a href="/runs/cart/diff">cart</a>, <a href="/runs/shop/diff">shop</a>\.', page)
    assert "may be approved at once." not in re.sub(r"Before all[^.]*\.", "", page)
    assert re.search(r"Outlier: <a[^>]*>shop</a>.*, 6 lines differ", page)


def test_what_was_opened_is_marked_and_then_the_group_is_read(
    archive: Archive, make_run: Make, client: TestClient
) -> None:
    """Opening the diffs of the representative and of every outlier is what a group waits for."""
    three(archive, make_run)
    client.get("/runs/cart/diff")
    page = client.get(f"/batches/{BATCH}/groups").text
    assert re.search(r'open <a href="/runs/shop/diff">shop</a>\.', page)

    client.get("/runs/shop/diff")
    page = client.get(f"/batches/{BATCH}/groups").text
    assert "were opened: all 3 may be approved at once." in page


def test_names_in_groups_are_text(archive: Archive, make_run: Make, client: TestClient) -> None:
    """T68: what was set aside comes from a patch, and targets from strangers."""
    for run in ("one", "two"):
        patch = diff(f"+{EVIL}", path=f"{EVIL}/x")
        sealed = Sealed(outcome="changed", artifacts={"patch.diff": Journal(archive, run).put_blob(patch)})
        make_run(run, claimed(), Finished(), sealed, target=f"{run} {EVIL}")
    name_runs(archive, {run: f"{run} {EVIL}" for run in ("one", "two")})

    page = client.get(f"/batches/{BATCH}/groups").text
    assert "<b>" not in page
    assert "<img" not in page
    assert "2 patches: 2 in 1 group" in page


def test_a_batch_without_patches_says_so(archive: Archive, make_run: Make, client: TestClient) -> None:
    """Nothing is grouped while nothing has ended."""
    make_run("open", claimed(), target="cart")
    name_runs(archive, {"open": "cart"})
    assert "has left a patch yet" in client.get(f"/batches/{BATCH}/groups").text


def test_groups_are_found_anew_when_a_patch_comes(archive: Archive, make_run: Make, site: Site) -> None:
    """What is kept of groups is never that of fewer patches."""
    first, second = bump("cart"), bump("till")
    for run in ("cart", "till"):
        make_run(run, claimed(), target=run)
    name_runs(archive, {"cart": "cart", "till": "till"})
    sizes = []
    for run, patch in (("cart", first.patch), ("till", second.patch)):
        journal = Journal(archive, run)
        folded = journal.load()
        sealed = Sealed(outcome="changed", artifacts={"patch.diff": journal.put_blob(patch or b"")})
        journal.append(folded, [Finished(), sealed], attempt=folded.attempt, at="2026-11-30T02:00:00.000+00:00")
        site.seen.expire()
        found = groups.of_batch(site, BATCH)
        sizes.append((len(found.alone), [len(group.members) for group in found.groups]))
    assert sizes == [(1, []), (0, [2])]
