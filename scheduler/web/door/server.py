"""Owns serving the pages: a socket of this machine and the tokens for it. Refuses to answer any other name than the
ones it was given.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scheduler.web.door.access import Token, new_token
from scheduler.web.page import address
from worker.contract.errors import Fault, UsageFault

if TYPE_CHECKING:
    from scheduler.launch import Interrupts
    from scheduler.web.site import Site
    from worker.contract.settings import Settings

TOKENS_FILE: Final = "web.json"
BACKLOG: Final = 64
KEEP_ALIVE_S: Final = 15
SHUTDOWN_S: Final = 3
UNREAD_S: Final = 60
"""What was sent waits so long for its reader; then the kernel gives the connection up. It needs Linux."""
POLL_S: Final = 0.5
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Keys:
    """What signs sessions, and what people sign in with."""

    key: bytes
    viewer: str
    reviewer: str

    def tokens(self, name: str) -> tuple[Token, Token]:
        """name: whom decisions are put down to."""
        return Token(self.viewer, name, "viewer"), Token(self.reviewer, name, "reviewer")


def fresh_keys() -> Keys:
    """For one process, never stored."""
    return Keys(secrets.token_bytes(32), new_token(), new_token())


def kept_keys(state_dir: Path) -> Keys:
    """Of a deployment: made at its first start, then read. The file is its owner's alone. Raises UsageFault when it
    is not what was written."""
    path = state_dir / TOKENS_FILE
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = fresh_keys()
    told = json.dumps({"key": made.key.hex(), "viewer": made.viewer, "reviewer": made.reviewer})
    staged = state_dir / f"{TOKENS_FILE}.{os.getpid()}.{secrets.token_hex(4)}"
    if not path.exists():
        with open(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(told)
        try:
            os.link(staged, path)  # whoever links first has made them
        except FileExistsError:
            pass
        finally:
            staged.unlink()
    try:
        found = json.loads(path.read_text())
        return Keys(bytes.fromhex(found["key"]), str(found["viewer"]), str(found["reviewer"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageFault(f"{path} cannot be read", hint="remove it: new tokens are made, old sessions end") from None


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes any free one. Raises UsageFault with what to do."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_S * 1_000)
        made.bind((host, port))
        made.listen(BACKLOG)  # whoever comes while the pages start waits for them
    except OSError as error:
        raise UsageFault(
            f"{host} port {port}: {error.strerror or error}", hint="take another with --port, 0 for any free one"
        ) from None
    made.set_inheritable(True)
    return made


def listen_near(host: str, port: int) -> socket.socket:
    """As listen; any free port where that one is taken."""
    try:
        return listen(host, port)
    except UsageFault:
        return listen(host, 0)


def nameable(host: str, hosts: Collection[str]) -> None:
    """hosts: of DAWN_WEB_HOSTS. Raises UsageFault for an address that no browser can call this server by."""
    if is_any(host) and not hosts:
        raise UsageFault(
            f"{host} is every address of this machine, and none that a browser calls it by",
            hint="name one with --host, or set DAWN_WEB_HOSTS to what browsers shall call it, like pages.example.org",
        )


def is_any(host: str) -> bool:
    """Every address of this machine."""
    return host in ("0.0.0.0", "::", "")


def is_loopback(host: str) -> bool:
    """Nobody outside this machine reaches it."""
    return host in LOOPBACK or host.startswith("127.")


def names(host: str, port: int, more: Iterable[str] = ()) -> set[str]:
    """What browsers may call the server, as they write it in `Host`. more: of DAWN_WEB_HOSTS."""
    of_machine = {*LOOPBACK, host} if is_loopback(host) else {*LOOPBACK} if is_any(host) else {host}
    return {name(one, port) for one in of_machine} | {one.lower() for one in more}


def name(host: str, port: int) -> str:
    """As a browser writes it in `Host`."""
    return f"[{host}]:{port}" if ":" in host else f"{host.lower()}:{port}"


def entrance(of: str, token: str = "") -> str:
    """The address that signs its reader in; without a token the one that asks for it. of: a name of the server."""
    return f"http://{of}" + (address("/enter", query={"token": token}) if token else "/")


def serve(site: Site, listening: socket.socket, hosts: Iterable[str], pressed: Interrupts) -> None:
    """Answer until Ctrl-C or SIGTERM. Raises KeyboardInterrupt at the second one, Fault when it cannot answer."""
    import uvicorn

    from scheduler.web.door.app import create
    from scheduler.web.door.connection import CONNECTIONS_MAX, Connection

    config = uvicorn.Config(
        create(site, set(hosts)),
        log_config=None,  # ours are one JSON line each, masked
        log_level="warning",
        access_log=False,  # addresses hold tokens and what people search for
        proxy_headers=False,
        server_header=False,
        date_header=True,
        http=Connection,
        limit_concurrency=CONNECTIONS_MAX + BACKLOG,  # so many may come before the first of them makes room
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        lifespan="off",
        ws="none",
    )
    server = uvicorn.Server(config)
    # Beside this thread, so that signals stay ours and end this process as they end the others.
    answering = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="pages", daemon=True)
    answering.start()
    try:
        while answering.is_alive() and not pressed.count:
            pressed.wake.wait(POLL_S)
    finally:
        site.news.close()
        server.should_exit = True
    if not pressed.count:
        raise Fault("the pages cannot be answered any more", hint="the lines above say why")
    answering.join(SHUTDOWN_S + POLL_S)


def serve_deployment(
    settings: Settings,
    listening: socket.socket,
    actor: str,
    pressed: Interrupts,
    announce: Callable[[Keys], None] = lambda _: None,
) -> None:
    """The pages of a deployment, with their log as JSON lines. announce: tells where they are, once nothing is wrong
    with the settings. Raises as serve, kept_keys, of_deployment and open_archive do."""
    from scheduler.web.door.deployment import of_deployment
    from worker.contract.redact import redactor_from_env
    from worker.store.archive import open_archive
    from worker.store.logs import configure_logs

    configure_logs(mask=redactor_from_env(os.environ).text)
    keys = kept_keys(settings.state_dir)
    site = of_deployment(open_archive(settings.archive_url, settings), settings, keys, actor)
    bound, port = listening.getsockname()[:2]
    hosts = names(bound, port, settings.web_hosts) | names(settings.web_host, port)
    announce(keys)
    serve(site, listening, hosts, pressed)
