"""Owns the conversation of one call: what the first process of its container runs, what is sent to it, and how
its end is read. Refuses to create or remove containers.

The first process (`PARKED`) waits on its attached stdin for a length and that many bytes of shell text (the
*prelude*, made by `compose`), evaluates it, and ends by itself. The prelude takes the payload from the same stdin,
runs it and prints the *trailer*: newline, nonce, exit code, processes the kernel killed for memory, newline.
It needs `sh`, `cat` and `head` in the image; it uses `bash` and `timeout` where they are.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from worker.contract.cancel import Cancel
from worker.contract.errors import InvalidFault
from worker.sandbox.docker import Stream
from worker.sandbox.output import Spool
from worker.sandbox.protocol import HOME, SECRETS, Command
from worker.sandbox.shape import MIB, STREAM_DIR

PAYLOAD_BYTES: Final = 32 * MIB
"""Largest payload: it waits in a tmpfs of twice that (shape.STREAM_BYTES), which counts as the call's memory."""
INLINE_BYTES: Final = 1024
"""A payload of plain text up to this travels in the prelude, which a shell reads byte by byte: for more of them
that takes longer than to start `head`."""
CANCEL_LOOK_S: Final = 0.05
DISK_LOOK_S: Final = 1
CA_FILE: Final = f"{STREAM_DIR}/ca.pem"
STDIN_FILE: Final = f"{STREAM_DIR}/stdin"
CA_VARIABLES: Final = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "CURL_CA_BUNDLE",
)

ENVIRONMENT: Final[Mapping[str, str]] = {
    "HOME": HOME,
    # Not LC_ALL: where an image lacks this locale, bash complains of it in the output of every call.
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "CI": "true",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    # Python trusts a cached module of the same size and second as its source: an edit right after a test run,
    # `-` to `+`, would not be seen by the next one.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Nobody sits at a terminal: editors accept what is there, pagers print, partial output is not lost in a buffer."""

# Two counters of the call's own cgroup are read with nothing but the shell: in a container that may start no more
# processes this still works. Version 2 of cgroups first, then version 1.
#
# The payload's file is opened and unlinked before anything of the call runs: a shell reads its script lazily, so
# a command could otherwise rewrite it under its own feet.
#
# `guard` ends the call when nobody is left to end it: the attached stdin ends with the driver.
PARKED: Final = f"""umask 077
exec 3<>{STREAM_DIR}/payload 4<&0
rm -f {STREAM_DIR}/payload 2>/dev/null
umask 022
export {" ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())}
s=sh; command -v bash >/dev/null 2>&1 && s=bash
guard() {{ (read -r _ <&4; kill -9 -1) & }}
counter() {{
c=-
for f in $2; do
if [ -r $f ]; then while read -r k v; do [ "$k" = $1 ] && c=$v; done <$f; fi
done
}}
trailer() {{
counter oom_kill "/sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control"; o=$c
counter max "/sys/fs/cgroup/pids.events /sys/fs/cgroup/pids/pids.events"
printf '\\n%s %s %s %s\\n' $1 $e $o $c
}}
read -r line && eval "$line"
"""
ENTRYPOINT: Final = ("sh", "-c", PARKED)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(rb"[\n -~]*")
_PROGRAM = re.compile(r"[a-z_]+")
_NO_FOLDER = "cwd"


@dataclass(frozen=True)
class Message:
    """What is sent to a parked container; nonce marks its trailer."""

    data: bytes
    nonce: str


@dataclass(frozen=True)
class Ending:
    """How the conversation ended. why: trailer, end (of the stream, without one), timeout, cancel, full (the disk).

    With a trailer come exit_code, oom_kills (processes the kernel killed for memory) and refused_pids (processes
    it would not start); None where its counter cannot be read. no_folder: the working folder does not exist,
    nothing ran.
    """

    why: Literal["trailer", "end", "timeout", "cancel", "full"]
    duration_ms: int
    exit_code: int | None = None
    oom_kills: int | None = None
    refused_pids: int | None = None
    no_folder: bool = False


def compose(command: Command, *, ca_bundle: bytes = b"") -> Message:
    """The bytes that make a parked container run the command. ca_bundle: certificates it shall trust, PEM.

    Raises InvalidFault for a payload the wrapper cannot take: NUL in a script, too large, a bad name.
    """
    _check(command)
    nonce = secrets.token_hex(16)
    variables = {**(dict.fromkeys(CA_VARIABLES, CA_FILE) if ca_bundle else {}), **command.env, **command.secrets}
    assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    if command.kind == "shell":
        # The descriptor is closed on the script's own first line, so that line numbers stay right.
        payload = b"exec 3<&-; " + command.payload
        program = f"$s /dev/fd/3 <{STDIN_FILE if command.stdin else '/dev/null'}"
    else:
        payload = command.payload
        program = f"python3 -I /opt/dawnfleet/{command.program}.py </dev/fd/3 3<&-"
    deposit, payload = _deposit(payload)
    files = {name: value.encode("utf-8", "surrogateescape") for name, value in command.secret_files.items()}
    steps = [
        # The shell's own words about a killed program may quote the line with the secrets in it: they go nowhere.
        "exec 2>/dev/null",
        *([f"head -c {len(ca_bundle)} >{CA_FILE}"] if ca_bundle else []),
        *(f"(umask 377; head -c {len(value)} >{SECRETS}/{name})" for name, value in files.items()),
        deposit,
        *([f"head -c {len(command.stdin)} >{STDIN_FILE}"] if command.stdin else []),
        "guard",
        f"e={_NO_FOLDER}",
        f"cd -- {shlex.quote(command.cwd)} && {{ {assignments} {program} 2>&1 4<&-; e=$?; }}",
        f"trailer {nonce}",
        *(['exit "$e"'] if command.proven else []),
    ]
    prelude = "; ".join(steps).encode("utf-8", "surrogateescape")
    if b"\n" in prelude:
        # A value of several lines, say a key: then the line only says how to read them.
        prelude = b'eval "$(head -c %d)"\n%b' % (len(prelude), prelude)
    else:
        prelude += b"\n"
    return Message(prelude + ca_bundle + b"".join(files.values()) + payload + command.stdin, nonce)


def _deposit(payload: bytes) -> tuple[str, bytes]:
    """The shell that puts the payload into its file, and the bytes it takes from the stream for that."""
    if len(payload) > INLINE_BYTES or not _PLAIN.fullmatch(payload):
        return f"head -c {len(payload)} >&3", payload
    escaped = payload.decode("ascii").replace("\\", "\\\\").replace("\n", "\\n")
    return f"printf %b {shlex.quote(escaped)} >&3", b""


def converse(
    stream: Stream, message: Message, spool: Spool, *, timeout_s: float, cancel: Cancel, full: Callable[[], bool]
) -> Ending:
    """Send, and gather the output until the trailer, the end of the stream, the limit, cancel, or `full` (asked
    once a second) saying that the workspace has outgrown its cap.

    Sending and reading overlap: a program may talk before it has read all. Never waits for the end of the stream
    as "done": a background child may hold it.
    """
    start = time.monotonic()
    deadline = start + timeout_s
    look = start + DISK_LOOK_S
    left = memoryview(message.data)
    tail = Tail(message.nonce)

    def ending(why: Literal["end", "timeout", "cancel", "full"]) -> Ending:
        spool.write(tail.rest())
        return Ending(why, _ms_since(start))

    while True:
        now = time.monotonic()
        if cancel.is_set():
            return ending("cancel")
        if now >= deadline:
            return ending("timeout")
        if now >= look:
            if full():
                return ending("full")
            look = time.monotonic() + DISK_LOOK_S
        if left:
            left = left[stream.send(left) :]
        readable, _ = stream.wait(min(CANCEL_LOOK_S, deadline - now), write=bool(left))
        if not readable:
            continue
        spool.write(tail.feed(stream.receive()))
        if tail.found is not None:
            code, kills, refused = (int(word) if word.isdecimal() else None for word in tail.found)
            return Ending("trailer", _ms_since(start), code, kills, refused, no_folder=code is None)
        if stream.ended:
            return ending("end")


class Tail:
    """Finds the trailer in output that is cut anywhere, holding back only what may be its beginning."""

    def __init__(self, nonce: str) -> None:
        self._pattern = re.compile(rb"\n%b (\d+|%b) (\d+|-) (\d+|-)\n" % (nonce.encode(), _NO_FOLDER.encode()))
        self._longest = len(nonce) + 64
        self._held = b""
        self.found: tuple[str, ...] | None = None

    def feed(self, data: bytes) -> bytes:
        """Output that is certainly not of the trailer; after `found` is set, b""."""
        if self.found is not None:
            return b""
        held = self._held + data
        match = self._pattern.search(held)
        if match:
            self.found = tuple(word.decode() for word in match.groups())
            self._held = b""
            return held[: match.start()]
        self._held = held[-self._longest :]
        return held[: len(held) - len(self._held)]

    def rest(self) -> bytes:
        """What is held back, when no trailer will come."""
        held, self._held = self._held, b""
        return held


def _check(command: Command) -> None:
    if command.kind == "shell" and b"\0" in command.payload:
        raise InvalidFault(
            "the command holds a NUL byte, which no shell can run", hint="write such bytes with printf"
        )
    if command.kind == "toolbox" and not _PROGRAM.fullmatch(command.program):
        raise InvalidFault(f"no toolbox program can be called {command.program!r}")
    size = len(command.payload) + len(command.stdin)
    if size > PAYLOAD_BYTES:
        raise InvalidFault(
            f"the command is {size:,} bytes long, {PAYLOAD_BYTES:,} is the most",
            hint="write large content in parts",
        )
    if "\0" in command.cwd:
        raise InvalidFault("the working folder's name holds a NUL byte")
    for name, value in {**command.env, **command.secrets, **command.secret_files}.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise InvalidFault(f"{name!r} cannot be an environment variable")


def _ms_since(start: float) -> int:
    return round((time.monotonic() - start) * 1000)
