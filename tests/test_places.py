"""YAML as a person writes it: places, and what must not be loaded."""

from __future__ import annotations

import pytest

from worker.contract.places import MAX_DEPTH, MAX_NODES, Code, Document, read

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


def refused(document: Document) -> tuple[Code, str]:
    [problem] = document.problems
    assert document.data is None
    return problem.code, problem.message


def test_words_stay_words() -> None:
    """YAML 1.2: no, off and times are text, and 010 is ten."""
    document = read("a: no\nb: off\nc: 12:30\nd: 010\n")
    assert document.data == {"a": "no", "b": "off", "c": "12:30", "d": 10}


def test_a_version_directive_does_not_bring_the_old_words_back() -> None:
    """YAML 1.1 would make `no` a truth value."""
    assert refused(read("%YAML 1.1\n---\na: no\n")) == ("yaml", "is read as YAML 1.2 and takes no % directive")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, f"makes more than {MAX_NODES:,} values, each alias counted where it is used"),
        ("a: &x [*x]\n", f"is nested deeper than {MAX_DEPTH} levels"),
        ("[" * 5_000, f"is nested deeper than {MAX_DEPTH} levels"),
        ('a: "\\ud800"', "holds half a character (a lone surrogate)"),
        ("a" * (4 * 2**20 + 1), "is larger than 4 MiB"),
    ],
)
def test_what_must_not_be_loaded_is_refused_with_its_bound(text: str, told: str) -> None:
    """A few lines of aliases would make ten thousand million values (billion laughs)."""
    assert refused(read(text)) == ("yaml", told)


def test_aliases_and_merges_within_the_bound_are_read() -> None:
    """They are how people avoid saying things twice."""
    assert read("a: &x {b: 1}\nc: {<<: *x, d: 2}\ne: *x\n").data == {
        "a": {"b": 1},
        "c": {"b": 1, "d": 2},
        "e": {"b": 1},
    }


def test_a_key_given_twice_has_both_places() -> None:
    """Below the top too."""
    [problem] = read("a:\n  b: 1\n  c: 2\n  b: 3\n").problems
    assert (problem.line, problem.column, problem.code, problem.where) == (4, 3, "duplicate-key", "a.b")
    assert problem.message == "is given twice, first on line 2 column 3"


def test_a_mark_inside_a_text_has_its_own_line() -> None:
    """Of a block, a quoted text and a plain one."""
    document = read("a: |\n  one\n  two {{ x {{ y\nb: '{{'\nc: see {{\n")
    places = [document.inside(("a",), "{{", 1), document.inside(("b",), "{{", 0), document.inside(("c",), "{{", 0)]
    assert [(place.line, place.column, place.where) for place in places] == [(3, 12, "a"), (4, 5, "b"), (5, 8, "c")]
