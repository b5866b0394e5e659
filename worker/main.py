"""Owns a worker process: reads the settings, opens what an attempt needs, serves its lanes until told to end.
Refuses to know what a run does.

`python -m worker.main [--lanes interactive,batch] [--slots N]`. A main worker starts a solo process beside itself:
concurrency one, for runs whose claimers keep dying, so that a poison run takes nobody with it. The lane `deliver` is
for workers that hold the tokens of forges: `--lanes deliver`, or DAWN_DELIVER beside the main lanes.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from worker.contract.errors import ExitCode, Fault, InvalidFault, NotFoundFault, UsageFault
from worker.contract.events import Replied, Reply, digest
from worker.contract.redact import without_passwords
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.models.held import LOOK_S, Holds
from worker.models.paced import Pacing
from worker.models.prices import Prices, open_prices
from worker.models.processes import Programs
from worker.models.protocol import Model
from worker.spool import Spool
from worker.station import Station
from worker.store.archive import Archive

MAIN_LANES = ("interactive", "batch")
SOLO_LANES = ("solo",)
DELIVER_LANES = ("deliver",)
SECRET_PREFIX = "DAWN_SECRET_"
PR_SET_PDEATHSIG = 1


def main() -> int:
    """The process. Exit code 0 after a drain, a fault's own otherwise."""
    parser = argparse.ArgumentParser(prog="worker")
    parser.add_argument("--lanes")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--parent", type=int, help="end with this process, however it ends")
    options = parser.parse_args()
    if options.parent:
        end_with(options.parent)
    try:
        settings = Settings()
        usual = MAIN_LANES + (DELIVER_LANES if settings.deliver else ())
        lanes = tuple(options.lanes.split(",")) if options.lanes else usual
        slots = 1 if lanes == SOLO_LANES else options.slots or settings.worker_slots
        return serve(settings, lanes, slots)
    except Fault as fault:
        print(f"error: {without_passwords(fault.message)}", file=sys.stderr)
        if fault.hint:
            print(f"hint: {fault.hint}", file=sys.stderr)
        return int(fault.exit_code)


def serve(settings: Settings, lanes: Sequence[str], slots: int) -> int:
    """Consume the lanes until a signal (worker/signals.py says what each asks for)."""
    from worker import tasks
    from worker.janitor import Janitor
    from worker.memory import Notes
    from worker.signals import Signals
    from worker.slots import Slots
    from worker.store import doorbell

    solo = tuple(lanes) == SOLO_LANES
    name = f"{socket.gethostname()}-{os.getpid()}"
    station = open_station(settings, name, "solo" if solo else "main")
    offer = Slots(station.hints, name, tuple(lanes), slots, settings.heartbeat_s)
    app = doorbell.celery_app(str(settings.redis_url))
    tasks.register(app, station, offer)
    doorbell.on_consuming(app, offer.consume)

    janitor = Janitor(
        station.archive,
        station.archive_id,
        station.sandbox,
        settings.janitor_interval_s,
        settings.prepared_images_bytes,
    )
    janitor.start()
    offer.start()
    notes = Notes(settings.state_dir / "workers")
    notes.begin(name)
    with solo_beside() if set(lanes) & set(MAIN_LANES) else nothing_beside() as pass_on:
        doorbell.on_ready(Signals(station, offer, pass_on).listen)
        app.worker_main(doorbell.worker_arguments(name, lanes, slots))
    offer.close()
    janitor.stop()
    notes.end(name)
    return int(ExitCode.OK)


def open_station(settings: Settings, name: str, lane: str) -> Station:
    """Everything an attempt borrows, proven: the archive is create-only, Redis keeps its keys, the engine answers."""
    from worker.before_call import open_hook
    from worker.contract.redact import redactor_from_env
    from worker.memory import Notes
    from worker.models.open import check_rates
    from worker.sandbox.sandbox import DockerSandbox
    from worker.store.archive import open_archive
    from worker.store.hints import Hints
    from worker.store.logs import configure_logs
    from worker.store.pace import Pace

    if settings.redis_url is None:
        raise UsageFault("a worker needs DAWN_REDIS_URL", hint="`dawn up` starts a Redis of its own and sets it")
    check_rates(settings)
    prices = open_prices(settings)
    redactor = redactor_from_env(os.environ)
    configure_logs(mask=redactor.text)
    archive = open_archive(settings.archive_url, settings)
    archive.probe()
    hints = Hints(settings.redis_url)
    hints.check()
    sandbox = DockerSandbox(settings)
    sandbox.image_id("toolbox")  # missing images are this machine's fault, not that of the first run
    env = dict(os.environ)
    secrets = secrets_of(env)
    programs = Programs(settings.model_programs, env)
    holds = Hints(settings.redis_url, socket_timeout_s=LOOK_S)
    atexit.register(programs.close)
    return Station(
        name=name,
        lane=lane,
        settings=settings,
        archive=archive,
        archive_id=archive_id(archive),
        hints=hints,
        sandbox=sandbox,
        redactor=redactor,
        secrets=secrets,
        spool=Spool(settings.spool_bytes),
        open_model=lambda task: _open_model(task, settings, env, archive, programs, holds, Pace(holds), prices),
        prices=prices,
        before_call=open_hook(settings.before_call, settings.before_call_timeout_s),
        how_ended=Notes(settings.state_dir / "workers").how_ended,
    )


def secrets_of(env: Mapping[str, str]) -> dict[str, str]:
    """NAME -> value of what `DAWN_SECRET_<NAME>` gives this process."""
    return {key.removeprefix(SECRET_PREFIX): value for key, value in env.items() if key.startswith(SECRET_PREFIX)}


def archive_id(archive: Archive) -> str:
    """The label that tells this archive's containers from another's: 12 hex digits of its address's digest."""
    return digest(archive.url.encode())[:12]


def _open_model(
    task: Task,
    settings: Settings,
    env: dict[str, str],
    archive: Archive,
    programs: Programs,
    holds: Holds,
    pacing: Pacing,
    prices: Prices,
) -> Model:
    from worker.models.open import open_model
    from worker.store.journal import Journal

    def recorded(run: str) -> list[Reply]:
        try:
            events = [record.event for record, _ in Journal(archive, run).read()]
        except NotFoundFault as fault:
            raise InvalidFault(str(fault)) from fault
        return [event.reply for event in events if isinstance(event, Replied) and event.phase == "model"]

    return open_model(
        task,
        settings,
        secrets_env=env,
        recorded=recorded,
        programs=programs,
        holds=holds,
        pacing=pacing,
        prices=prices,
    )


def solo_beside() -> AbstractContextManager[Callable[[int], None]]:
    """A solo worker that ends with this process; yields what sends it a signal."""
    from worker import signals

    return signals.solo_beside(("-m", "worker.main", "--lanes", ",".join(SOLO_LANES), "--parent", str(os.getpid())))


def end_with(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent's thread that started this process ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise Fault(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit(0)  # it ended before we asked


@contextmanager
def nothing_beside() -> Iterator[Callable[[int], None]]:
    """A worker of other lanes has no solo beside it, and passes no signal on."""
    yield lambda _: None


if __name__ == "__main__":
    sys.exit(main())
