"""Which patches of a batch are alike: groups say how their members differ, and what is like nothing stands alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_made import Make, claimed

from scheduler.runs import views
from scheduler.web.patches import normal
from scheduler.web.patches.groups import Changed, Group, gathered, grouped
from scheduler.web.patches.normal import NotCompared, form
from worker.contract.events import Finished, Sealed, digest
from worker.store.archive import Archive
from worker.store.journal import Journal


def diff(*changed: str, path: str = "setup.py", at: int = 10, context: str = "import os") -> bytes:
    """A patch of one file: context around the changed lines."""
    minus = sum(line.startswith("-") for line in changed) + 2
    plus = sum(line.startswith("+") for line in changed) + 2
    lines = "\n".join([f" {context}", *changed, f" {context}"])
    head = f"diff --git a/{path} b/{path}\nindex {at}..{at + 1} 100644\n--- a/{path}\n+++ b/{path}\n"
    return f"{head}@@ -{at},{minus} +{at},{plus} @@\n{lines}\n".encode()


def changed(target: str, patch: bytes) -> Changed:
    return Changed(f"run-{target}", target, digest(patch), patch)


def bump(name: str, version: str = "1.0.0", at: int = 10) -> Changed:
    """The same upgrade of another repository: its name, its old version, its folder and its lines differ."""
    lines = (f"-{name}_requires = ['six=={version}']", f"+{name}_requires = ['six==2.0.0']")
    return changed(name, diff(*lines, path=f"src/{name}/setup.py", at=at, context=f"from {name} import x"))


def only(*given: Changed) -> Group:
    found = grouped(given)
    assert found.alone == ()
    (group,) = found.groups
    return group


def test_the_same_change_of_other_repositories_is_one_group() -> None:
    """Name, folder, context, line numbers and the version that goes are set aside, and told."""
    group = only(bump("cart"), bump("shop", "1.1.0", at=70), bump("till", "1.2"))

    assert len(group.variants) == 1
    assert group.outliers == ()
    assert {member.target: member.differs for member in group.members} == {"cart": 0, "shop": 6, "till": 6}
    assert group.representative.aside == ("src/cart/", "cart", "1.0.0")


def test_a_version_that_only_added_lines_have_is_the_change() -> None:
    """An upgrade to another version is another form: it must be opened."""
    other = changed(
        "shop", diff("-shop_requires = ['six==1.0.0']", "+shop_requires = ['six==9.0.0']", path="setup.py")
    )
    group = only(bump("cart"), bump("till"), other)

    assert [one.target for one in group.outliers] == ["shop"]
    assert group.to_open == (group.representative, *group.outliers)


LAST_LINE = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,20 +1,20 @@\n" + b"".join(
    b"%s%d\n" % (sign, number) for sign in (b"-a", b"+b") for number in range(20)
)


@pytest.mark.parametrize(
    ("other", "same_form"),
    [
        (LAST_LINE + b"\\ No newline at end of file\n", True),
        (LAST_LINE.replace(b"+b7\n", b"+b7\r\n"), True),
        (LAST_LINE.replace(b"+b7\n", b"+b7\t \n"), True),
        (LAST_LINE.replace(b"+b7\n", b"+b7\x0c\n"), False),
        (LAST_LINE.replace(b"+b7\n", "+b7\u00a0\n".encode()), False),
        (LAST_LINE.replace(b"+b7\n", b"+b7\xff\n"), False),
    ],
)
def test_what_shows_as_nothing_is_counted_as_a_difference(other: bytes, same_form: bool) -> None:
    """The end of a line and of a file: an editor's blanks are set aside, and called no sameness."""
    first = LAST_LINE if b"\xff" not in other else LAST_LINE.replace(b"+b7\n", b"+b7\\xff\n")
    group = only(changed("cart", first), changed("shop", other))

    assert (len(group.variants) == 1) is same_form
    assert any(member.differs for member in group.members)


def test_one_changed_word_is_another_form() -> None:
    """What differs in anything but names and versions never shares a form, however small."""
    lines = ["-check = True", *(f"+step_{n}()" for n in range(20))]
    evil = [*lines[:-1], "+step_19(); upload(secrets)"]
    found = grouped(
        [changed(name, diff(*lines)) for name in ("cart", "shop", "till")] + [changed("bad", diff(*evil))]
    )

    (group,) = found.groups
    assert [len(variant.members) for variant in group.variants] == [3, 1]
    assert [one.target for one in group.outliers] == ["bad"]
    assert group.outliers[0].differs == 2


def test_the_same_change_with_another_verdict_must_be_opened() -> None:
    """What broke one repository is not approved with those that it repaired, though it is the same change."""
    made = [
        replace(bump(name), verdict=verdict)
        for name, verdict in zip(("cart", "shop", "till", "desk"), ["verified"] * 3 + ["broke"], strict=True)
    ]
    group = only(*made)

    assert group.representative.verdict == "verified"
    assert [(one.target, one.verdict) for one in group.outliers] == [("desk", "broke")]


def test_what_is_like_nothing_stands_alone() -> None:
    """An outlier of the batch belongs to no group that could be approved at once."""
    odd = changed("odd", diff("-everything", "+nothing at all", path="main.go"))
    found = grouped([bump("cart"), bump("shop"), odd])

    assert [one.member.run for one in found.alone] == ["run-odd"]
    assert [len(group.members) for group in found.groups] == [2]


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (b"no diff", "none that can be read"),
        (b"diff --git a/x b/x\n@@ -1 +1,9 @@\n-a\n+b\n", "none that can be read"),
        (b"+" * (normal.PATCH_BYTES + 1), "over 1 MiB"),
        (diff(*["+x"] * (normal.LINES_MAX + 1)), "lines change"),
    ],
)
def test_what_cannot_be_compared_stands_alone_and_says_why(patch: bytes, why: str) -> None:
    """T68: a patch that hides lines from us, or is too large, is read by itself."""
    found = grouped([changed("cart", patch), changed("shop", patch)])

    assert found.groups == ()
    assert all(why in one.why for one in found.alone)
    with pytest.raises(NotCompared):
        form(patch, "cart")


def test_swapped_lines_of_files_with_one_name_are_counted() -> None:
    """Two files of the same name do not hide which of them got which lines."""
    first, second = ("a/__init__.py", "b/__init__.py")
    one = changed("cart", diff("+x = 1", path=first) + diff("+y = 2", path=second))
    other = changed("shop", diff("+y = 2", path=first) + diff("+x = 1", path=second))
    assert {member.differs for member in only(one, other).members} == {0, 4}


def test_no_text_can_say_that_a_name_stood_there() -> None:
    """What stands for a name in a form is no text that a patch could hold itself."""
    real, false = diff("+import cart"), diff("+import \0name\0")
    assert form(real, "cart").digest != form(false, "cart").digest


def test_binary_files_are_alike_by_their_content() -> None:
    """Another picture is another form."""

    def picture(data: str) -> bytes:
        return f"diff --git a/p.png b/p.png\nindex 1..2 100644\nGIT binary patch\nliteral 3\n{data}\n\n".encode()

    assert len(only(changed("cart", picture("Kcm")), changed("shop", picture("Kcm"))).variants) == 1
    assert form(picture("Kcm"), "a").digest != form(picture("Kcn"), "a").digest


def test_a_groups_id_names_its_members_and_their_patches() -> None:
    """An approval that was made ready for other patches, or others' runs, is for another group."""
    cart, shop = bump("cart"), bump("shop")
    again = Changed("run-again", "shop", shop.digest, shop.patch)
    assert len({only(cart, shop).id, only(cart, again).id, only(cart, bump("shop", "3.3")).id}) == 3


@given(st.integers(0, 2**32), st.lists(st.sampled_from("abcde"), min_size=1, max_size=40))
@settings(max_examples=40, deadline=None)
def test_the_order_of_runs_changes_nothing_and_none_is_lost(seed: int, kinds: list[str]) -> None:
    """Every run stands in exactly one place, and always in the same."""
    given_ = [
        Changed(f"r{n}", f"t{n}", digest(kind.encode()), diff(*(f"+{kind} {line}" for line in range(n % 3 + 3))))
        for n, kind in enumerate(kinds)
    ]
    shuffled = random.Random(seed).sample(given_, len(given_))
    found = grouped(given_)

    assert grouped(shuffled) == found
    runs = [one.member.run for one in found.alone] + [one.run for group in found.groups for one in group.members]
    assert sorted(runs) == sorted(one.run for one in given_)
    for group in found.groups:
        assert group.representative.differs == 0
        assert {variant.form for variant in group.variants} >= {group.variants[0].form}
        assert found.group(group.id) is group


def test_patches_of_ended_runs_are_read_from_the_archive(archive: Archive, make_run: Make) -> None:
    """What has not ended, left nothing or cannot be read is not taken for a patch."""
    patch = diff("+x")
    name = Journal(archive, "one").put_blob(patch)
    for run, sealed in (("one", {"patch.diff": name}), ("empty", {}), ("gone", {"patch.diff": "0" * 64})):
        make_run(run, claimed(), Finished(), Sealed(outcome="changed", artifacts=sealed), target=run)
    make_run("open", claimed(), target="open")

    found = list(gathered(archive, views(archive, ["one", "empty", "gone", "open"]).found))

    assert [(one.run, one.patch, one.why, one.verdict) for one in found] == [
        ("one", patch, "", "changed"),
        ("gone", None, "its patch is not in the archive", "changed"),
    ]
