"""Owns the Celery app and the doorbells, messages that say only a run's id. Refuses to carry work or results:
a lost doorbell is rung again, a doubled one finds the lease taken. The one door to Celery and kombu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from celery import Celery, bootsteps, signals
from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import KombuError

from worker.contract.errors import HintsFault
from worker.store.hints import is_socket, redis_faults, socket_db

TASK: Final = "dawnfleet.run"
DELIVER: Final = "dawnfleet.deliver"
"""Names of the two tasks; worker/tasks.py registers them. The only argument of either is run_id."""

LANES: Final = ("interactive", "batch", "solo", "deliver")

VISIBILITY_TIMEOUT_S: Final = 60
"""After this a doorbell popped by a worker that died before taking it is queued again. Longer or shorter changes
nothing but how often a doorbell is doubled: the scheduler rings again by itself."""

SOCKET_TIMEOUT_S: Final = 10
HEALTH_CHECK_S: Final = 5
"""A connection that died without a word is noticed within four times this (measured: 20 s)."""

EX_OK: Final = 0
"""How an ordered end is called by Celery."""

RETRY_MAX_S: Final = 5
"""Longest pause between two tries to reach Redis again: it is consumed again within this time of its return."""


class _Connection(Connection):
    """A broker connection whose retries stay close together, so that a long outage is not followed by a long wait."""

    def ensure_connection(self, errback: Any = None, max_retries: int | None = None, **options: Any) -> Any:
        paces = {"interval_start": 1, "interval_step": 1, "interval_max": RETRY_MAX_S}
        return super().ensure_connection(errback, max_retries, **(paces | options))  # type: ignore[no-untyped-call]


class _AMQP(AMQP):  # type: ignore[misc]
    Connection = _Connection


def celery_app(redis_url: str, *, visibility_timeout_s: int = VISIBILITY_TIMEOUT_S) -> Celery:
    """A Celery app on that Redis (addresses as in Hints); connects at the first message.

    It leaves four queues and two binding sets in Redis, none of which grows with runs.
    """
    signals.setup_logging.connect(_leave_logs_alone)
    app = Celery("dawnfleet", amqp=_AMQP, set_as_current=False)
    exchange = Exchange("dawnfleet", type="direct")  # type: ignore[no-untyped-call]
    app.conf.update(
        broker_url=_broker_url(redis_url),
        broker_transport_options={
            "visibility_timeout": visibility_timeout_s,
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": SOCKET_TIMEOUT_S,
            "socket_keepalive": True,
            "health_check_interval": HEALTH_CHECK_S,
        },
        broker_connection_timeout=SOCKET_TIMEOUT_S,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,  # a Redis that answers with an error (loading, full) is tried again too
        accept_content=["json"],
        task_serializer="json",
        task_protocol=2,
        task_ignore_result=True,
        task_acks_late=False,
        task_queues=[Queue(lane, exchange, routing_key=lane) for lane in LANES],  # type: ignore[no-untyped-call]
        task_default_queue="batch",
        task_create_missing_queues=False,
        task_publish_retry_policy={
            "max_retries": 2,
            "interval_start": 0.1,
            "interval_step": 0.2,
            "interval_max": 0.5,
        },
        worker_disable_prefetch=True,
        worker_prefetch_multiplier=0,  # it would count messages whose acknowledgement failed as taken, for ever
        worker_enable_prefetch_count_reduction=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_redirect_stdouts=False,
    )
    return app


def worker_arguments(name: str, lanes: Iterable[str], slots: int) -> list[str]:
    """Arguments for `app.worker_main`: a thread pool of `slots` that consumes `lanes` and gossips with nobody."""
    return [
        "--quiet",
        "worker",
        f"--hostname={name}",
        f"--queues={','.join(lanes)}",
        "--pool=threads",
        f"--concurrency={slots}",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
        "--loglevel=WARNING",
    ]


def on_consuming(app: Celery, act: Callable[[bool], None]) -> None:
    """Call act with True whenever a worker of this app begins to take doorbells, and with False when it cannot any
    more: its connection is lost, or it ends."""

    class Consuming(bootsteps.StartStopStep):  # type: ignore[misc]
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def start(self, consumer: Any) -> None:
            act(True)

        def stop(self, consumer: Any) -> None:
            act(False)

    app.steps["consumer"].add(Consuming)


def on_ready(act: Callable[[], None]) -> None:
    """Call act in the main thread when this worker begins to consume, and when it does so again: by then Celery has
    taken the process's signals."""
    signals.worker_ready.connect(lambda **_: act(), weak=False)


def stop_consuming() -> None:
    """Let this process's worker end when the runs that it has begun have ended. May be called in any thread."""
    from celery.worker import state

    state.should_stop = EX_OK


def ring(app: Celery, run: str, lane: str) -> None:
    """Put a doorbell for the run, in the lane `deliver` for its delivery, into a lane. Raises HintsFault when Redis
    cannot be reached or is full."""
    try:
        with redis_faults():
            app.send_task(DELIVER if lane == "deliver" else TASK, kwargs={"run_id": run}, queue=lane)
    except KombuError as error:
        raise HintsFault(f"no doorbell could be rung: {error}", hint="is Redis running?") from error


def _leave_logs_alone(**_: Any) -> None:
    """Celery sets up logging of its own unless this signal has a receiver; ours is logs.py."""


def _broker_url(url: str) -> str:
    """The address as Celery spells it: redis-py's `unix:///path?db=1` is `redis+socket:///path?virtual_host=1`."""
    if not is_socket(url):
        return url
    return f"redis+socket://{urlsplit(url).path}?virtual_host={socket_db(url)}"
