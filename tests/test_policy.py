"""The short list: what is refused, what needs a person, and above all what it must leave alone."""

from __future__ import annotations

import re

import pytest
from transcripts import Transcript, shell, task

from worker.contract.events import Decided, Event, ToolCall
from worker.contract.pattern import found, searchable
from worker.contract.task import PolicyRule, Task
from worker.policy import ALLOW, Ruling, binding, command_ruling, judge
from worker.tools.files import WriteFile
from worker.tools.shell import RunCommandArguments


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "git push --force origin main",
        "git -C /workspace/repo push",
        "cd pkg && git push origin HEAD",
        "make; /usr/bin/git push",
        "if true; then git push; fi",
        "GIT_SSH_COMMAND=ssh git push",
        "(git push)",
        "npm publish",
        "twine upload dist/*",
        "cargo publish",
        "docker push x/y",
    ],
)
def test_publishing_is_refused(command: str) -> None:
    """Delivery is not the agent's part."""
    assert command_ruling(command).action == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "terraform destroy -auto-approve",
        "terraform -chdir=infra apply",
        "kubectl delete ns prod",
        "kubectl -n prod delete pod x",
        'psql -c "DROP TABLE users"',
        "mysql -e 'drop database x'",
        "dropdb x",
    ],
)
def test_what_cannot_be_undone_needs_a_person(command: str) -> None:
    """A question, not a refusal."""
    assert command_ruling(command).action == "ask"


@pytest.mark.parametrize(
    "command",
    [
        'grep "DROP TABLE" -r migrations',
        "echo git push",
        "git log --grep push",
        "git commit -m 'git push later'",
        "git stash push",
        "npm run publish-docs",
        "cat > README <<'EOF'\ngit push origin main\nEOF",
        "# git push would be next\nls",
        "python - <<EOF\nprint('git push')\nEOF\necho done",
        "psql -c 'select 1'",
        "kubectl get pods",
        "terraform plan -destroy",
        "rm -rf build && make",
        "git diff | grep push",
        "echo 'unbalanced",
        "",
    ],
)
def test_harmless_commands_run(command: str) -> None:
    """Words about an act are not the act."""
    assert command_ruling(command).action == "allow"


def test_heredocs_without_an_end_do_not_hold_the_worker() -> None:
    """Each line is looked at once: to look for each end anew would take an hour."""
    assert command_ruling("<<a\n" * 200_000).action == "allow"


def test_the_stricter_ruling_wins() -> None:
    """A script with both is refused."""
    assert command_ruling("terraform apply; git push").action == "deny"


def rules(*wanted: tuple[str, str, str], on_ask: str = "park") -> Task:
    policy = tuple(PolicyRule(tool=tool, pattern=pattern, action=action) for tool, pattern, action in wanted)  # type: ignore[arg-type]
    return task().model_copy(update={"policy": policy, "on_ask": on_ask})


def ruled(asked: Task, command: str, *events: Event, hook: Ruling = ALLOW) -> str:
    call = shell(command, 1)
    transcript = Transcript(asked)
    for event in events:
        transcript.commit(event)
    return judge(asked, call, RunCommandArguments(command=command), transcript.records(), lambda: hook).action


def test_the_first_rule_that_matches_counts() -> None:
    """In the order of the task; what no rule names is as the written list says."""
    asked = rules(("run_command", "^make clean$", "allow"), ("run_command", "make", "ask"), ("*", "secret", "deny"))
    assert [ruled(asked, command) for command in ("make clean", "make all", "cat secret", "ls", "dropdb x")] == [
        *("allow", "ask", "deny", "allow", "ask"),
    ]


def test_a_pattern_does_not_hold_the_worker() -> None:
    """The time of a search grows with the command: `re` would take a day for this one."""
    assert ruled(rules(("run_command", r"^(\w+\s?)*$", "deny")), "a" * 60 + "!") == "allow"


@pytest.mark.parametrize(
    "pattern", ["", "^a", "a$", "^a b$", r"\bb\b", r"(?i)A\sB", r"(?s)a.*c", r"(?m)^c", r"\w\W", "[é]"]
)
@pytest.mark.parametrize("text", ["", "a", "a b", "a b\n", "x a\nc", "é", "\ud800a"])
def test_a_pattern_is_found_where_python_finds_it(pattern: str, text: str) -> None:
    """Also before the last line's end, and in text that is no valid Unicode."""
    assert found(searchable(pattern), text) == bool(re.search(pattern, text))


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@pytest.mark.parametrize(
    "pattern", ["a(?=b)", r"(a)\1", r"\<a", "[a&&b]", "[[]", "a++", "a{,3}", r"\Z", r"(\w{0,50}x){50}"]
)
def test_a_pattern_that_only_python_reads_so_is_refused(pattern: str) -> None:
    """In a task that is older than this it is searched for as it was."""
    with pytest.raises(ValueError, match=r"linear time|write|backtracking"):
        searchable(pattern)
    assert found(pattern, "aab") == bool(re.search(pattern, "aab"))


def test_a_rule_may_allow_what_would_need_a_person_but_no_refusal() -> None:
    """Publishing stays refused, whatever a task says."""
    asked = rules(("run_command", "", "allow"))
    assert ruled(asked, "terraform apply") == "allow"
    assert ruled(asked, "git push") == "deny"


def test_rules_see_the_arguments_of_other_tools() -> None:
    """As JSON, for the tool they name or for any."""
    call = ToolCall(id="call_1_1", name="write_file", arguments="{}")
    arguments = WriteFile(path="deploy/prod.yaml", content="x")
    found = [
        judge(rules((tool, "deploy/", "deny")), call, arguments, [], lambda: ALLOW).action
        for tool in ("write_file", "*", "read_file")
    ]
    assert found == ["deny", "deny", "allow"]


@pytest.mark.parametrize(
    ("command", "hook", "ruling"),
    [("ls", "deny", "deny"), ("ls", "ask", "ask"), ("dropdb x", "allow", "ask"), ("git push", "allow", "deny")],
)
def test_the_hook_can_only_be_stricter(command: str, hook: str, ruling: str) -> None:
    """The strictest of list, rules and hook counts."""
    assert ruled(rules(), command, hook=Ruling(hook, "because")) == ruling  # type: ignore[arg-type]


def test_the_hook_is_not_asked_about_what_is_refused_anyway() -> None:
    """It costs time."""

    def hook() -> Ruling:
        raise AssertionError

    assert judge(rules(), shell("git push", 1), RunCommandArguments(command="git push"), [], hook).action == "deny"


@pytest.mark.parametrize(
    ("decision", "ruling"),
    [("approved", "allow"), ("answered", "answer"), ("denied", "deny"), ("expired", "deny"), ("cancelled", "deny")],
)
def test_a_decision_settles_what_was_asked(decision: str, ruling: str) -> None:
    """Also where the hook asked; a denial of the hook is none of a person's business."""
    decided = Decided(call_id="call_1_1", decision=decision, by="ann")  # type: ignore[arg-type]
    assert ruled(rules(), "dropdb x", decided) == ruling
    assert ruled(rules(), "ls", decided, hook=Ruling("ask", "?")) == ruling
    assert ruled(rules(), "ls", decided, hook=Ruling("deny", "no")) == "deny"


@pytest.mark.parametrize(("on_ask", "ruling"), [("park", "ask"), ("deny", "deny"), ("fail", "fail")])
def test_the_task_says_what_becomes_of_an_ask(on_ask: str, ruling: str) -> None:
    """It waits, goes on without, or ends."""
    assert ruled(rules(on_ask=on_ask), "dropdb x") == ruling


def test_a_question_is_bound_to_tool_arguments_and_workspace() -> None:
    """Any of them changed makes another digest."""
    transcript = Transcript(task())
    before = binding(shell("ls", 1), transcript.run)
    assert binding(shell("ls -l", 1), transcript.run) != before
    assert binding(shell("ls", 1).model_copy(update={"name": "search"}), transcript.run) != before
    transcript.step("touch x", tree="b")
    assert binding(shell("ls", 1), transcript.run) != before
