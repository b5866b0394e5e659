"""From a sealed run's patch to its pull request, exactly once, whoever dies where and whatever people did."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from delivering import TOKEN, ModelRemote, Remote, World, git_remote
from forge_servers import ForgeServer, forge_of
from repositories import git

from worker.contract.delivered import Delivery
from worker.contract.errors import ForgeFault
from worker.contract.events import digest
from worker.forges.protocol import PullRequest, marks_of
from worker.store import keys
from worker.store.deliveries import mark, marks, write_delivery
from worker.store.inbox import Control


@pytest.fixture(params=["git", "model"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Remote]:
    """A real repository behind git's http-backend, and the double that the crash tests use."""
    if request.param == "model":
        yield ModelRemote()
        return
    with git_remote(tmp_path) as served:
        yield served


@pytest.fixture
def world(tmp_path: Path, remote: Remote) -> World:
    """Empty."""
    return World(tmp_path, remote)


@pytest.fixture
def model(tmp_path: Path) -> World:
    """One whose remote is the double."""
    return World(tmp_path, ModelRemote())


def only(world: World) -> PullRequest:
    (found,) = world.forge.rows
    return found


def test_a_patch_becomes_one_pull_request(world: World) -> None:
    """A branch with one commit on the start, a pull request of it, and each act on record before and after."""
    world.sealed(labels=("bot",))
    assert world.deliver() == "delivered"
    pull = only(world)
    assert (pull.state, pull.marks["run"]) == ("pr", "hello-1")
    assert world.acts() == ["push intent", "push done", "open intent", "open done"]
    fold = world.fold()
    assert (fold.state, fold.url, world.remote.tips()[pull.branch]) == ("pr", pull.url, fold.commit)
    assert world.forge.furnished == [1]
    assert world.deliver() == "nothing"
    assert world.yard.left == {}


def test_the_commit_says_where_it_is_from(tmp_path: Path) -> None:
    """Its tree is the patch on the start, and its message ends with trailers."""
    with git_remote(tmp_path) as served:
        world = World(tmp_path, served)
        run = world.sealed(kind="branch")
        assert world.deliver() == "delivered"
        commit = world.fold().commit
        assert git(served.bare, "show", f"{commit}:f.txt") == "one\nzwei"
        assert git(served.bare, "rev-parse", f"{commit}^") == served.start
        assert git(served.bare, "log", "-1", "--format=%s|%an|%(trailers:key=Dawnfleet-Run,valueonly)", commit) == (
            "Say two|Dawnfleet|hello-1"
        )
        assert run.sealed is not None
        assert run.sealed.artifacts["patch.diff"] in git(served.bare, "log", "-1", "--format=%B", commit)


def test_a_branch_alone_asks_no_forge(world: World) -> None:
    """It is pushed, and that is all."""
    world.sealed(kind="branch")
    assert world.deliver() == "delivered"
    assert (world.fold().state, world.forge.rows) == ("branch", [])


def test_a_commit_of_a_person_is_never_pushed_over(world: World) -> None:
    """A branch of that name that we did not make: an error that names them, and nothing is overwritten."""
    world.sealed()
    world.deliver()
    branch = only(world).branch
    world.remote.delete(branch)
    theirs = world.remote.person_pushes(branch, on="main")
    world.forge.rows.clear()
    write_delivery(world.archive, "hello-1", asked(world))
    assert world.deliver() == "failed"
    assert world.remote.tips()[branch] == theirs
    assert (world.fold().state, "ann@example.org" in world.fold().detail) == ("error", True)


def asked(world: World, run: str = "hello-1") -> Delivery:
    """A person wants it now."""
    return Delivery(n=world.fold(run).seen, act="asked", by="ann", at="2026-11-30T03:00:00Z", patch=digest(b""))


def test_who_goes_on_from_our_commit_keeps_it(world: World) -> None:
    """A person has pushed to the branch of our pull request: it stays as it is."""
    world.sealed()
    world.deliver()
    theirs = world.remote.person_pushes(only(world).branch)
    write_delivery(world.archive, "hello-1", asked(world))
    assert world.deliver() == "delivered"
    assert world.remote.tips()[only(world).branch] == theirs
    assert (world.fold().state, world.acts()[-1]) == ("pr", "saw done")


def test_a_retry_updates_the_pull_request_of_its_target(world: World) -> None:
    """Its commit takes the place of the earlier run's, and the words are its own."""
    world.sealed()
    world.deliver()
    first = world.fold().commit
    world.sealed("hello-2", "one\ndrei\n", ordinal=1)
    assert world.deliver("hello-2") == "delivered"
    pull, fold = only(world), world.fold("hello-2")
    assert (pull.marks["run"], fold.number, world.remote.tips()[pull.branch]) == ("hello-2", 1, fold.commit)
    assert fold.commit != first
    assert world.acts("hello-2") == ["push intent", "push done", "update intent", "update done"]


def test_a_retry_does_not_push_over_a_person(world: World) -> None:
    """Who has gone on from the earlier run's commit keeps theirs."""
    world.sealed()
    world.deliver()
    theirs = world.remote.person_pushes(only(world).branch)
    world.sealed("hello-2", "one\ndrei\n", ordinal=1)
    assert world.deliver("hello-2") == "failed"
    assert world.remote.tips()[only(world).branch] == theirs


def test_what_the_base_has_already_is_not_delivered(world: World) -> None:
    """Somebody brought the same change to main: nothing is pushed, and it counts as merged."""
    world.sealed()
    world.remote.land(world.remote.patch("one\nzwei\n"))
    assert world.deliver() == "delivered"
    assert (world.fold().state, world.forge.rows, list(world.remote.tips())) == ("merged", [], ["main"])


def test_a_token_that_opens_nothing_is_an_error(world: World) -> None:
    """It is said, without the token, and nothing is tried again by itself."""
    world.sealed()
    assert world.deliver(token="wrong-token-of-somebody") == "failed"
    fold = world.fold()
    assert (fold.state, fold.ends("pr")) == ("error", True)
    assert "wrong-token" not in fold.detail


@pytest.mark.parametrize("state", ["closed", "merged"])
def test_what_a_person_has_closed_is_not_opened_again(model: World, state: str) -> None:
    """The branch may be gone: the pull request is found, and that is how it ended. Asked once more, a closed one is
    opened anew; a merged one is not."""
    model.sealed()
    model.dies("create deliveries 4 before")
    model.forge.become(1, state)
    model.remote.delete(only(model).branch)
    assert model.deliver() == "delivered"
    assert (model.fold().state, len(model.forge.rows)) == (state, 1)
    write_delivery(model.archive, "hello-1", asked(model))
    assert model.deliver() == "delivered"
    assert (model.fold().state, len(model.forge.rows)) == (("pr", 2) if state == "closed" else ("merged", 1))


def test_the_same_patch_of_another_batch_is_not_opened_twice(model: World) -> None:
    """It is found among our open ones, whatever its branch is called."""
    model.sealed()
    model.deliver()
    model.sealed("hello-9", batch="night-2")
    assert model.deliver("hello-9") == "delivered"
    assert (model.fold("hello-9").url, len(model.forge.rows)) == (only(model).url, 1)
    assert len(model.remote.tips()) == 2


def test_a_repository_has_no_more_open_than_may_be(model: World) -> None:
    """The next one is held, and goes when one was closed."""
    model.sealed(open_per_repo=1)
    model.deliver()
    model.sealed("hello-9", "one\ndrei\n", batch="night-2", open_per_repo=1)
    assert model.deliver("hello-9") == "held"
    assert (model.acts("hello-9"), len(model.remote.tips())) == ([], 2)
    model.forge.become(1, "merged")
    assert model.deliver("hello-9") == "delivered"
    assert len(model.forge.rows) == 2


def test_what_the_forge_asks_to_wait_holds_all_of_its_token(model: World) -> None:
    """And a forge that is away holds this run only; nothing is written of either."""
    model.sealed()
    model.forge.faults.append(ForgeFault("limit", "slow down", retryable=True, retry_after_s=70))
    assert model.deliver() == "later"
    assert model.hints.held_s("forge:FORGE") == 70
    model.forge.faults.append(ForgeFault("connection", "away", retryable=True))
    assert model.deliver() == "later"
    assert (model.hints.held_s("deliver:hello-1"), model.acts()) == (120, [])
    assert model.deliver() == "delivered"


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        ({"verdict": "broke"}, "nothing"),
        ({"when": "approved"}, "nothing"),
        ({"when": "changed", "verdict": "broke"}, "delivered"),
    ],
)
def test_a_doorbell_is_not_believed(model: World, words: dict[str, str], ends: str) -> None:
    """Whether it may be delivered is read from the archive."""
    model.sealed(**words)
    assert model.deliver() == ends
    assert model.deliver("nobody") == "nothing"


def test_a_cancelled_batch_delivers_nothing(model: World) -> None:
    """What is on its way is ended, in whatever container it is; what a person asks for afterwards is delivered."""
    model.sealed()
    Control(model.archive, "night-1").put("cancel", by="ann", at="2026-11-30T03:00:00Z")
    model.hints.poke("batch:night-1", 1)
    model.doors.slow = True
    assert model.deliver() == "cancelled"
    assert (model.acts(), model.forge.rows, model.yard.left) == ([], [], {})
    write_delivery(model.archive, "hello-1", asked(model))
    model.doors.slow = False
    assert model.deliver() == "delivered"


def test_a_second_deliverer_stops(model: World) -> None:
    """The lease is somebody's; and who lost it and goes on meets a number that is taken."""
    model.sealed()
    model.hints.claim("deliver:hello-1", "somebody", 45)
    assert model.deliver() == "lost"
    model.hints.drop_lease("deliver:hello-1")
    before = model.remote.program

    def overtaken(folder: Path, request: dict[str, object], token: str) -> dict[str, object]:
        if request["op"] == "build":
            write_delivery(model.archive, "hello-1", asked(model))
        return before(folder, request, token)

    model.remote.program = overtaken  # type: ignore[method-assign]
    assert model.deliver() == "lost"
    assert (model.forge.rows, list(model.remote.tips())) == ([], ["main"])


def test_marks_of_an_hour_pace_it(model: World) -> None:
    """A delivery counts from its first act on; one that did nothing does not, and what is older neither."""
    model.sealed()
    model.deliver()
    now = datetime.fromisoformat("2026-11-30T02:30:00+00:00")
    (found,) = marks(model.archive, now)
    assert (found.run, found.token) == ("hello-1", "FORGE")
    assert marks(model.archive, now + timedelta(minutes=31)) == []
    mark(model.archive, "x", "", "2026-11-30T02:29:00+02:00")
    model.archive.overwrite("pushed/2026-11-30T02/nonsense", b"")
    assert len(marks(model.archive, now)) == 1


def points(folder: Path, remote: Remote, labels: tuple[str, ...] = ("bot",)) -> list[str]:
    """Every point of a delivery that goes through."""
    world = World(folder, remote)
    world.sealed(labels=labels)
    world.doors.passed.clear()
    assert world.deliver() == "delivered"
    return list(world.doors.passed)


def crashed(folder: Path, *deaths: str) -> None:
    """A delivery whose workers die at these points, one after the other, is ended by the next."""
    world = World(folder, ModelRemote())
    world.sealed(labels=("bot",))
    assert world.dies(deaths[0])
    for point in deaths[1:]:
        world.dies(point)
    assert world.deliver() in ("delivered", "nothing"), deaths
    pull, fold = only(world), world.fold()
    assert (fold.state, fold.number, fold.ends("pr")) == ("pr", 1, True), deaths
    assert world.remote.tips() == {"main": world.remote.start, pull.branch: fold.commit}
    assert world.forge.furnished, deaths
    assert world.yard.left == {}


def test_a_crash_at_every_point_opens_exactly_one(tmp_path: Path) -> None:
    """Whoever dies before or after any write and any act on forge or remote, the next one ends it: one pull request
    and one commit on one branch, on a forge that would take a second."""
    everywhere = points(tmp_path, ModelRemote())
    assert len(everywhere) >= 18
    for point in everywhere:
        crashed(tmp_path, point)


@pytest.mark.full
def test_two_crashes_at_any_points_open_exactly_one(tmp_path: Path) -> None:
    """Also where the next one dies, too."""
    everywhere = points(tmp_path, ModelRemote())
    for first in everywhere:
        for second in (point for point in everywhere if point.endswith("after")):
            crashed(tmp_path, first, second)


def test_a_crash_at_every_point_of_an_update_updates_the_one(tmp_path: Path) -> None:
    """The retry's commit and words end on the pull request of its target."""
    everywhere: list[str] = [""]
    while everywhere:
        point = everywhere.pop()
        world = World(tmp_path, ModelRemote())
        world.sealed()
        world.deliver()
        world.sealed("hello-2", "one\ndrei\n", ordinal=1)
        if point:
            assert world.dies(point, "hello-2")
        else:
            world.doors.passed.clear()
        world.deliver("hello-2")
        if not point:
            everywhere = list(world.doors.passed)
            assert any(name.startswith("forge update") for name in everywhere)
        pull, fold = only(world), world.fold("hello-2")
        assert (pull.marks["run"], fold.state, fold.number) == ("hello-2", "pr", 1), point
        assert world.remote.tips()[pull.branch] == fold.commit


@pytest.mark.full
def test_a_crash_at_every_point_with_real_git(tmp_path: Path) -> None:
    """The same once each, over git's own http-backend."""
    with git_remote(tmp_path) as served:
        everywhere = points(tmp_path, served)
        for number, point in enumerate(everywhere):
            world = World(tmp_path, served)
            name = f"hello-{number}"
            world.sealed(name, batch=f"night-{number}x", labels=("bot",))
            assert world.dies(point, name)
            assert world.deliver(name) in ("delivered", "nothing"), point
            pull, fold = only(world), world.fold(name)
            assert (fold.state, served.tips()[pull.branch]) == ("pr", fold.commit), point


@pytest.mark.full
def test_a_crash_at_every_point_on_a_forge_of_somebody_elses(tmp_path: Path, forge_server: ForgeServer) -> None:
    """GitHub by npm's emulate and the small GitLab, through the real adapters, with real git: opened once, and by a
    retry updated, whoever dies at any point of either."""
    with git_remote(tmp_path) as served:
        whole = World(tmp_path, served, forge_of(forge_server))
        whole.sealed("hello-x", batch="night-x", labels=("bot",), open_per_repo=100)
        whole.doors.passed.clear()
        assert whole.deliver("hello-x") == "delivered"
        first = list(whole.doors.passed)
        whole.sealed("hello-y", "one\ndrei\n", batch="night-x", ordinal=1, labels=("bot",), open_per_repo=100)
        whole.doors.passed.clear()
        assert whole.deliver("hello-y") == "delivered"
        second = list(whole.doors.passed)
        assert any(point.startswith("forge update") for point in second)
        for number in range(max(len(first), len(second))):
            world = World(tmp_path, served, forge_of(forge_server))
            batch, words = f"night-{number}", {"labels": ("bot",), "open_per_repo": 100}
            texts = (f"one\n{number}\n", f"one\nnot {number}\n")
            for ordinal, (points, text) in enumerate(zip((first, second), texts, strict=True)):
                run = f"hello-{number}-{ordinal}"
                world.sealed(run, text, batch=batch, ordinal=ordinal, **words)
                world.dies(points[min(number, len(points) - 1)], run)
                assert world.deliver(run) in ("delivered", "nothing"), points[min(number, len(points) - 1)]
                came = world.fold(run)
                (pull,) = [one for one in forge_server.pulls() if one["branch"] == came.branch]
                assert (came.state, came.number, pull["labels"]) == ("pr", pull["number"], ["bot"])
                assert marks_of(pull["body"])["run"] == run
                assert served.tips()[came.branch] == came.commit


def test_no_secret_is_stored(world: World) -> None:
    """The token is in no object of the archive."""
    world.sealed()
    world.deliver()
    held = b"".join(world.archive.get(key) for key in world.archive.list(""))
    assert TOKEN.encode() not in held
    assert keys.delivery("hello-1", 0) in list(world.archive.list(""))
