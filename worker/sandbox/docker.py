"""Owns the one door to the container engine: docker-py, its sockets and its exceptions. Refuses to know what a
call, a keeper or a workspace is: it creates what it is given and says how it ended.

One client serves all threads (200 calls by 8 threads: no error). The SDK loads when an Engine is made.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from worker.contract.errors import EngineFault, EnvironmentFault, UsageFault

API_OLDEST: Final = (1, 41)
"""Engine 20.10: the oldest this was measured on."""
REQUEST_TIMEOUT_S: Final = 60
CONNECTIONS: Final = 64
REMOVE_TIMEOUT_S: Final = 30
TRANSFER_TIMEOUT_S: Final = 1800
CHUNK_BYTES: Final = 2**20
ERRORS_BYTES: Final = 4096
RECEIVE_BYTES: Final = 256 * 1024
ENGINE_HINT: Final = "is dockerd running, and may this user open its socket? DAWN_DOCKER_URL names another engine"
NO_SHELL = ("executable file not found", "no such file or directory", "permission denied")


@dataclass(frozen=True)
class State:
    """How a container ended: exit code as the engine saw it, and whether the kernel killed in it for memory."""

    exit_code: int
    oom_killed: bool


class Stream:
    """The attached stdin and output of one container. Not thread-safe.

    Frames are unwrapped here: `receive` gives stdout, `errors` keeps the end of stderr. (They arrive out of order,
    so whoever wants both in order lets the program write one into the other.)
    """

    def __init__(self, response: Any) -> None:
        self._response = response
        self._file = response.raw._fp.fp.raw
        self._socket: socket.socket = getattr(self._file, "_sock", self._file)
        self._socket.settimeout(None)
        self._poll = select.poll()
        self._header = b""
        self._payload_left = 0
        self._is_error = False
        self.errors = b""
        self.ended = False

    def wait(self, timeout_s: float, *, write: bool = False) -> tuple[bool, bool]:
        """(readable, writable) as soon as one of them is, or after timeout_s both False."""
        events = select.POLLIN | (select.POLLOUT if write else 0)
        self._poll.register(self._socket, events)
        ready = self._poll.poll(max(0, int(timeout_s * 1000)))
        seen = ready[0][1] if ready else 0
        return bool(seen & ~select.POLLOUT), bool(seen & select.POLLOUT)

    def send(self, data: memoryview) -> int:
        """Bytes the socket took now, 0 when it is full."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:
            # The far end no longer reads: drop the rest. How it ended is learned by reading, never by writing.
            return len(data)

    def receive(self) -> bytes:
        """Output that has arrived, b"" when there is none yet or `ended` became true. Call when readable."""
        try:
            data = self._socket.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return b""
        return self._unwrap(data)

    def _unwrap(self, data: bytes) -> bytes:
        # A frame is 8 bytes (stream, 0, 0, 0, length) and a payload; reads cut frames anywhere.
        parts: list[bytes] = []
        at = 0
        while at < len(data):
            if self._payload_left:
                part = data[at : at + self._payload_left]
                if self._is_error:
                    self.errors = (self.errors + part)[-ERRORS_BYTES:]
                else:
                    parts.append(part)
                self._payload_left -= len(part)
                at += len(part)
                continue
            missing = 8 - len(self._header)
            self._header += data[at : at + missing]
            at += missing
            if len(self._header) == 8:
                kind, self._payload_left = struct.unpack(">BxxxL", self._header)
                self._is_error = kind == 2
                self._header = b""
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Give both descriptors back. A container created StdinOnce ends when it reads on."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thing in (self._file, self._response):
            with suppress(OSError, ValueError):
                thing.close()


class Telling:
    """What the engine tells of long work, a document a line; the work goes on only while somebody listens."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._socket: socket.socket = response.raw._fp.fp.raw._sock

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        with _door("hear how it goes on"):
            for line in self._response.iter_lines():
                if line:
                    yield json.loads(line)

    def stop(self) -> None:
        """Stop listening, from any thread: the engine then ends the work and what it started."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class Engine:
    """One container engine. Every method raises EngineFault when it does not answer or refuses."""

    def __init__(self, url: str | None) -> None:
        """url: `unix:///path`, `tcp://host:port`, or None for the default socket. Raises UsageFault for others."""
        import docker

        if url is not None and not url.startswith(("unix://", "tcp://")):
            raise UsageFault(
                f"unknown engine address {url!r}", hint="use unix:///path/docker.sock or tcp://host:port"
            )
        with _door("reach the container engine"):
            self._api = docker.APIClient(
                base_url=url or "unix:///var/run/docker.sock",
                version="auto",
                timeout=REQUEST_TIMEOUT_S,
                max_pool_size=CONNECTIONS,
            )
            info = self._api.info()
        version = tuple(int(part) for part in self._api.api_version.split("."))
        if version < API_OLDEST:
            raise EngineFault(
                f"container engine {info.get('ServerVersion')} is too old",
                hint="version 20.10 or newer is needed",
                retryable=False,
            )
        self.id: str = info["ID"]
        self.cpus: int = info["NCPU"]

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        """The id of a new container. body: as the engine's API wants it (shape.py makes it). By its name a container
        is found whose creation was never answered."""
        with _door("create a container", image=str(body["Image"])):
            return str(self._api.create_container_from_config(dict(body), name)["Id"])

    def attach(self, container: str) -> Stream:
        """Its stdin and output, from now on: attach before the start, or the first bytes are lost."""
        with _door("attach to a container"):
            api = self._api
            response = api.post(
                api._url("/containers/{0}/attach", container),
                None,
                params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "logs": 0},
                stream=True,
                headers={"Connection": "Upgrade", "Upgrade": "tcp"},
            )
            api._raise_for_status(response)
            return Stream(response)

    def start(self, container: str, *, image: str) -> None:
        """Raises EnvironmentFault("image") when the image lacks the program it is to run."""
        with _door("start a container", image=image):
            self._api.start(container)

    def kill(self, container: str) -> None:
        """SIGKILL; one that has ended is success."""
        import docker.errors

        with _door("kill a container"):
            try:
                self._api.kill(container)
            except docker.errors.APIError as error:
                if error.status_code not in (404, 409):
                    raise

    def wait(self, container: str, timeout_s: float) -> State:
        """Wait for its end, at most timeout_s, and read how it ended."""
        with _door("wait for a container"):
            self._api.wait(container, timeout=timeout_s)
            state = self._api.inspect_container(container)["State"]
        if state["Running"]:
            raise EngineFault("the engine says that a container ended and that it runs")
        return State(int(state["ExitCode"]), bool(state["OOMKilled"]))

    def remove_container(self, container: str) -> None:
        """Remove it (id or name), alive or not; already gone is success. A removal that races its end answers 409 or
        500."""
        self._remove("container", lambda: self._api.remove_container(container, v=True, force=True))

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        with _door("create a volume"):
            self._api.create_volume(name, labels=dict(labels))

    def remove_volume(self, name: str) -> None:
        """Remove it; already gone is success. While a container that used it is being removed, the answer is 409."""
        self._remove("volume", lambda: self._api.remove_volume(name))

    def _remove(self, what: str, act: Any) -> None:
        import docker.errors

        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        pause_s = 0.02
        while True:
            with _door(f"remove a {what}"):
                try:
                    act()
                    return
                except docker.errors.NotFound:
                    return
                except docker.errors.APIError as error:
                    if error.status_code not in (409, 500) or time.monotonic() > deadline:
                        raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1)

    def image(self, name: str) -> Mapping[str, Any] | None:
        """What the engine knows of an image (`Id`, `Config`, ...), None when it lacks it."""
        import docker.errors

        with _door("look at an image"):
            try:
                return dict(self._api.inspect_image(name))
            except docker.errors.ImageNotFound:
                return None

    def root_bytes(self, container: str) -> int:
        """What the container has written to its own file system, volumes and tmpfs apart."""
        with _door("measure a container"):
            api = self._api
            response = api._get(api._url("/containers/{0}/json", container), params={"size": 1})
            return int(api._result(response, json=True).get("SizeRw") or 0)

    def images(self) -> list[Mapping[str, Any]]:
        """What the engine knows of all its images (`Id`, `ParentId`, `RepoTags`, `Size`, ...)."""
        with _door("list images"):
            return list(self._api.images())

    def save(self, image: str, path: Path) -> None:
        """Write the image as a tar, in pieces of CHUNK_BYTES."""
        with _door("save an image"), open(path, "wb") as file:
            api = self._api
            # Not get_image: its time limit is that of a short request, and the engine packs all before it answers.
            answer = api.get(api._url("/images/{0}/get", image), stream=True, timeout=TRANSFER_TIMEOUT_S)
            with answer:
                api._raise_for_status(answer)
                for chunk in answer.iter_content(CHUNK_BYTES):
                    file.write(chunk)

    def load(self, chunks: Iterable[bytes]) -> None:
        """Take in what `save` wrote. What the chunks raise is raised."""
        with _door("load an image"):
            api = self._api
            answer = api.post(
                api._url("/images/load"), data=iter(chunks), params={"quiet": 1}, timeout=TRANSFER_TIMEOUT_S
            )
            api._raise_for_status(answer)
        for line in answer.text.splitlines():
            if error := json.loads(line).get("error"):
                raise EngineFault(f"the engine refused to load an image: {error}")

    @contextmanager
    def told(self, path: str, options: Mapping[str, Any], timeout_s: float, data: bytes) -> Iterator[Telling]:
        """Ask for long work and hear of it. timeout_s: of the longest silence. Raises EnvironmentFault("image") for
        what cannot be done as asked."""
        with _door(f"begin {path}"):
            api = self._api
            answer = api.post(api._url(path), data=data, params=dict(options), stream=True, timeout=timeout_s)
            if answer.status_code in range(400, 500):
                raise EnvironmentFault("image", str(answer.json()["message"]))
            api._raise_for_status(answer)
        telling = Telling(answer)
        try:
            yield telling
        finally:
            telling.stop()
            answer.close()

    def nameless(self, label: str) -> list[Mapping[str, Any]]:
        """Images with this label (`name` or `name=value`) that have no name, and on which no other is built."""
        with _door("list images"):
            return list(self._api.images(filters={"dangling": True, "label": label}))

    def tag(self, image: str, repository: str, tag: str) -> None:
        with _door("tag an image"):
            self._api.tag(image, repository, tag)

    def remove_image(self, name: str) -> bool:
        """Take a name from an image, with the last one the image goes; False when a container uses it."""
        import docker.errors

        with _door("remove an image"):
            try:
                self._api.remove_image(name)
            except docker.errors.ImageNotFound:
                return True
            except docker.errors.APIError as error:
                if error.status_code != 409:
                    raise
                return False
        return True

    def export(self, container: str) -> Iterator[bytes]:
        """Its file system as a tar, in pieces of CHUNK_BYTES; of what is mounted there, only the folders."""
        with _door("export a container"):
            api = self._api
            answer = api.get(api._url("/containers/{0}/export", container), stream=True, timeout=TRANSFER_TIMEOUT_S)
            with answer:
                api._raise_for_status(answer)
                yield from answer.iter_content(CHUNK_BYTES)

    def commit(self, container: str, tag: str, changes: Sequence[str]) -> str:
        """The image id of the container's filesystem, tagged. changes: Dockerfile instructions for its config."""
        repository, _, version = tag.partition(":")
        with _door("commit an image"):
            answer = self._api.commit(container, repository, version or "latest", pause=False, changes=list(changes))
        return str(answer["Id"])

    def labelled(self, labels: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, str]]]:
        """("container:ID" | "volume:NAME", labels) of everything that carries all these labels."""
        filters = {"label": [f"{name}={value}" for name, value in labels.items()]}
        with _door("list containers and volumes"):
            # One low-level listing each: the high-level one inspects one by one and crashes on what has gone since.
            containers = self._api.containers(all=True, filters=filters)
            volumes = self._api.volumes(filters=filters)["Volumes"] or []
        yield from ((f"container:{entry['Id']}", entry["Labels"] or {}) for entry in containers)
        yield from ((f"volume:{entry['Name']}", entry["Labels"] or {}) for entry in volumes)

    def labels(self, resource: str) -> Mapping[str, str] | None:
        """The labels of `container:ID` or `volume:NAME`, None when it is gone."""
        import docker.errors

        kind, _, name = resource.partition(":")
        with _door(f"look at a {kind}"):
            try:
                if kind == "container":
                    return dict(self._api.inspect_container(name)["Config"]["Labels"] or {})
                return dict(self._api.inspect_volume(name)["Labels"] or {})
            except docker.errors.NotFound:
                return None

    def close(self) -> None:
        self._api.close()


@contextmanager
def _door(act: str, *, image: str = "") -> Iterator[None]:
    """Translate what docker-py, requests and urllib3 raise. image: names the one a create or start is about."""
    import docker.errors
    import requests
    import urllib3

    try:
        yield
    except docker.errors.APIError as error:
        said = str(error.explanation or error)
        if image and (error.status_code == 404 and "image" in said.lower()):
            raise EnvironmentFault(
                "image", f"the engine has no image {image}", hint="pull it, or build ours with `dawn images build`"
            ) from error
        if image and error.status_code in (400, 404) and any(text in said for text in NO_SHELL):
            raise EnvironmentFault(
                "image", f"image {image} cannot run `sh`: {said}", hint="an image needs sh, cat and head"
            ) from error
        hint = "the engine's disk is full" if "no space left" in said else ""
        raise EngineFault(f"the engine refused to {act}: {said}", hint=hint) from error
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise EngineFault(f"could not {act}: {error}", hint=ENGINE_HINT) from error
