"""Owns serving the pages: a socket of this machine and the tokens for it. Refuses to answer any other name than the
ones it was given.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scheduler.web.access import Token, new_token
from scheduler.web.page import address
from worker.contract.errors import UsageFault

if TYPE_CHECKING:
    from scheduler.web.site import Site

TOKENS_FILE: Final = "web.json"
BACKLOG: Final = 64
KEEP_ALIVE_S: Final = 15
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
        made.bind((host, port))
    except OSError as error:
        raise UsageFault(
            f"{host} port {port}: {error.strerror or error}", hint="take another with --port, 0 for any free one"
        ) from None
    made.set_inheritable(True)
    return made


def names(host: str, port: int, more: Iterable[str] = ()) -> set[str]:
    """What browsers may call the server, as they write it in `Host`."""
    of_machine = {*LOOPBACK, host} if host in LOOPBACK else {host}
    found = {f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in of_machine}
    return found | {one.lower() for one in more}


def entrance(host: str, port: int, token: str, to: str = "/") -> str:
    """The address that signs its reader in."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}" + address("/enter", query={"token": token, "to": "" if to == "/" else to})


def serve(site: Site, listening: socket.socket, hosts: Iterable[str]) -> None:
    """Answer until SIGTERM or SIGINT."""
    import uvicorn

    from scheduler.web.app import create

    config = uvicorn.Config(
        create(site, set(hosts)),
        log_level="warning",
        access_log=False,  # addresses hold tokens and what people search for
        proxy_headers=False,
        server_header=False,
        date_header=True,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=3,
        lifespan="off",
        ws="none",
    )
    uvicorn.Server(config).run(sockets=[listening])
