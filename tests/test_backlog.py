"""What the scheduler does not show to its plan changes nothing, and costs it nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tick import World

from scheduler import tick
from scheduler.planning.backlog import Backlog, Entry, common, plain
from scheduler.planning.plan import Group, Ring, Seen, Slots, plan
from worker.contract.run import Run
from worker.contract.task import Repo, Task
from worker.store.archive import Archive
from worker.store.hints import Hints

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def task(batch: str, **changes: Any) -> Task:
    asked: dict[str, Any] = {"run": "r", "target": "t", "repo": Repo(url="https://x"), "commands": ("x",)}
    return Task(v=3, batch=batch, **(asked | changes))


TASKS = {batch: task(batch) for batch in "pq"}
entries = st.lists(
    st.builds(
        lambda run, batch, repo, since, wave: Entry(
            run, TASKS[batch], repo and f"{batch}/{repo}", since, "ann", wave
        ),
        st.text("abcdefgh", min_size=1, max_size=3),
        st.sampled_from("pq"),
        st.sampled_from(["", "x", "y", "z"]),
        st.sampled_from("123"),
        st.integers(1, 2),
    ),
    max_size=20,
    unique_by=lambda entry: entry.run,
)
limit = st.none() | st.integers(1, 3)


def seen(entry: Entry) -> Seen:
    return Seen(
        entry.run, "queued", since=entry.since, batch=entry.batch, by=entry.by, repo=entry.repo, wave=entry.wave
    )


@given(entries, st.integers(0, 5), limit, limit)
def test_the_heads_of_queues_are_rung_as_if_all_were_shown(
    waiting: list[Entry], free: int, parallel: int | None, per_repo: int | None
) -> None:
    """With waves and limits: whoever is not among the first could not begin."""
    groups = {batch: Group(parallel=parallel, per_repo=per_repo) for batch in "pq"}
    backlog = Backlog()
    for entry in waiting:
        backlog.add(entry)
    heads = [head for queue in backlog.queues for head in backlog.heads(queue, max(1, free), lambda _: per_repo)]

    def rung(runs: list[Entry]) -> list[str]:
        decisions = plan(NOW, map(seen, runs), {"main": Slots(free, free)}, groups=groups)
        return [one.run for one in decisions if isinstance(one, Ring)]

    assert len(heads) <= 2 * max(1, free)
    assert rung(heads) == rung(waiting)


@given(entries, st.lists(st.integers(0, 30)), st.integers(1, 7))
def test_every_one_has_its_turn_to_be_looked_at(waiting: list[Entry], taken: list[int], most: int) -> None:
    """Also while others leave: in as many rounds as it takes for all."""
    backlog = Backlog()
    for entry in waiting:
        backlog.add(entry)
    for number in taken:
        if number < len(waiting):
            backlog.take(waiting[number].run)
    looked = Counter[str]()
    for _ in range(-(-len(waiting) // most) + 1):
        found = backlog.some(most)
        assert len(found) == len(set(found)) <= most
        looked.update(found)
    assert set(looked) == set(backlog)
    assert sorted(run for batch in backlog.batches for run in backlog.of(batch)) == sorted(backlog)


def test_runs_of_a_batch_share_their_task() -> None:
    """Ten thousand prompts are not kept, and what differs is kept apart."""
    first = common(task("p", prompt="long", target="a"), None)
    assert common(task("p", prompt="other", target="b"), first) is first
    assert common(task("p", weight=3), first) is not first
    assert plain(Run(last_seq=0))
    assert not plain(Run(last_seq=0, parent="forked"))


def test_a_round_asks_redis_for_no_more_runs_than_it_shows(
    archive: Archive, redis_url: str, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that wait, some each time: all of them have their turn, and a cancel of each is found."""
    monkeypatch.setattr(tick, "VISITED", 3)
    world = World(archive, redis_url)
    for number in range(10):
        make_run(f"r{number}")
    world.tick()
    asked: list[int] = []
    held = Hints.held

    def counted(self: Hints, names: Any) -> set[str]:
        wanted = list(names)
        asked.append(len(wanted))
        return held(self, wanted)

    monkeypatch.setattr(Hints, "held", counted)
    world.hints.claim("run:r9", "token", 600)
    for _ in range(4):
        world.tick(0.5)
    assert max(asked) <= 5  # three, the head, and the one that somebody holds
    world.offer(4)
    world.tick(0.5)
    assert "r9" not in [run for run, _ in world.rings]
