"""Owns the workspace of a run on a Docker engine: one volume, its keeper, and a fresh container for every call.
Refuses to know what is run: commands come as they are, results say how they ended."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

from worker.contract.cancel import Cancel
from worker.contract.errors import EngineFault, EnvironmentFault, Fault
from worker.contract.task import Limits
from worker.sandbox import calls, shape
from worker.sandbox.docker import Engine, State
from worker.sandbox.keeper import Keeper
from worker.sandbox.output import Spool
from worker.sandbox.pool import Box, Kind, Places, Pool
from worker.sandbox.protocol import Command, Judge, Output, Owner, Result, Snapshot, WorkspaceTooLarge
from worker.sandbox.shape import MIB

END_TIMEOUT_S: Final = 30
"""How long the engine may take to report the end of a container that has ended or was killed (measured: 35 ms and
110 ms; 16 s where its containerd died meanwhile and was started again)."""
HEAD_START_S: Final = 0.01
"""For so long the threads that end a call's container and park the next leave the interpreter to the caller, who is
showing the result (measured: 1.4 ms less for each call). Whoever waits for them ends it."""
KEEPER_ENTRYPOINT: Final = ("python3", "-I", "/opt/dawnfleet/keeper.py")
DISK_ALARM: Final = 0.25
ENGINE_DECIDES: Final = 126
"""From this exit code on the shell only relays how a program ended: the engine is asked too."""


class DockerWorkspace:
    """Implements Workspace. `open` it before, `close` it after (DockerSandbox.workspace does both)."""

    def __init__(
        self,
        engine: Engine,
        threads: ThreadPoolExecutor,
        places: Places,
        spool: Path,
        *,
        owner: Owner,
        image: str,
        toolbox: str,
        limits: Limits,
        ca_bundle: bytes,
        image_volumes: Sequence[str] = (),
    ) -> None:
        """image_volumes: paths that the image declares as volumes."""
        self._engine = engine
        self._threads = threads
        self._spool = spool
        self._owner = owner
        self._image = image
        self._toolbox = toolbox
        self._limits = limits
        self._ca_bundle = ca_bundle
        self._names = count()
        self._containers = count()
        self._volume = f"dawnfleet-{owner.run}-{owner.claim}-{owner.role}-{secrets.token_hex(4)}"
        self._image_volumes = {path: f"{self._volume}-image-{number}" for number, path in enumerate(image_volumes)}
        self._keeper_box: Box | None = None
        self._keeper: Keeper
        self._free_bytes = 0
        self._pool = Pool(engine, threads, places, self._make)
        self._ending: Future[State] | None = None
        self._hurry = threading.Event()
        self._hurry.set()

    def open(self) -> None:
        """Make the volume and its keeper. Whatever fails, `close` removes what was made."""
        for volume in self._volumes():
            self._engine.create_volume(volume, shape.labels(self._owner))
        body = shape.keeper(self._owner, self._toolbox, self._volume, entrypoint=KEEPER_ENTRYPOINT)
        self._keeper_box = self._start(body)
        # Its interpreter needs a quarter of a second: the first call's container is made meanwhile.
        self.expect("shell", writes=True)
        self._keeper = Keeper(self._keeper_box.stream)
        self._keeper.hello(self._limits)
        self._free_bytes = self._keeper.free_bytes()

    def prove(self, image: str) -> None:
        """Run nothing, to learn whether the image can run anything. Raises EnvironmentFault("image")."""
        result = self.run(Command(b":", cwd="/", timeout_s=60), cancel=Cancel())
        if (result.status, result.exit_code) != ("ok", 0):
            raise EnvironmentFault(
                "image", f"image {image} cannot run a shell script", hint="an image needs sh, cat and head"
            )

    def close(self) -> None:
        """Remove every container and the volume. Raises EngineFault when something may be left."""
        faults: list[Fault] = []
        for step in (self._settle, self._pool.close, self._close_keeper, self._remove_volumes):
            try:
                step()
            except Fault as fault:
                faults.append(fault)
        if faults:
            raise faults[-1]

    def run(self, command: Command, *, cancel: Cancel) -> Result:
        message = calls.compose(command, ca_bundle=self._ca_bundle if command.network else b"")
        # The call before shares the volume: its last processes must be gone.
        self._settle()
        kind = Kind(command.kind, command.writes)
        box = self._outside(command) if command.outside else self._take(kind)
        result = self._converse(box, message, command, cancel)
        if not command.outside:
            self._pool.expect(kind)
        return result

    def expect(self, kind: Literal["shell", "toolbox"], *, writes: bool) -> None:
        self._pool.expect(Kind(kind, writes))

    def snapshot(self, *, full: bool = False) -> Snapshot:
        self._settle()
        return self._keeper.snapshot(self._path("tar"), full=full)

    def restore(self, chain: Sequence[Iterable[bytes]]) -> Snapshot:
        self._settle()
        return self._keeper.restore(chain)

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        self._settle()
        self._keeper.put(name, chunks)

    def get(self, name: str) -> Iterator[bytes]:
        self._settle()
        return self._keeper.get(name)

    def own(self) -> None:
        self._settle()
        self._keeper.own()

    def tree(self) -> list[tuple[str, str, str]]:
        self._settle()
        return self._keeper.tree()

    def ignored(self) -> list[str]:
        self._settle()
        return self._keeper.ignored()

    def commit_image(
        self, command: Command, *, tag: str, cancel: Cancel, judge: Judge | None = None
    ) -> tuple[Result, str]:
        message = calls.compose(command, ca_bundle=self._ca_bundle)
        self._settle()
        body = shape.setup(
            self._owner,
            self._image,
            self._volume,
            self._limits,
            entrypoint=calls.ENTRYPOINT,
            image_volumes=self._image_volumes,
            cpus=self._engine.cpus,
            secrets=bool(command.secret_files),
        )
        box = self._start(body)
        try:
            result = self._converse(box, message, command, cancel, keep=True)
            self._settle()
            if (result.status, result.exit_code) != ("ok", 0):
                return result, ""
            if self._root_full(box.container):
                return replace(result, status="error", exit_code=None, detail=self._outgrown()), ""
            if judge is not None:
                judge(self._engine.export(box.container))
            return result, self._engine.commit(box.container, tag, shape.image_changes())
        finally:
            self._pool.remove(box)

    def _converse(
        self, box: Box, message: calls.Message, command: Command, cancel: Cancel, *, keep: bool = False
    ) -> Result:
        """Run the call in the box and start its removal (unless `keep`)."""
        spool = Spool(self._path("out"), self._limits.output_kept_bytes)
        full = partial(self._full, box.container if keep else None)
        try:
            ending = calls.converse(box.stream, message, spool, timeout_s=command.timeout_s, cancel=cancel, full=full)
            if ending.why in ("timeout", "cancel", "full"):
                self._engine.kill(box.container)
        except BaseException:
            self._pool.remove(box)
            spool.close()
            raise
        output = spool.close()
        self._hurry.clear()
        self._ending = self._threads.submit(self._end, box, keep)
        return self._result(ending, output, command, cancel)

    def _result(self, ending: calls.Ending, output: Output, command: Command, cancel: Cancel) -> Result:
        def result(status: Literal["ok", "error", "timeout", "oom", "interrupted"], detail: str = "") -> Result:
            return Result(
                status, ending.exit_code, output, ending.duration_ms, detail, cancelled=ending.why == "cancel"
            )

        if ending.no_folder:
            return result("error", f"the folder {command.cwd} does not exist")
        if ending.why == "trailer":
            assert ending.exit_code is not None
            state = self._settle() if command.proven or ending.exit_code >= ENGINE_DECIDES else None
            if command.proven and state is not None:
                # They agree, unless the call forged its own or the engine lost count: green only where both say so.
                ending = replace(ending, exit_code=state.exit_code or ending.exit_code)
            killed = bool(ending.oom_kills) or (state is not None and state.oom_killed)
            if killed and ending.exit_code:
                return result("oom", self._out_of_memory())
            notes = [self._out_of_memory()] if killed else []
            if ending.refused_pids:
                notes.append(f"the limit of {self._limits.pids} processes refused some")
            return result("ok", "; ".join(notes))
        state = self._settle()
        if ending.why == "timeout":
            return result("timeout", f"the time limit of {command.timeout_s:g} s was reached")
        if ending.why == "cancel":
            return result("interrupted", cancel.reason)
        if ending.why == "full":
            return result("error", self._outgrown())
        # The stream ended without a trailer. If the keeper is gone too, it was the engine and not the command.
        self._keeper.ping()
        assert state is not None
        if state.oom_killed:
            return result("oom", self._out_of_memory())
        return result("error", f"the call was killed before it could say how it ended (exit code {state.exit_code})")

    def _full(self, container: str | None) -> bool:
        """Whether the volume is over its cap, or the root of that container, which may write it. Neither has a quota,
        so this is watched while a call runs; they are measured only when the disk, which they share, has lost a good
        part of the cap."""
        free = self._keeper.free_bytes()
        if self._free_bytes - free < self._limits.workspace_bytes * DISK_ALARM:
            return False
        self._free_bytes = free
        if container is not None and self._root_full(container):
            return True
        try:
            return self._keeper.used_bytes() > self._limits.workspace_bytes
        except WorkspaceTooLarge:
            return True

    def _root_full(self, container: str) -> bool:
        return self._engine.root_bytes(container) > self._limits.workspace_bytes

    def _outgrown(self) -> str:
        return f"the workspace outgrew its limit of {self._limits.workspace_bytes / MIB:g} MiB"

    def _out_of_memory(self) -> str:
        return f"out of memory: the limit is {self._limits.memory_bytes / MIB:g} MiB, /tmp included"

    def _take(self, kind: Kind) -> Box:
        try:
            return self._pool.take(kind)
        except EngineFault:
            # No container can join a dead keeper's namespace: then say that, it is another reason.
            self._keeper.ping()
            raise

    def _make(self, kind: Kind) -> Box:
        assert self._keeper_box is not None
        self._hurry.wait(HEAD_START_S)
        network = f"container:{self._keeper_box.container}"
        return self._start(self._body(kind, network=network, root=False))

    def _outside(self, command: Command) -> Box:
        kind = Kind(command.kind, command.writes)
        network = "bridge" if command.network else "none"
        return self._start(self._body(kind, network=network, root=command.root, secrets=bool(command.secret_files)))

    def _body(self, kind: Kind, *, network: str, root: bool, secrets: bool = False) -> Mapping[str, Any]:
        return shape.call(
            self._owner,
            self._image if kind.kind == "shell" else self._toolbox,
            self._volume,
            self._limits,
            entrypoint=calls.ENTRYPOINT,
            image_volumes=self._image_volumes if kind.kind == "shell" else {},
            network=network,
            writes=kind.writes,
            root=root,
            cpus=self._engine.cpus,
            secrets=secrets,
        )

    def _start(self, body: Mapping[str, Any]) -> Box:
        """Create, attach, start; on any error nothing is left, also of a creation whose answer was lost."""
        name, box = f"{self._volume}-{next(self._containers)}", None
        try:
            container = self._engine.create(name, body)
            box = Box(container, self._engine.attach(container))
            self._engine.start(container, image=str(body["Image"]))
        except BaseException:
            if box is not None:
                box.stream.close()
            with suppress(Fault):
                self._engine.remove_container(name)
            raise
        return box

    def _end(self, box: Box, keep: bool) -> State:
        """Wait for the engine to say that the container ended, then let it be removed."""
        self._hurry.wait(HEAD_START_S)
        try:
            return self._engine.wait(box.container, END_TIMEOUT_S)
        finally:
            if not keep:
                self._pool.remove(box)

    def _settle(self) -> State | None:
        """Wait until nothing of the last call runs; how its container ended. None when that was asked before."""
        self._hurry.set()
        ending, self._ending = self._ending, None
        return None if ending is None else ending.result()

    def _close_keeper(self) -> None:
        if self._keeper_box is not None:
            self._keeper_box.stream.close()
            self._engine.remove_container(self._keeper_box.container)

    def _volumes(self) -> list[str]:
        return [self._volume, *self._image_volumes.values()]

    def _remove_volumes(self) -> None:
        for volume in self._volumes():
            self._engine.remove_volume(volume)

    def _path(self, suffix: str) -> Path:
        return self._spool / f"{next(self._names)}.{suffix}"
