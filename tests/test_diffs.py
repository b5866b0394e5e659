"""A patch as a page shows it: what stands in it is shown, whatever stands in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unidiff import PatchSet

from scheduler.reports.harmless import plain
from scheduler.web.patches import diffs, highlight
from scheduler.web.patches.diffs import FileChange, Row, Window
from scheduler.web.patches.highlight import Allowance
from worker.contract.difftext import name_said

EDIT = b"""diff --git a/src/cart.py b/src/cart.py
index 1111111111111111111111111111111111111111..2222222222222222222222222222222222222222 100644
--- a/src/cart.py
+++ b/src/cart.py
@@ -1,4 +1,5 @@ class Cart:
 import os
-total = 1
+total = 2
+tax = "3"
 # end
 done
@@ -40,2 +41 @@
 last
-gone
\\ No newline at end of file
"""

PIECES = st.sampled_from(
    [
        b"diff --git a/x b/x\n",
        b'diff --git "a/\\"><b>\\001" "b/\\"><b>\\001"\n',
        b"diff --git \n",
        b"new file mode 100644\n",
        b"deleted file mode 100644\n",
        b"old mode 100644\n",
        b"new mode 100755\n",
        b"rename from a\n",
        b'rename to "\\9\\1\\777"\n',
        b"index 1..2\n",
        b"--- a/x\n",
        b"+++ b/x\n",
        b"@@ -1 +1 @@\n",
        b"@@ -1,2 +1,3 @@ here\n",
        b"@@ -0,0 +1 @@\n",
        b"@@ -99999999999 +1 @@\n",
        b"@@ -\n",
        b"-old\n",
        b"+new\r\n",
        b"+\xff\xfe\n",
        b" same\n",
        b"\n",
        b"+++ x\n",
        b"--- x\n",
        b"\\ No newline at end of file\n",
        b"\\ else\n",
        b"GIT binary patch\n",
        b"Binary files a and b differ\n",
        b"+\x00\x0c\x85\n",
        b"+<script>alert(1)</script>",
    ]
)
PATCHES = st.one_of(
    st.binary(max_size=300), st.lists(st.one_of(PIECES, st.binary(max_size=8)), max_size=40).map(b"".join)
)
LINES = st.lists(
    st.one_of(
        st.binary(max_size=6), st.sampled_from([b"-- a", b"++ b", b"@@ -1 +1 @@", b"diff --git a/x b/x", b"\r"])
    ),
    max_size=30,
)


def windows(patch: bytes, file: FileChange, most: int = diffs.ROWS) -> list[Window]:
    """All windows of a file."""
    found = [diffs.window(patch, file, 0, most)]
    while found[-1].stop < found[-1].total:
        found.append(diffs.window(patch, file, found[-1].stop, most))
    return found


def rows(patch: bytes, file: FileChange, most: int = diffs.ROWS) -> list[Row]:
    return [row for part in windows(patch, file, most) for hunk in part.hunks for row in hunk.rows]


@given(PATCHES, st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_shown_whole_and_none_is_an_error(patch: bytes, most: int) -> None:
    """T68, T21: every byte of a file's hunks, or of what is shown as text, stands on its pages, in order."""
    read = diffs.read(patch)

    assert b"".join(patch[file.start : file.stop] for file in read.files) == patch
    for file in read.files:
        parts = windows(patch, file, most)
        shown = patch[file.start : file.stop].decode("utf-8", "backslashreplace")
        if parts[0].raw is not None:
            assert "".join(part.raw or "" for part in parts) == shown
            continue
        lines = [row.sign + row.text for row in rows(patch, file, most)]
        body = patch[file.body : file.stop].decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
        assert lines == [line for line in body if not line.startswith("@@ -")] or (
            file.body == file.stop and not lines
        )
        for row in rows(patch, file, most):
            assert "".join(text for _, text in row.spans) == row.text


@given(LINES, LINES)
@settings(max_examples=25, deadline=None)
def test_what_git_writes_is_read_as_unidiff_reads_it(
    tmp_path_factory: pytest.TempPathFactory, old: list[bytes], new: list[bytes]
) -> None:
    """Rows and numbers of a real diff, read in small windows, are those of a library that reads it all at once."""
    folder = tmp_path_factory.mktemp("sides")
    for name, lines in (("old", old), ("new", new)):
        (folder / name).write_bytes(b"\n".join(lines))
    patch = git_diff(folder)
    read = diffs.read(patch)
    assert len(read.files) == (1 if patch else 0)

    for file in read.files:
        if file.binary or file.body == file.stop:
            continue
        known = PatchSet.from_string(patch.decode("utf-8", "backslashreplace"))[0]
        told = [
            (line.line_type, line.source_line_no, line.target_line_no, line.value.removesuffix("\n"))
            for hunk in known
            for line in hunk
        ]
        assert [(row.sign, row.old, row.new, row.text) for row in rows(patch, file, 3)] == told
        assert (file.added, file.removed) == (known.added, known.removed)


def git_diff(folder: Path) -> bytes:
    """What git says of two files that this test wrote."""
    command = ["git", "diff", "--no-index", "--binary", "--text", "old", "new"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False).stdout


def test_a_file_tells_its_lines_with_their_numbers() -> None:
    """Old and new numbers go on across hunks, and the mark of a missing newline has none."""
    (file,) = diffs.read(EDIT).files

    assert (file.kind, file.path, file.added, file.removed) == ("changed", "src/cart.py", 2, 2)
    assert [(row.sign, row.old, row.new) for row in rows(EDIT, file)] == [
        (" ", 1, 1), ("-", 2, None), ("+", None, 2), ("+", None, 3), (" ", 3, 4), (" ", 4, 5),
        (" ", 40, 41), ("-", 41, None), ("\\", None, None),
    ]  # fmt: skip


def test_side_by_side_a_change_stands_beside_what_it_replaced() -> None:
    """Removed lines and those added after them share rows; each side keeps its order and its mark."""
    (file,) = diffs.read(EDIT).files

    told = [
        (left and left.text, right and right.text)
        for hunk in diffs.window(EDIT, file).hunks
        for left, right in diffs.pairs(hunk.rows)
    ]

    assert told == [
        ("import os", "import os"),
        ("total = 1", "total = 2"),
        (None, 'tax = "3"'),
        ("# end", "# end"),
        ("done", "done"),
        ("last", "last"),
        ("gone", None),
        (" No newline at end of file", None),
    ]


@pytest.mark.parametrize(
    ("patch", "kind", "binary", "old", "new"),
    [
        (b"diff --git a/n b/n\nnew file mode 100644\nindex 0..1\n", "added", False, "n", "n"),
        (b"diff --git a/n b/n\ndeleted file mode 100644\n@@ -1 +0,0 @@\n-x\n", "removed", False, "n", "n"),
        (b"diff --git a/n b/m\nsimilarity index 100%\nrename from n\nrename to m\n", "renamed", False, "n", "m"),
        (b"diff --git a/n b/n\nold mode 100644\nnew mode 100755\n", "mode", False, "n", "n"),
        (b"diff --git a/n b/n\nindex 1..2 100644\nGIT binary patch\nliteral 3\nKcmZ>\n\n", "changed", True, "n", "n"),
        (b'diff --git "a/\\"><b>\\303\\244" "b/\\"><b>\\303\\244"\nold mode 1\n', "mode", False, '"><b>ä', '"><b>ä'),
        (b"not a diff at all", "text", False, "", ""),
    ],
)  # fmt: skip
def test_each_kind_of_change_is_told(patch: bytes, kind: str, binary: bool, old: str, new: str) -> None:
    """T68, T44: what git says of a file, and its real name whatever it is."""
    (file,) = diffs.read(patch).files
    assert (file.kind, file.binary, file.old, file.new) == (kind, binary, old, new)


def test_a_hunk_that_does_not_fit_its_header_is_shown_as_text() -> None:
    """Lines that the numbers hide would be hidden from who approves."""
    patch = EDIT.replace(b"@@ -1,4 +1,5 @@", b"@@ -1,4 +1,4 @@")
    (file,) = diffs.read(patch).files

    assert diffs.window(patch, file).raw == patch.decode()


def test_a_line_of_a_megabyte_is_cut_and_says_so() -> None:
    """What is left out of a line is counted, and it takes no colours."""
    patch = b"diff --git a/a.js b/a.js\n--- a/a.js\n+++ b/a.js\n@@ -0,0 +1 @@\n+" + b"x" * 2**20 + b"\n"
    (row,) = rows(patch, diffs.read(patch).files[0])

    assert (len(row.text), row.more) == (diffs.LINE_BYTES, 2**20 - diffs.LINE_BYTES)
    assert row.spans == (("", row.text),)


def test_a_patch_of_files_without_end_is_counted() -> None:
    """What is not listed is told in number."""
    patch = b"diff --git a/x b/x\n" * (diffs.FILES_MAX + 7)
    read = diffs.read(patch)
    assert (len(read.files), read.more_files) == (diffs.FILES_MAX, 7)


def test_a_file_of_hunks_without_end_is_text() -> None:
    """A patch made of headers does not become a million objects."""
    patch = b"diff --git a/x b/x\n" + b"@@ -1 +1 @@\n-a\n+b\n" * (diffs.HUNKS_MAX + 1)
    part = diffs.window(patch, diffs.read(patch).files[0])
    assert part.hunks == ()
    assert part.raw is not None
    assert len(part.raw) <= diffs.RAW_BYTES


def test_code_has_colours() -> None:
    """A lexer chosen by the file's name reads each side as it stands in the file."""
    (file,) = diffs.read(EDIT).files
    added = [row.spans for row in rows(EDIT, file) if row.sign == "+"]

    assert ("c-mi", "2") in added[0]
    assert any(kind.startswith("c-s") for kind, _ in added[1])


def test_when_the_time_is_used_up_text_is_plain() -> None:
    """Colours are given up, never the text."""
    (file,) = diffs.read(EDIT).files
    part = diffs.window(EDIT, file, allowance=Allowance(0))

    assert {kind for hunk in part.hunks for row in hunk.rows for kind, _ in row.spans} == {""}
    assert [row.text for hunk in part.hunks for row in hunk.rows] == [row.text for row in rows(EDIT, file)]


@given(st.sampled_from(sorted({*highlight.BY_SUFFIX})), st.lists(st.text(max_size=30), max_size=12))
@settings(max_examples=60, deadline=None)
def test_no_lexer_changes_a_text(suffix: str, lines: list[str]) -> None:
    """What comes out of a lexer is what went in, or has no colours."""
    lines = [line.replace("\n", "") for line in lines]
    for line, spans in zip(lines, highlight.highlighted(f"a.{suffix}", lines, Allowance()), strict=True):
        assert not spans or "".join(text for _, text in spans) == line


def test_a_name_in_quotes_may_hold_anything() -> None:
    """A backslash before what git never writes there is no error."""
    assert name_said(b'"\\9\\n\\\\"') == "9\n\\"


@given(st.text())
def test_printable_text_is_harmless_as_it_stands(text: str) -> None:
    """The short way for printable text says the same as a look at each letter."""
    assert plain(text) == "".join(plain(f"\x00{letter}").removeprefix("\\x00") for letter in text)
