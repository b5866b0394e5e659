"""The command `dawn` on a real archive: what it prints where, and its exit codes. No engine is needed."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog
from conftest import Server, program
from runs_made import AT, claimed, ended, replied

from scheduler.cli import checkup
from scheduler.cli.main import run as dawn
from scheduler.cli.terminal import plain
from scheduler.manifests.reading import parse
from worker.contract.errors import ExitCode
from worker.contract.events import (
    CheckResult,
    Failure,
    Observation,
    Observed,
    Parked,
    PatchStat,
    PlanItem,
    Sealed,
    Verdict,
)
from worker.contract.run import Run, exit_code
from worker.contract.task import Limits
from worker.store import keys
from worker.store.archive import Archive
from worker.store.inbox import Inbox
from worker.store.journal import Journal
from worker.store.members import members

Make = Callable[..., Run]

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\x9b6n\x90q\x1bc\r\x7f\u202e"
MANIFEST = "version: 1\nname: night\ntargets: [{repo: %s}]\ntask: {commands: [fix]}\n"

pytestmark = pytest.mark.usefixtures("without_stack")


@pytest.fixture
def sealed_run(make_run: Make, archive: Archive) -> str:
    """A run that ended as changed/verified, with a patch, and hostile bytes wherever a repository may put some."""
    name = "cart-0123456789ab"
    make_run(name)
    patch = Journal(archive, name).put_blob(b"--- a/x\n+++ b/x\n+\x1b[2J\n")
    check = CheckResult(name="tests", status="green", exit_code=0)
    make_run(
        name,
        claimed(),
        replied(1, text=HOSTILE, command="ls"),
        Observed(
            observation=Observation(call_id="c1", tool="run_command", status="ok", exit_code=0, output=HOSTILE),
            plan=(PlanItem(text="look", status="done"),),
        ),
        Verdict(
            verdict="verified",
            checks=(check,),
            baseline=(check.model_copy(update={"status": "red"}),),
            patch=PatchStat(files={f"x{HOSTILE}": (1, 2)}, left_out={"big": "over 1 MiB"}),
        ),
        *ended(verdict="verified", artifacts={"patch.diff": patch}),
    )
    return name


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert dawn([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_help_loads_nothing_heavy() -> None:
    """`dawn --help` must answer at once, so no SDK, no pydantic and no store is imported for it."""
    code = (
        "import sys; from scheduler.cli.main import run; assert run(['--help']) == 0;"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pydantic", "celery", "kombu", "redis", "boto3", "docker", "anthropic", "openai", "structlog", "ruamel"}
    assert not heavy & set(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["nonsense"], 2),
        (["run"], 2),
        (["run", "--repo", "gone", "--command", "x"], 3),
        (["run", "--repo", ".", "fix it"], 3),
        (["run", "--repo", ".", "--model", "gpt", "fix it"], 3),
        (["run", "--repo", ".", "--command", "x", "--limit", "steps"], 2),
        (["run", "--repo", ".", "--command", "x", "--limit", "stepz=3"], 3),
        (["run", "--repo", ".", "--command", "x", "--secret", "ghp_value"], 2),
        (["submit", "gone.yaml"], 3),
        (["show", "gone"], 10),
        (["logs", "gone"], 10),
        (["diff", "gone"], 10),
        (["cancel", "gone"], 10),
        (["status", "gone"], 10),
        (["scheduler"], 2),
        (["worker"], 2),
        (["--help"], 0),
        (["status"], 0),
    ],
)
def test_bad_input_has_its_exit_code_and_no_traceback(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 usage, 3 invalid, 10 not found; a person reads one line of what and one of what to do."""
    assert dawn(arguments) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_setting_that_makes_no_sense_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable is told, as usage."""
    monkeypatch.setenv("DAWN_LIMITS__STEPS", "many")
    assert dawn(["status"]) == ExitCode.USAGE
    assert "DAWN_LIMITS__STEPS" in capsys.readouterr().err


def test_every_mistake_of_a_manifest_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each with file, line and column, then the summary."""
    Path("m.yaml").write_text("version: 2\nname: night\ntargets: []\ntask: {commands: [x]}\n")
    assert dawn(["submit", "m.yaml"]) == ExitCode.INVALID
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ")[0] for line in lines[:2]] == ["m.yaml:1:10", "m.yaml:3:10"]
    assert lines[2] == "error: m.yaml has 2 problems"


def test_a_target_that_is_not_there_is_told_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started or stored."""
    Path("m.yaml").write_text(MANIFEST % "./gone")
    assert dawn(["submit", "m.yaml"]) == ExitCode.INVALID
    assert capsys.readouterr().err.startswith("m.yaml:3:18 target targets[0].repo ./gone does not exist")


def test_a_detached_submit_prints_the_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data on stdout, notes on stderr; the same again is the same batch."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "x").write_text("x")
    Path("m.yaml").write_text(MANIFEST % "./code")
    assert dawn(["submit", "m.yaml", "--detach"]) == 0
    first = capsys.readouterr()
    assert dawn(["submit", "m.yaml", "--detach"]) == 0
    assert capsys.readouterr().out == first.out
    assert first.out.startswith("night-")
    assert "dawn up" in first.err


def test_a_key_makes_run_repeatable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`dawn run --key` twice is one run; without a key each is another."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "x").write_text("x")
    once = ["run", "--repo", "code", "--command", "fix", "--detach"]
    batches = [run_json(capsys, *once, *key)["batches"][0]["id"] for key in ([], [], ["--key", "k"], ["--key", "k"])]
    assert batches[2] == batches[3]
    assert len(set(batches)) == 3


def test_the_options_of_run_arrive_in_the_task(
    tmp_path: Path, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every option of `dawn run` is part of the stored task."""
    (tmp_path / "fix.yaml").write_text("- text: done\n")
    url = "https://git.example.org/a"
    options = f"--repo {url} --ref dev --path pkg --image node --setup s --check lint=l --check t --command c".split()
    rest = ["--limit", "steps=7", "--limit", "cost_usd=none", "--secret", "TOKEN", "--model", "scripted:fix.yaml"]
    [batch] = run_json(capsys, "run", *options, *rest, "--detach", "fix it")["batches"]
    task = Journal(archive, batch["runs"][0]).task()
    assert (task.repo.url, task.repo.ref, task.repo.path, task.repo.secret) == (url, "dev", "pkg", "TOKEN")
    assert (task.environment.image, task.environment.setup, task.lane) == ("node", "s", "interactive")
    assert [(check.name, check.command) for check in task.checks] == [("lint", "l"), ("t", "t")]
    assert (task.commands, task.limits.steps, task.limits.cost_usd) == (("c",), 7, None)
    assert (task.prompt, task.script) == ("fix it", "- text: done\n")


def test_a_unique_prefix_is_enough(sealed_run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As with commits."""
    assert run_json(capsys, "show", "cart-01")["run"]["run"] == sealed_run


def test_an_ambiguous_prefix_lists_the_candidates(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 10, and what it could have meant."""
    make_run("cart-aa")
    make_run("cart-ab")
    assert dawn(["show", "cart"]) == ExitCode.CONFLICT
    assert "cart-aa, cart-ab" in capsys.readouterr().err


def test_an_exact_id_is_not_ambiguous(make_run: Make) -> None:
    """Though another id begins with it."""
    make_run("cart-a")
    make_run("cart-ab")
    assert dawn(["show", "cart-a"]) == 0


def test_status_lists_batches_and_their_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One row a batch without a name, one a run with it."""
    Path("m.yaml").write_text(MANIFEST % "https://git.example.org/a")
    assert dawn(["submit", "m.yaml", "--detach"]) == 0
    batch = capsys.readouterr().out.strip()
    [listed] = run_json(capsys, "status")["batches"]
    assert (listed["batch"], listed["runs"][0]["status"]) == (batch, "queued")
    [row] = run_json(capsys, "status", batch)["runs"]
    assert row["target"] == "a"


def test_status_shows_what_a_cut_off_submit_has_written(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that its batch names and nobody wrote, and a batch that names none yet, hide nothing else."""
    Path("m.yaml").write_text(MANIFEST % "https://git.example.org/a}, {repo: https://git.example.org/b")
    assert dawn(["submit", "m.yaml", "--detach"]) == 0
    batch = capsys.readouterr().out.strip()
    [gone, left] = [member.run for member in members(archive, batch)]
    for key in (keys.task(gone), keys.open_marker(gone), keys.segment(gone, 0)):
        (tmp_path / "archive" / key).unlink()
    archive.create(keys.batch_manifest("cut-off"), b"")
    listed = {entry["batch"]: entry for entry in run_json(capsys, "status")["batches"]}
    assert [run["run"] for run in listed[batch]["runs"]] == [left]
    assert (listed[batch]["runs_not_written"], listed["cut-off"]["runs"]) == (1, [])
    assert dawn(["status", batch]) == 0
    assert "1 of its 2 runs" in capsys.readouterr().err
    assert dawn(["status", "cut-off"]) == ExitCode.CONFLICT
    assert "submit it again" in capsys.readouterr().err


def test_the_list_counts_verdicts(make_run: Make, archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a batch's row a reader sees at once whether what was changed is also right."""
    make_run("a", claimed(), *ended(verdict="verified"), target="a")
    make_run("b", claimed(), *ended(verdict="broke"), target="b")
    limit = Failure(cls="limit", reason="steps")
    make_run("c", claimed(), *ended("failed", failure=limit, verdict="broke"), target="c")
    make_run("d", claimed(), target="d")
    targets = [{"target": run, "run": run} for run in "abcd"]
    archive.create(keys.batch_targets("n"), json.dumps({"targets": targets}).encode())
    assert dawn(["status"]) == 0
    said = capsys.readouterr().out
    assert "1 changed/broke, 1 changed/verified, 1 failed, 1 running" in said


def test_every_json_document_names_its_schema(sealed_run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Name and version, so that a reader can refuse what it does not know."""
    schemas = [
        run_json(capsys, *words)["schema"] for words in (["status"], ["status", sealed_run], ["show", sealed_run])
    ]
    assert schemas == ["dawn.batches/1", "dawn.runs/1", "dawn.run/1"]
    assert dawn(["logs", sealed_run, "--json"]) == 0
    assert {json.loads(line)["schema"] for line in capsys.readouterr().out.splitlines()} == {"dawn.event/1"}


def test_show_tells_what_a_reviewer_needs(sealed_run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Outcome, verdict, checks against the baseline, files, spending, plan, last words, how to go on."""
    assert dawn(["show", sealed_run]) == 0
    out = capsys.readouterr().out
    for expected in (
        "outcome     changed",
        "verdict     verified",
        "tests: red before, green now",
        "+1 -2",
        "big  over 1 MiB",
        "1 step, ",
        "cost unknown",
        "[x] look",
        "all done",
        f"dawn diff {sealed_run} | git apply",
    ):
        assert expected in out


def test_show_tells_a_failure_and_its_detail(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Class, reason and what happened."""
    failure = Failure(cls="env", reason="ref", detail="no branch dev; there are main, trunk")
    make_run("a", Sealed(outcome="failed", failure=failure))
    assert dawn(["show", "a"]) == 0
    assert "env/ref: no branch dev; there are main, trunk" in capsys.readouterr().out


def test_logs_show_every_event_with_the_context_size(sealed_run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole conversation in order, the size of the context beside it."""
    assert dawn(["logs", sealed_run]) == 0
    out = capsys.readouterr().out
    kinds = ["submitted", "claimed", "replied", "observed", "verdict", "finished", "sealed"]
    assert [kind for line in out.splitlines() for kind in kinds if f" {kind} " in line] == kinds
    assert "1,234 tokens  replied" in out


def test_logs_follow_until_the_run_is_sealed(
    make_run: Make, archive: Archive, wait_until: Callable[..., Any]
) -> None:
    """What is appended later is printed, and the end of the run ends the command."""
    run = make_run("a", claimed())
    command = [sys.executable, "-m", "scheduler.cli.main", "logs", "a", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert "submitted" in follower.stdout.readline()
        Journal(archive, "a").append(run, ended("no_change"), attempt=1, at=AT)
        rest = follower.stdout.read()
        assert follower.wait() == 0
    assert "no_change" in rest


def test_diff_gives_the_exact_bytes_to_a_pipe(sealed_run: str) -> None:
    """`dawn diff RUN | git apply` must see what was stored."""
    command = [sys.executable, "-m", "scheduler.cli.main", "diff", sealed_run]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == b"--- a/x\n+++ b/x\n+\x1b[2J\n"


def test_diff_of_a_run_that_goes_on_is_a_conflict(make_run: Make) -> None:
    """There is no patch before the end."""
    make_run("a")
    assert dawn(["diff", "a"]) == ExitCode.CONFLICT


@pytest.mark.parametrize("words", ["show", "logs", "diff", "status"])
def test_no_control_byte_of_any_data_reaches_a_terminal(sealed_run: str, words: str) -> None:
    """Escape sequences in output, names, titles and patches are written out (pty capture)."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "scheduler.cli.main", words, sealed_run]
    with subprocess.Popen(
        command, stdout=slave, stderr=slave, stdin=slave, env={**os.environ, "NO_COLOR": "1"}
    ) as shown:
        os.close(slave)
        out = b""
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            if not data:
                break
            out += data
        assert shown.wait() == 0
    os.close(master)
    text = out.decode("utf-8").replace("\r\n", "\n")
    assert not [letter for letter in text if unicodedata.category(letter) == "Cc" and letter not in "\n\t"]


def test_plain_writes_control_and_direction_characters_out() -> None:
    """Readable, and reversible by a reader's eye."""
    assert plain("a\x1b[2J\x9b\u202eb\nc") == "a\\x1b[2J\\x9b\\u202eb\\x0ac"
    assert plain("a\tb\nc é 漢", lines=True) == "a\tb\nc é 漢"


@pytest.mark.parametrize("letter", ["\u00ad", "\u200b", "\u2060", "\u3164", "\ufeff", "\uffa0", "\U000e0041"])
def test_plain_writes_out_what_shows_as_nothing(letter: str) -> None:
    """H47: a text cannot hold another one in letters that nobody sees; those that join letters of a script stay."""
    told = plain(f"a{letter}b")
    assert told.isascii()
    assert told[:2] == "a\\"
    for joined in ("\u06cc\u200c\u06a9", "\U0001f468\u200d\U0001f469", "\u2764\ufe0f"):
        assert plain(joined) == joined


def test_cancel_leaves_a_message_in_the_inbox(
    make_run: Make, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal will say who asked; without a stack the user is told when it ends."""
    make_run("a")
    assert dawn(["cancel", "a"]) == 0
    [message] = Inbox(archive, "a").read()
    assert message.kind == "cancel"
    assert "@" in message.by
    assert "no stack is running" in capsys.readouterr().err


def test_cancel_after_the_end_is_a_conflict(make_run: Make, archive: Archive) -> None:
    """A closed inbox takes nothing."""
    make_run("a", *ended())
    Inbox(archive, "a").close(0, by="worker", at=AT)
    assert dawn(["cancel", "a"]) == ExitCode.CONFLICT


def test_cancel_of_a_batch_reaches_every_run(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """One word stops the night."""
    Path("m.yaml").write_text(MANIFEST.replace("[{repo: %s}]", "[{repo: 'https://h/a'}, {repo: 'https://h/b'}]"))
    assert dawn(["submit", "m.yaml", "--detach"]) == 0
    batch = capsys.readouterr().out.strip()
    assert dawn(["cancel", batch]) == 0
    assert len(capsys.readouterr().out.split()) == 2


@pytest.mark.parametrize("group", [[], ["images"]])
def test_no_line_of_a_list_of_commands_is_cut(
    group: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the narrowest terminal that people use, 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    assert dawn([*group, "--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert len(commands) > 3
    assert [line for line in commands if line.endswith("...") or len(line.split()) < 2] == []


def test_help_of_worker_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """What the process takes can be read where it is started."""
    assert dawn(["worker", "--help"]) == 0
    said = capsys.readouterr().out
    assert "--lanes" in said
    assert "--slots" in said


def test_images_can_be_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Security updates of the base arrive by --force."""
    begun: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, words: begun.append(words))
    assert dawn(["images", "build", "python", "--force"]) == 0
    assert begun[0][-3:] == ["build", "python", "--force"]


def test_doctor_says_what_a_missing_key_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No key is fine for runs without that model, so it is ok and has a hint all the same."""
    missing = checkup.Finding("key openai", True, "no key", "set OPENAI_API_KEY for the workers")
    monkeypatch.setattr(checkup, "examine", lambda _: [missing])
    assert dawn(["doctor"]) == 0
    assert missing.hint in capsys.readouterr().out


def test_doctor_shows_no_password(
    crashing_valkey: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The address of a Redis with a password is shown without it."""
    address = str(crashing_valkey.folder / "valkey.sock")
    with redis.Redis(unix_socket_path=address) as client:
        client.config_set("requirepass", "hunter2")
    monkeypatch.setenv("DAWN_REDIS_URL", f"unix://:hunter2@{address}")
    dawn(["doctor"])
    said = "".join(capsys.readouterr())
    assert "unix://:***@" in said
    assert "hunter2" not in said


def test_the_schedulers_log_shows_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], redis_url: str
) -> None:
    """What a library quotes of an address or a key is masked in the scheduler's log as in a worker's."""

    class Quotes:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def run(self, stop: Any) -> None:
            structlog.get_logger().warning("away: http://ann:hunter2-hunter2@host")

    for name in ("handlers", "level"):
        monkeypatch.setattr(logging.root, name, getattr(logging.root, name))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("scheduler.service.Scheduler", Quotes)
    monkeypatch.setenv("DAWN_REDIS_URL", redis_url)
    monkeypatch.setenv("DAWN_S3_ENDPOINT_URL", "http://ann:hunter2-hunter2@host")
    assert dawn(["scheduler"]) == 0
    structlog.reset_defaults()
    assert "[secret DAWN_S3_ENDPOINT_URL]" in capsys.readouterr().err


def test_an_archive_of_another_kind_is_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemes we do not know are refused before anything else."""
    monkeypatch.setenv("DAWN_ARCHIVE", "ftp://x")
    assert dawn(["status"]) == ExitCode.USAGE


def test_redis_away_is_try_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A named Redis that does not answer: 75, and nothing is started instead."""
    monkeypatch.setenv("DAWN_REDIS_URL", f"unix://{tmp_path}/gone.sock")
    assert dawn(["run", "--repo", "https://git.example.org/a", "--command", "x"]) == ExitCode.TRY_LATER


def sealed(outcome: str, **changes: Any) -> Run:
    return Run(id="r", status="sealed", sealed=Sealed(outcome=outcome, **changes))  # type: ignore[arg-type]


FAILED = sealed("failed", failure=Failure(cls="limit", reason="steps"))


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ([], 0),
        ([sealed("changed", verdict="verified")], 0),
        ([sealed("changed", verdict="unverified")], 0),
        ([sealed("no_change", verdict="verified")], 0),
        ([sealed("reused", verdict="verified")], 0),
        ([FAILED], 4),
        ([sealed("changed", verdict="broke")], 4),
        ([sealed("changed", verdict="still_failing"), sealed("changed", verdict="verified")], 4),
        ([FAILED, FAILED], 5),
        ([sealed("skipped", detail="budget"), FAILED], 6),
        ([sealed("skipped", detail="breaker"), FAILED], 7),
        ([sealed("cancelled"), sealed("skipped", detail="budget")], 8),
        ([Run(id="r", waiting=Parked(waiting="question")), FAILED], 9),
    ],
)
def test_the_exit_code_of_a_batch(runs: list[Run], code: int) -> None:
    """The table of the plan, with its order when several apply."""
    assert exit_code(runs) == code


def test_the_demonstrations_manifests_are_valid() -> None:
    """Each parses with its script and names a folder that is there."""
    from scheduler.demo import scenarios

    loaded = [scenarios.load(name, Limits()) for name in scenarios.FORETOLD]
    assert all((entry.folder / entry.manifest.targets[0].repo).is_dir() for entry in loaded)
    assert all(entry.script for entry in loaded)
    assert parse(loaded[0].text, "again", loaded[0].folder, Limits()).manifest == loaded[0].manifest


def test_a_list_of_runs_that_cannot_be_read_is_damage(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named with exit code 11, by every command that looks there."""
    archive.create(keys.batch_targets("b-0123456789ab"), b"[1, 2]")
    for words in (["status"], ["status", "b-0"], ["cancel", "b-0"], ["verify", "b-0"]):
        assert dawn(words) == 11
        out = capsys.readouterr()
        assert "batches/b-0123456789ab/targets.json" in out.out + out.err


def test_a_marker_that_belongs_to_no_run_hides_nothing(make_run: Make, archive: Archive) -> None:
    """Whatever lies beside the runs that are there."""
    make_run("a")
    archive.create(keys.open_marker("nobody-1"), b"")
    archive.create(keys.open_marker("newer-1"), b"")
    archive.create(keys.task("newer-1"), b'{"v": 99}')
    assert dawn(["status"]) == 0


def test_verify_finds_no_task_sound_that_cannot_be_read(archive: Archive) -> None:
    """Also before anything was appended to its run."""
    archive.create(keys.task("a"), b"{}")
    assert dawn(["verify", "a"]) == 11


def test_a_state_folder_that_cannot_be_made_is_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and the folder's name, no traceback."""
    monkeypatch.setenv("DAWN_STATE_DIR", "/dev/null/state")
    assert dawn(["up"]) == 2
    assert "/dev/null/state" in capsys.readouterr().err


def test_a_closed_stdout_is_no_error(sealed_run: str) -> None:
    """Whoever started us may have closed it."""
    command = f'exec "{sys.executable}" -m scheduler.cli.main status {sealed_run} >&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_folder_that_somebody_stands_in_is_not_run(tmp_path: Path) -> None:
    """Programs that we start take our modules, not those of a repository that happens to have one of that name."""
    for name in ("worker.py", "scheduler.py", "json.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    env = os.environ | {"DAWN_STATE_DIR": str(tmp_path / "state"), "DAWN_DOCKER_URL": f"unix://{tmp_path}/none"}
    done = subprocess.run(
        [program("dawn"), "doctor", "--json"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert "engine" in done.stdout
    assert not (tmp_path / "ran").exists()
