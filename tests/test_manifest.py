"""What a user may write in a manifest, and how every mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from scheduler.manifests.complaints import complaints
from scheduler.manifests.reading import Loaded, ManifestFault, parse
from worker.contract.places import read
from worker.contract.task import Frozen, Limits

GOOD = """\
version: 1
name: night
targets:
  - repo: https://git.example.org/a/b
    ref: main
  - repo: https://git.example.org/c/d
    path: pkg
    image: node
task:
  commands: [ruff check --fix .]
environment: {image: python, setup: pip install -e .}
checks:
  - pytest -q
  - lint=ruff check .
  - {name: types, command: mypy}
limits: {steps: 7}
"""


def load(text: str, folder: Path = Path("/"), defaults: Limits | None = None) -> Loaded:
    return parse(text, "fleet.yaml", folder, defaults or Limits())


def problems(text: str, folder: Path = Path("/")) -> list[str]:
    with pytest.raises(ManifestFault) as caught:
        load(text, folder)
    return caught.value.lines()


def test_a_full_manifest_is_read() -> None:
    """Every section of version 1 arrives in the model."""
    manifest = load(GOOD).manifest
    assert [target.image for target in manifest.targets] == [None, "node"]
    assert [(check.name, check.command) for check in manifest.checks] == [
        ("pytest -q", "pytest -q"),
        ("lint", "ruff check ."),
        ("types", "mypy"),
    ]
    assert manifest.limits.steps == 7


def test_limits_not_given_come_from_the_deployment() -> None:
    """A manifest overrides single limits, the rest are the settings'."""
    limits = load(GOOD, defaults=Limits(steps=50, tokens=1234)).manifest.limits
    assert (limits.steps, limits.tokens) == (7, 1234)


def test_tools_can_be_withheld() -> None:
    """Those of ours, by name; a name that none has is told."""
    asked = GOOD.replace("  commands: [ruff", "  without_tools: [delegate]\n  commands: [ruff")
    assert load(asked).manifest.task.without_tools == ("delegate",)
    [problem] = problems(asked.replace("delegate", "delegte"))
    assert "no tool delegte" in problem


def test_all_mistakes_are_told_at_once_with_their_places() -> None:
    """One run of the command is enough to see everything that is wrong."""
    text = (
        GOOD.replace("name: night", "name: Not A Name")
        .replace("steps: 7", "steps: -1")
        .replace("ref: main", "ref: 1")
    )
    assert [line.split(" ")[:3] for line in problems(text)] == [
        ["fleet.yaml:2:7", "value", "name"],
        ["fleet.yaml:5:10", "type", "targets[0].ref"],
        ["fleet.yaml:16:17", "value", "limits.steps"],
    ]


def test_a_key_near_a_known_one_is_suggested() -> None:
    """A slip of the pen is answered with the word that was meant."""
    [line] = problems(GOOD.replace("  commands:", "  comands:").replace("task:\n", "task:\n  commands: [x]\n"))
    assert line == "fleet.yaml:11:3 unknown-key task.comands is not known here (did you mean 'commands'?)"


def test_a_key_of_another_version_is_refused() -> None:
    """Nothing is silently ignored, and the known keys are listed."""
    [line] = problems(GOOD + "zzz: 1\n")
    assert line.startswith("fleet.yaml:17:1 unknown-key zzz is not known here (known here: version, name, targets")


def test_the_known_keys_come_from_the_models_at_any_depth() -> None:
    """A field that is added to a model is suggested from then on, also below lists, mappings and alternatives."""

    class Leaf(Frozen):
        colour: str = ""

    class Fruit(Frozen):
        seeds: int = 0

    class Branch(Frozen):
        leaves: tuple[Leaf, ...] = ()
        named: dict[str, Leaf] = {}
        either: Leaf | Fruit | None = None

    class Tree(Frozen):
        branch: Branch | None = None

    def told(text: str) -> list[str]:
        document = read(text)
        with pytest.raises(ValidationError) as caught:
            Tree.model_validate(document.data)
        found = complaints(document, caught.value, Tree)
        return [
            f"{problem.line}:{problem.column} {problem.where} {problem.message} ({problem.hint})" for problem in found
        ]

    unknown = "is not known here (did you mean"
    assert told("branch:\n  leavs: []") == [f"2:3 branch.leavs {unknown} 'leaves'?)"]
    assert told("branch:\n  leaves:\n  - color: red") == [f"3:5 branch.leaves[0].color {unknown} 'colour'?)"]
    assert told("branch:\n  named:\n    a: {color: red}") == [f"3:9 branch.named.a.color {unknown} 'colour'?)"]
    assert told("branch:\n  either: {sees: 1}") == [
        "2:12 branch.either.sees is not known here (known here: colour)",
        f"2:12 branch.either.sees {unknown} 'seeds'?)",
    ]


def test_every_duplicate_key_is_refused_with_both_lines() -> None:
    """YAML would keep one of them silently."""
    lines = problems(GOOD + "name: other\nchecks: []\n")
    assert lines == [
        "fleet.yaml:17:1 duplicate-key name is given twice, first on line 2 column 1 (keep one of them)",
        "fleet.yaml:18:1 duplicate-key checks is given twice, first on line 12 column 1 (keep one of them)",
    ]


def test_yaml_1_2_reads_no_as_a_word() -> None:
    """`no` and `on` are words, as in YAML 1.2."""
    assert load(GOOD.replace("ref: main", "ref: no")).manifest.targets[0].ref == "no"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [1,\n", "fleet.yaml:2:1"),
        ("a: b: c\n", "fleet.yaml:1:5"),
        ("", "fleet.yaml:1:1"),
        ("- 1\n", "fleet.yaml:1:1"),
        ("a: &x [*x]\n", "fleet.yaml:1:4"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_place(text: str, place: str) -> None:
    """Broken, empty, other and endless documents give one line each, no traceback."""
    assert problems(text)[0].split(" ")[0] == place


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("  commands: [ruff check --fix .]", "  model: none"), "nothing to do"),
        (("  commands: [ruff check --fix .]", "  model: openai/x"), "needs a prompt"),
        (("  commands: [ruff check --fix .]", "  prompt: p\n  model: gpt"), "unknown model"),
        (("  commands: [ruff check --fix .]", "  prompt: p\n  model: scripted:gone.yaml"), "cannot read the script"),
        (("name: types", "name: lint"), "check names must differ: lint"),
        (("path: pkg", "path: ../pkg"), "must be a plain relative folder"),
        (("steps: 7", "call_timeout_s: 60, working_time_s: 30"), "longer than working_time_s"),
        (("steps: 7", "stepz: 7"), "did you mean 'steps'"),
        (("steps: 7", "steps: many"), "limits.steps must be a whole number"),
        (("steps: 7", "call_timeout_s: 9999"), "limits.call_timeout_s must be less than or equal to 600"),
        (("steps: 7", "model_timeout_s: .inf"), "limits.model_timeout_s must be at most 2592000"),
        (("steps: 7", "cost_usd: 1e300"), "limits.cost_usd must be at most 1000000000"),
        (("steps: 7", f"context_tokens: {10**30}"), "limits.context_tokens must be at most 9007199254740991"),
        (("limits: {steps: 7}", "budget: 20"), "budget must be a mapping"),
        (("limits: {steps: 7}", "budget: {usd: -1}"), "budget.usd must be greater than 0"),
        (("limits: {steps: 7}", "budget: {usd: .nan}"), "budget.usd must be"),
        (("limits: {steps: 7}", "budget: {usd: 20, on: stop}"), "known here: usd, on_limit"),
        (("limits: {steps: 7}", "budget: {usd: 20, on_limit: halt}"), "budget.on_limit must be 'pause' or 'stop'"),
        (("[ruff check --fix .]", "fix"), "task.commands must be a list"),
        (("limits:", "policy: [{pattern: '(?=a)', action: ask}]\nlimits:"), "in linear time: look-around"),
        (("setup: pip install -e .", "setup_secrets: [A]"), "setup_secrets are for setup, and there is none"),
        (("-e .}", "-e ., setup_secrets: [ghp_0815]}"), "must be the NAME of a secret, in capitals, never its value"),
        (("-e .}", "-e ., setup_secrets: [A], resetup: on_change}"), "which runs what an agent wrote"),
        (("[ruff check --fix .]", "[3]"), "task.commands[0] must be text (put a number in quotes)"),
    ],
)
def test_what_makes_no_sense_is_refused(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    """Contradictions are found before anything is stored."""
    [line] = problems(GOOD.replace(*change), tmp_path)
    assert message in line


def test_a_script_is_read_relative_to_the_manifest(tmp_path: Path) -> None:
    """`scripted:FILE` carries the file's text along."""
    (tmp_path / "fix.yaml").write_text("- text: done\n")
    task = "  prompt: fix it\n  model: scripted:fix.yaml"
    loaded = load(GOOD.replace("  commands: [ruff check --fix .]", task), tmp_path)
    assert loaded.script == "- text: done\n"


def test_a_script_that_does_not_parse_names_its_own_line(tmp_path: Path) -> None:
    """The complaint leads to the script's line, not only to the manifest's."""
    (tmp_path / "fix.yaml").write_text("- text: done\n- txet: x\n")
    task = "  prompt: fix it\n  model: scripted:fix.yaml"
    [line] = problems(GOOD.replace("  commands: [ruff check --fix .]", task), tmp_path)
    assert line.startswith("fleet.yaml:11:10 file task.model fix.yaml:2:3")
