"""Owns HTTP: requests become what a page is asked, answers become responses. Refuses to decide what a page says."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import anyio
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from scheduler.reports.harmless import plain
from scheduler.web import render
from scheduler.web.door.access import SESSION_S
from scheduler.web.door.guard import Guard
from scheduler.web.door.news import stream
from scheduler.web.page import Answer, Asked, File, Page, Visitor, Way, Went, is_ours
from scheduler.web.render import Around
from scheduler.web.site import Site
from scheduler.web.ways import WAYS
from worker.contract.errors import (
    ConflictFault,
    Fault,
    HintsFault,
    IntegrityFault,
    InvalidFault,
    NotFoundFault,
    StoreFault,
    UsageFault,
    VersionFault,
)
from worker.contract.redact import without_passwords

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    Endpoint = Callable[[Request], Awaitable[Response]]

ASSETS: Final = {
    "icon.svg": "image/svg+xml",
    "style.css": "text/css",
    "code.css": "text/css",
    "charts.css": "text/css",
    "run.css": "text/css",
    "page.js": "text/javascript",
    "keys.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "hx-sse.min.js": "text/javascript",
}
FIELDS_MAX: Final = 4_000
"""Of one form: a choice of a thousand runs, and room."""

STATUS: Final[Sequence[tuple[type[Fault], int]]] = (
    (NotFoundFault, 404),
    (ConflictFault, 409),
    (VersionFault, 409),
    (InvalidFault, 400),
    (UsageFault, 400),
    (IntegrityFault, 500),
    (StoreFault, 503),
    (HintsFault, 503),
    (Fault, 500),
)


def create(site: Site, hosts: Collection[str], ways: Sequence[Way] = WAYS) -> ASGIApp:
    """The pages as an ASGI application. hosts: what browsers may call this server, with the port."""
    _prepare()
    routes = [Route(way.pattern, _endpoint(site, way), methods=["POST" if way.changes else "GET"]) for way in ways]
    app = Starlette(
        routes=[
            Route("/enter", _enter(site), methods=["GET", "POST"]),
            Route("/assets/{name}", _asset),
            Route("/news", _news(site)),
            Route("/favicon.ico", _no_icon),
            *routes,
        ],
        exception_handlers={HTTPException: _not_ours(site), ClientDisconnect: _gone},
    )
    return Guard(app, hosts)  # around everything, so that also an answer to a bug of ours has its policy


def _prepare() -> None:
    """Load what the first reader would wait for: templates, and what runs a page beside the loop (60 ms)."""
    render.prepare()
    other = threading.Thread(target=anyio.run, args=(anyio.sleep, 0))  # this one may have a loop already
    other.start()
    other.join()


def _endpoint(site: Site, way: Way) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        visitor = _visitor(site, request)
        if visitor is None:
            return _sign_in(site, request, 401, "")
        if not way.changes:
            query = dict(request.query_params)
            asked = Asked(way.pattern, request.path_params, visitor, query, opened=_opened(site, visitor, request))
            return await _answered(site, way, asked, request)
        form = await request.form(max_files=0, max_fields=FIELDS_MAX)
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        refused = _refused(site, visitor, fields.get("form_token", ""), _session(site, request))
        if refused is not None:
            return _shown(site, request, visitor, _problem(403, *refused))
        lists: dict[str, list[str]] = {}
        for name, value in form.multi_items():
            lists.setdefault(f"{name}[]", []).append(str(value))
        many = {name: "\n".join(values) for name, values in lists.items()}
        query, opened = dict(request.query_params), _opened(site, visitor, request)
        asked = Asked(way.pattern, request.path_params, visitor, query, {**many, **fields}, opened)
        return await _answered(site, way, asked, request)

    return endpoint


async def _answered(site: Site, way: Way, asked: Asked, request: Request) -> Response:
    try:
        answer: Answer = await run_in_threadpool(way.handler, site, asked)
        if isinstance(answer, File):
            return _sent(answer)
        if isinstance(answer, Went):
            return _went(site, request, answer)
        return await run_in_threadpool(_shown, site, request, asked.visitor, answer)
    except Fault as fault:
        status = next(status for kind, status in STATUS if isinstance(fault, kind))
        page = _problem(status, without_passwords(fault.message), without_passwords(fault.hint))
        return _shown(site, request, asked.visitor, page)


def _refused(site: Site, visitor: Visitor, token: str, cookie: str) -> tuple[str, str] | None:
    """Why a change is not made: what is wrong, and what to do."""
    if not site.decides:
        return "nothing can be decided here", "these pages read an archive alone; `dawn web` has the deployment's"
    if not visitor.may_decide:
        return f"{visitor.name} may read and not decide", "sign in with a reviewer's token"
    if not site.access.is_form(token, visitor, cookie):
        return "this page is too old to decide on", "load it again, look, and decide then"
    return None


def _shown(site: Site, request: Request, visitor: Visitor, page: Page) -> Response:
    cookie = _session(site, request)
    said = site.access.said(request.cookies.get(site.access.cookie("said"), ""))
    around = Around(
        here=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        visitor=visitor,
        form_token=site.access.form_token(visitor, cookie) if site.decides and visitor.may_decide else "",
        said=said,
        query=dict(request.query_params),
        archive="" if site.decides else site.archive.url,
    )
    if request.query_params.get("as") == "json":
        return Response(render.as_json(page, around), page.status, media_type="application/json")
    response = Response(render.html(page, around), page.status, media_type="text/html")
    if said:
        _keep(site, request, response, "said", "", 0)
    if page.opened and request.method == "GET":
        seen = site.access.with_opened(visitor, _opened(site, visitor, request), page.opened)
        _keep(site, request, response, "opened", seen)
    return response


def _went(site: Site, request: Request, answer: Went) -> Response:
    response = RedirectResponse(answer.to, 303)
    if answer.said:
        _keep(site, request, response, "said", site.access.say(answer.said))
    return response


def _keep(
    site: Site, request: Request, response: Response, kind: str, value: str, lives_s: float | None = None
) -> None:
    """A cookie. lives_s: None for as long as the browser is open, 0 takes it away."""
    response.set_cookie(
        site.access.cookie(kind),
        value,
        max_age=None if lives_s is None else int(lives_s),
        secure=site.access.is_https(request.headers.getlist("x-forwarded-proto"), _peer(request)),
        httponly=True,
        samesite="lax",
    )


def _sent(file: File) -> Response:
    """Always to keep, never to show: a browser must not run what an agent wrote. Its name is what it seems to be."""
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(plain(file.name), safe='')}"}
    if file.size is not None:
        headers["content-length"] = str(file.size)
    return StreamingResponse(file.chunks, headers=headers, media_type="application/octet-stream")


def _problem(status: int, message: str, hint: str = "") -> Page:
    return Page("problem.html", message, {"status": status, "message": message, "hint": hint}, status=status)


def _visitor(site: Site, request: Request) -> Visitor | None:
    names = [name.lower() for name in request.headers]
    # Of a header that stands there twice nobody knows which one the proxy wrote.
    headers = {name.lower(): value for name, value in request.headers.items() if names.count(name.lower()) == 1}
    return site.access.visitor(_session(site, request), headers, _peer(request))


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


def _opened(site: Site, visitor: Visitor, request: Request) -> tuple[str, ...]:
    return site.access.opened(visitor, request.cookies.get(site.access.cookie("opened"), ""))


def _session(site: Site, request: Request) -> str:
    return request.cookies.get(site.access.cookie("session"), "")


def _sign_in(site: Site, request: Request, status: int, said: str) -> Response:
    to = request.url.path if request.method == "GET" and request.url.path != "/enter" else "/"
    page = Page("enter.html", "Sign in", {"said": said, "to": to}, status=status)
    around = Around(here="/enter", live=False)
    if request.query_params.get("as") == "json":
        return Response(render.as_json(page, around), status, media_type="application/json")
    return Response(render.html(page, around), status, media_type="text/html")


def _enter(site: Site) -> Endpoint:
    async def enter(request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=4) if request.method == "POST" else request.query_params
        token, to = str(form.get("token", "")), str(form.get("to", "/"))
        if not token:
            return _sign_in(site, request, 200, "")
        visitor = site.access.sign_in(token)
        if visitor is None:
            return _sign_in(site, request, 401, "that token is not known here")
        now = _visitor(site, request)
        if now not in (None, visitor) and request.headers.get("sec-fetch-site") == "cross-site":
            # Somebody else's page would have what is decided from now on put down to another.
            return _sign_in(site, request, 409, f"you are signed in as {now.name}; sign in here to change that")
        response = RedirectResponse(to if is_ours(to) else "/", 303)
        _keep(site, request, response, "session", site.access.session(visitor), SESSION_S)
        return response

    return enter


def _news(site: Site) -> Endpoint:
    async def news(request: Request) -> Response:
        visitor = _visitor(site, request)
        if visitor is None:
            return PlainTextResponse("sign in\n", 401)
        if request.method == "HEAD":  # it would hear nothing, and stay
            return Response(media_type="text/event-stream")
        return await stream(site, visitor, request)

    return news


async def _gone(_: Request, __: Exception) -> Response:
    """Whoever sent half a form has hung up: nobody reads this, and no log needs it."""
    return Response(status_code=400)


async def _no_icon(_: Request) -> Response:
    """Browsers ask for one by themselves, and complain of a page that is not there."""
    return Response(status_code=204)


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        raise HTTPException(404)
    data = await run_in_threadpool((files("scheduler.web") / "assets" / name).read_bytes)
    return Response(data, media_type=ASSETS[name], headers={"cache-control": "public, max-age=300"})


def _not_ours(site: Site) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        visitor = _visitor(site, request)
        if visitor is None:
            return _sign_in(site, request, 401, "")
        page = _problem(status, "there is no such page" if status == 404 else "this cannot be asked like that")
        return _shown(site, request, visitor, page)

    return answer
