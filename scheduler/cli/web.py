"""Owns the commands that open the archive on screen: web, view. Refuses to decide who may see it
(scheduler/web/door/access.py), and to write an address that signs in anywhere but on the terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli import terminal

if TYPE_CHECKING:
    import socket

    from worker.contract.settings import Settings

Port = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="Default: DAWN_WEB_PORT, or any free one where that is taken; 0: any free one."
    ),
]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("web")(web)
    app.command("view")(view)


def web(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default: DAWN_WEB_HOST, this machine alone.")
    ] = None,
    port: Port = None,
    fd: Annotated[int | None, typer.Option(hidden=True, help="A socket that `dawn up` listens on.")] = None,
) -> None:
    """Show the archive in a browser until Ctrl-C, and decide there.

    With or without a running stack. Prints two addresses that sign their reader in: one reads, one also decides.
    """
    import socket

    from scheduler.cli import edge
    from scheduler.launch import interrupts
    from scheduler.web.door import server

    where = edge.settings()
    with interrupts() as pressed:
        if fd is not None:
            server.serve_deployment(where, socket.socket(fileno=fd), edge.actor(), pressed)
            return
        where = where.model_copy(update={} if host is None else {"web_host": host})
        listening = listen(where, port)

        def tell(keys: server.Keys) -> None:
            terminal.say(f"pages of {where.archive_url}; Ctrl-C ends them")
            announce(where, listening, ("to read", keys.viewer), ("to decide", keys.reviewer))

        server.serve_deployment(where, listening, edge.actor(), pressed, tell)


def view(
    source: Annotated[
        str, typer.Argument(metavar="ADDRESS|FILE.tar", help="An archive, or a bundle of dawn export.")
    ],
    port: Port = None,
) -> None:
    """Show an archive or a bundle alone in a browser until Ctrl-C.

    It needs no Redis, no worker and no deployment, and changes nothing. The address that it prints is good until
    it ends.
    """
    import os

    from scheduler.cli import edge
    from scheduler.launch import interrupts
    from scheduler.web.door import server
    from scheduler.web.door.deployment import archive_address, of_archive
    from worker.contract.redact import redactor_from_env
    from worker.store.logs import configure_logs

    where = edge.settings(archive_address(source)).model_copy(update={"web_host": server.LOOPBACK[0]})
    with interrupts() as pressed:
        archive = edge.archive(where)
        listening = listen(where, port)
        configure_logs(mask=redactor_from_env(os.environ).text)
        keys = server.fresh_keys()
        terminal.say(f"pages of {archive.url}, to read only; Ctrl-C ends them")
        announce(where, listening, ("to read", keys.viewer))
        bound, taken = listening.getsockname()[:2]
        server.serve(of_archive(archive, keys, edge.actor()), listening, server.names(bound, taken), pressed)


def announce(where: Settings, listening: socket.socket, *ways: tuple[str, str]) -> None:
    """Print the addresses that sign in. ways: what each is for, and its token."""
    from scheduler.web.door import server

    host, port = where.web_host, listening.getsockname()[1]
    for what, token in ways:
        terminal.emit(f"{what:<10} {address_of(where, listening, token)}")
    if not server.is_loopback(host):
        terminal.say(
            f"note: port {port} is open to the network, and what goes over it is not encrypted: whoever reads it has"
            " the tokens. Put a proxy with TLS before it, or take --host 127.0.0.1."
            f" It answers to {', '.join(sorted(server.names(host, port, where.web_hosts)))}."
        )


def address_of(where: Settings, listening: socket.socket, token: str = "") -> str:
    """Where the pages are; with a token, the address that signs in."""
    from scheduler.web.door import server

    if server.is_any(where.web_host):
        return server.entrance(where.web_hosts[0], token)
    return server.entrance(server.name(where.web_host, listening.getsockname()[1]), token)


def command(listening: socket.socket) -> list[str]:
    """What answers on a socket that it inherits."""
    import sys

    return [sys.executable, "-P", "-m", "scheduler.cli.main", "web", "--fd", str(listening.fileno())]


def listen(where: Settings, port: int | None) -> socket.socket:
    """On DAWN_WEB_HOST. port: None for DAWN_WEB_PORT, or any free one where that is taken. Raises UsageFault."""
    from scheduler.web.door import server

    server.nameable(where.web_host, where.web_hosts)
    if port is not None:
        return server.listen(where.web_host, port)
    return server.listen_near(where.web_host, where.web_port)
