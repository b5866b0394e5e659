"""The frame of the pages: who is let in, what a browser may do with an answer, and that every text is text."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from runs_made import Make
from starlette.testclient import TestClient
from webs import HOST, ORIGIN, TOKENS, site_of

from scheduler.web import render
from scheduler.web.door.access import Access
from scheduler.web.door.app import create
from scheduler.web.page import Asked, Page, Visitor, Way, Went, address, cut
from scheduler.web.site import Site
from worker.contract.errors import NotFoundFault
from worker.store.archive import Archive

Visit = Callable[..., TestClient]
HOSTILE = "</script><script>alert(1)</script>"


def test_nobody_sees_a_page_without_a_token(visit: Visit) -> None:
    """Whoever has not signed in is asked to, and learns nothing."""
    answer = visit(None).get("/")
    assert answer.status_code == 401
    assert "Sign in" in answer.text
    assert "batch" not in answer.text.lower()


def test_a_token_opens_the_pages_and_leaves_the_address(visit: Visit) -> None:
    """The address that signs in leads on to one without the token."""
    client = visit(None)
    answer = client.get("/enter", params={"token": "look", "to": "/"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example/", "/\\evil.example", ""])
def test_signing_in_leads_to_our_own_pages_only(visit: Visit, to: str) -> None:
    """The page behind the sign-in is on this server, whatever the address says."""
    answer = visit(None).get("/enter", params={"token": "look", "to": to}, follow_redirects=False)
    assert answer.headers["location"] == "/"


def test_a_wrong_token_is_refused(visit: Visit) -> None:
    """A token that nobody has opens nothing."""
    client = visit(None)
    assert client.get("/enter", params={"token": "guess"}).status_code == 401
    assert client.get("/").status_code == 401


def test_another_name_of_the_server_is_not_answered(visit: Visit) -> None:
    """A name that somebody else's DNS points here reads nothing (DNS rebinding)."""
    assert visit("decide").get("/", headers={"host": "evil.example"}).status_code == 421


def test_every_answer_has_the_policy(visit: Visit) -> None:
    """H49: no inline script or style, nothing from elsewhere, on every answer, refusals and assets too."""
    client = visit("decide")
    asked = [client.get("/"), client.get("/nope"), client.get("/assets/style.css"), visit(None).get("/")]
    asked.append(client.get("/", headers={"host": "evil.example"}))
    for answer in asked:
        policy = dict(told.split(" ", 1) for told in answer.headers["content-security-policy"].split("; "))
        assert (policy["default-src"], policy["base-uri"], policy["frame-ancestors"]) == ("'none'",) * 3
        assert {*policy.values()} == {"'none'", "'self'"}
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"


def test_a_bug_of_ours_has_the_policy_too(site: Site) -> None:
    """H49: what nobody has foreseen is answered through the same guard."""

    def broken(_: Site, __: Asked) -> Page:
        raise ZeroDivisionError

    app = create(site, {HOST}, (Way("/broken", broken),))
    client = TestClient(app, base_url=ORIGIN, raise_server_exceptions=False)
    client.get("/enter", params={"token": "look"}, follow_redirects=False)
    answer = client.get("/broken")
    assert answer.status_code == 500
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_an_asset_is_one_of_ours(visit: Visit) -> None:
    """H51: no path leads out of the folder of assets."""
    client = visit("decide")
    for name in ("..%2fapp.py", "%2e%2e/app.py", "style.css%00", "page.py", "../seen.py"):
        assert client.get(f"/assets/{name}").status_code == 404


def _went(site: Site, asked: Asked) -> Went:
    done.append(asked)
    return Went("/", f"done with {asked.form.get('what', '')}")


done: list[Asked] = []


@pytest.fixture
def changing(site: Site) -> TestClient:
    """A reviewer at a page with one change."""
    done.clear()
    client = TestClient(create(site, {HOST}, (Way("/act", _went, changes=True), Way("/", _text))), base_url=ORIGIN)
    client.get("/enter", params={"token": "decide"}, follow_redirects=False)
    return client


def _text(site: Site, asked: Asked) -> Page:
    return Page("problem.html", "Here", {"status": 200, "message": HOSTILE, "hint": ""})


def form(client: TestClient, site: Site, token: int = 1) -> dict[str, str]:
    """The fields that a page of ours has for this visitor."""
    cookie = client.cookies[site.access.cookie("session")]
    visitor = Visitor(TOKENS[token].name, TOKENS[token].role)
    return {"form_token": site.access.form_token(visitor, cookie)}


def test_a_form_of_ours_changes_something_and_says_so_once(changing: TestClient, site: Site) -> None:
    """What a change led to is told on the next page, and on no other."""
    answer = changing.post("/act", data={**form(changing, site), "what": "it"}, headers={"origin": ORIGIN})
    assert [asked.visitor.name for asked in done] == ["rosa@here"]
    assert "done with it" in answer.text
    assert "done with it" not in changing.get("/").text


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", f"http://{HOST}.evil.example", "http://["])
def test_a_form_of_another_page_changes_nothing(changing: TestClient, site: Site, origin: str | None) -> None:
    """H52: a POST that no page of ours sent is refused, although the browser sends the session."""
    headers = {} if origin is None else {"origin": origin}
    answer = changing.post("/act", data=form(changing, site), headers=headers)
    assert (answer.status_code, done) == (403, [])


def test_a_form_without_its_token_changes_nothing(changing: TestClient) -> None:
    """H52: the session alone does not decide."""
    answer = changing.post("/act", data={"what": "it"}, headers={"origin": ORIGIN})
    assert (answer.status_code, done) == (403, [])


def test_a_form_token_belongs_to_one_session(changing: TestClient, site: Site) -> None:
    """H52: the token of somebody else's page does not count."""
    other = {"form_token": site.access.form_token(Visitor("rosa@here", "reviewer"), "another session")}
    answer = changing.post("/act", data=other, headers={"origin": ORIGIN})
    assert (answer.status_code, done) == (403, [])


def test_an_old_page_decides_nothing(archive: Archive) -> None:
    """H52: after twelve hours a page must be loaded again."""
    clock = [1_000_000.0]
    site = site_of(archive, access=Access(b"k" * 32, TOKENS, now_s=lambda: clock[0]))
    client = TestClient(create(site, {HOST}, (Way("/act", _went, changes=True),)), base_url=ORIGIN)
    client.get("/enter", params={"token": "decide"}, follow_redirects=False)
    done.clear()
    fields = form(client, site)
    clock[0] += 12 * 3_600 + 1
    answer = client.post("/act", data=fields, headers={"origin": ORIGIN})
    assert (answer.status_code, done) == (403, [])


def test_a_viewer_decides_nothing(site: Site) -> None:
    """H52: a viewer reads."""
    client = TestClient(create(site, {HOST}, (Way("/act", _went, changes=True),)), base_url=ORIGIN)
    client.get("/enter", params={"token": "look"}, follow_redirects=False)
    done.clear()
    answer = client.post("/act", data=form(client, site, 0), headers={"origin": ORIGIN})
    assert (answer.status_code, done) == (403, [])


def test_an_archive_alone_decides_nothing(archive: Archive) -> None:
    """Where there is no deployment, a reviewer's token decides nothing either."""
    site = site_of(archive, settings=None)
    client = TestClient(create(site, {HOST}, (Way("/act", _went, changes=True),)), base_url=ORIGIN)
    client.get("/enter", params={"token": "decide"}, follow_redirects=False)
    done.clear()
    answer = client.post("/act", data=form(client, site), headers={"origin": ORIGIN})
    assert (answer.status_code, done) == (403, [])


def test_a_get_changes_nothing(changing: TestClient) -> None:
    """The address of a change is no page."""
    assert changing.get("/act").status_code == 405
    assert done == []


def test_a_large_form_is_refused(changing: TestClient, site: Site) -> None:
    """A form has its bound, which is looked at before it is read."""
    fields = {**form(changing, site), "what": "x" * 300_000}
    answer = changing.post("/act", data=fields, headers={"origin": ORIGIN})
    assert (answer.status_code, done) == (413, [])


def test_a_form_without_an_end_is_refused(changing: TestClient, site: Site) -> None:
    """Chunks end when they like: a length that is said besides bounds nothing."""
    body = f"form_token={form(changing, site)['form_token']}&what=it".encode()
    headers = {"origin": ORIGIN, "transfer-encoding": "chunked", "content-length": str(len(body))}
    headers["content-type"] = "application/x-www-form-urlencoded"
    answer = changing.post("/act", content=body, headers=headers)
    assert (answer.status_code, done) == (413, [])


def test_a_forged_session_is_nobody(visit: Visit, site: Site) -> None:
    """A cookie that another key has signed lets nobody in."""
    forged = Access(b"x" * 32, TOKENS).session(Visitor("rosa@here", "reviewer"))
    client = visit(None)
    client.cookies.set(site.access.cookie("session"), forged)
    assert client.get("/").status_code == 401


def test_a_proxy_is_believed_only_where_that_is_switched_on(archive: Archive) -> None:
    """The header of a reverse proxy names nobody unless the deployment says so; then it names who decides."""
    headers = {"x-forwarded-user": "rosa"}
    plain_site = site_of(archive)
    behind = site_of(
        archive, access=Access(b"k" * 32, identity_header="X-Forwarded-User", reviewers=frozenset({"rosa"}))
    )
    assert TestClient(create(plain_site, {HOST}), base_url=ORIGIN).get("/", headers=headers).status_code == 401
    told = TestClient(create(behind, {HOST}), base_url=ORIGIN, client=("127.0.0.1", 5_000)).get("/", headers=headers)
    assert "rosa, reviewer" in told.text


@pytest.mark.parametrize(
    ("header", "peer", "told", "secure"),
    [
        ("X-Forwarded-User", "127.0.0.1", ["https"], True),
        ("X-Forwarded-User", "127.0.0.1", ["http"], False),
        ("X-Forwarded-User", "127.0.0.1", [], False),
        ("X-Forwarded-User", "127.0.0.1", ["https", "https"], False),
        ("X-Forwarded-User", "10.1.2.3", ["https"], False),
        ("", "127.0.0.1", ["https"], False),
    ],
)
def test_cookies_are_secure_behind_a_proxy_with_tls(
    archive: Archive, header: str, peer: str, told: list[str], secure: bool
) -> None:
    """Where a proxy that is believed says that the browser came by TLS, no cookie goes over the wire without: neither
    the session nor what a page says and remembers. Nobody else is believed."""

    def opened(_: Site, __: Asked) -> Page:
        return Page("problem.html", "Here", {"status": 200, "message": "here", "hint": ""}, opened="it")

    ways = (Way("/act", _went, changes=True), Way("/it", opened), Way("/", _text))
    site = site_of(archive, access=Access(b"k" * 32, TOKENS, identity_header=header))
    client = TestClient(create(site, {HOST}, ways), base_url=ORIGIN, client=(peer, 5_000), follow_redirects=False)
    headers = [("x-forwarded-proto", one) for one in told]
    answers = [client.get("/enter", params={"token": "decide"}, headers=headers)]
    session = answers[0].cookies[site.access.cookie("session")]
    headers.append(("cookie", f"{site.access.cookie('session')}={session}"))
    token = site.access.form_token(Visitor(TOKENS[1].name, TOKENS[1].role), session)
    answers.append(client.get("/it", headers=headers))
    answers.append(client.post("/act", data={"form_token": token}, headers=[*headers, ("origin", ORIGIN)]))
    kept = [answer.headers["set-cookie"].lower() for answer in answers]
    assert ["secure" in one for one in kept] == [secure] * 3
    assert all("httponly" in one and "samesite=lax" in one for one in kept)


def test_words_of_strangers_are_text(site: Site) -> None:
    """T68: a title that would end a script is shown, and is no element; control characters are written out."""
    page = Page("problem.html", HOSTILE, {"status": 200, "message": "\x1b[31m<img src=x>\u202e", "hint": ""})
    told = render.html(page, render.Around())
    assert HOSTILE not in told
    assert "&lt;img src=x&gt;" in told
    assert "\\x1b[31m" in told
    assert "\u202e" not in told


def test_a_page_has_a_twin(visit: Visit, make_run: Make) -> None:
    """The same address with as=json gives the data of the page."""
    make_run("night-0123456789ab-cart-0")
    told = json.loads(visit("look").get("/", params={"as": "json"}).text)
    assert (told["schema"], told["command"]) == ("dawn.web/1", "dawn status")
    assert told["data"]["archive"].startswith("file://")


def test_an_address_holds_no_more_than_its_places() -> None:
    """Whatever stands in a name, it stays one part of the path."""
    assert address("/runs/{run}", run="../x?y#z/%2f") == "/runs/..%2Fx%3Fy%23z%2F%252f"


def test_half_a_letter_breaks_no_address() -> None:
    """What a file system or a model may say, and no address: the page with it is shown all the same."""
    assert address("/runs/{run}", query={"file": "\ud800"}, run="\ud800") == "/runs/%3F?file=%3F"


def test_another_site_signs_nobody_in_as_another(visit: Visit, site: Site) -> None:
    """A link elsewhere with a token in it does not have one's decisions put down to somebody else."""
    client, headers = visit("look"), {"sec-fetch-site": "cross-site"}
    entered = client.get("/enter", params={"token": "decide"}, headers=headers, follow_redirects=False)
    assert entered.status_code == 409
    assert "vera@here" in client.get("/").text
    again = visit(None).get("/enter", params={"token": "look"}, headers=headers, follow_redirects=False)
    assert again.status_code == 303


def test_a_page_behind_the_last_is_not_there() -> None:
    """A table ends."""
    asked = Asked("/", {}, Visitor("me", "viewer"), {"page": "3"})
    assert cut(300, asked).start == 200
    with pytest.raises(NotFoundFault):
        cut(200, asked)
