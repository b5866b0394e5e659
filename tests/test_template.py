"""Places in prompts and commands: data in, and nothing of it is ever run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.manifests import template

VALUES = {"vars.a": 'it\'s $(>ran) `>ran` "$x" \\', "repo.label": "pkg"}
SHELLS = [path for name in ("bash", "dash") if (path := shutil.which(name))]


def told(text: str, *, command: bool = True) -> list[str]:
    return [message for _, message, _ in template.faults(text, command=command)]


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("Fix {{ repo.label }}.", "Fix pkg."),
        ("{{repo.label}}{{\trepo.label }}", "pkgpkg"),
        ("{{{{ repo.label }}", "{{ repo.label }}"),
        ("no place, } and }} and { alone", "no place, } and }} and { alone"),
    ],
)
def test_a_place_is_filled_with_its_value(text: str, rendered: str) -> None:
    """Blanks around the name do not matter; four braces are two."""
    assert told(text, command=False) == []
    assert template.render(text, VALUES) == rendered


def test_a_value_is_never_read_again() -> None:
    """One that holds a place stays what it is."""
    assert template.render("{{ vars.a }}", {"vars.a": "{{ vars.b }}"}) == "{{ vars.b }}"


@pytest.mark.parametrize("text", ["{{ x }}", "{{ vars.a | upper }}", "{{ 1+1 }}", "{{", "{{ vars['a'] }}", "{{ a.b"])
def test_what_is_no_dotted_name_is_refused(text: str) -> None:
    """There are no expressions, filters or calls."""
    assert told(text, command=False) == [template.NO_NAME]


@pytest.mark.parametrize(
    "text",
    [
        "echo {{ vars.a }}",
        "echo 'a b'{{ vars.a }}\"c $HOME ${HOME}\"{{ vars.a }}x",
        "# don't mind\necho {{ vars.a }}",
        'x=$(echo {{ vars.a }}); echo "$x" a#b \\$ $? $# {{ vars.a }} <in >{{ vars.a }}',
        "echo \\\n  {{ vars.a }}",
    ],
)
def test_a_place_outside_of_quotes_may_stand(text: str) -> None:
    """Wherever every shell reads one word."""
    assert told(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "echo '{{ vars.a }}'",
        'echo "{{ vars.a }}"',
        'echo "$(echo "{{ vars.a }}")"',
        "echo `echo {{ vars.a }}`",
        "cat <<E\n{{ vars.a }}\nE",
        "echo \\{{ vars.a }}",
        "echo ${{ vars.a }}",
        "# {{ vars.a }}",
        "echo $(( {{ vars.a }} ))",
        "echo ${x:-'}'{{ vars.a }}}",
        "echo $'\\''{{ vars.a }}",
        "echo <\\\n< {{ vars.a }}",
        "echo $(x)#'\n{{ vars.a }}'",
        "echo a\\\n#'\n{{ vars.a }}'",
        "a[ #'\n{{ vars.a }}']=1",
        "a=(( '\n' {{ vars.a }}",
        "[[ {{ vars.a }} -gt 3 ]]",
    ],
)
def test_a_place_that_cannot_be_quoted_for_sure_is_refused(text: str) -> None:
    """In quotes, heredocs, arithmetic and comments, and behind what shells read differently."""
    assert told(text) == [f"vars.a {template.NO_WORD}"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_value_arrives_in_a_shell_as_one_word(shell: str, tmp_path: Path) -> None:
    """Quotes, dollars, backticks and backslashes of it reach the program as they are."""
    command = template.render_command("printf '<%s>' a {{ vars.a }}b 'c'{{ vars.a }}", VALUES)
    done = subprocess.run([shell, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"<a><{VALUES['vars.a']}b><c{VALUES['vars.a']}>"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([*"'\"\\$`#<({[)}; \n*@=&|ab", "$(", "${b}", "<<", "\\\n", " #"]), max_size=9),
    st.sampled_from(["$(>ran)", "`>ran`", ";>ran;", "'$(>ran)'", '"$(>ran)', "\\'>ran #", "}$(>ran)"]),
)
def test_whatever_stands_before_a_place_its_value_is_not_run(
    tmp_path_factory: pytest.TempPathFactory, shell: str, before: list[str], value: str
) -> None:
    """What validates is safe: a shell that is given the command never makes the file that the value would make."""
    text = f"{''.join(before)}{{{{ vars.a }}}}"
    if told(text):
        return
    place = tmp_path_factory.mktemp("shell")
    command = template.render_command(text, {"vars.a": value})
    subprocess.run([shell, "-c", command], cwd=place, env={"PATH": "/nonexistent"}, capture_output=True, check=False)
    assert not (place / "ran").exists(), command
