"""The file tools as the container runs them: files.py as a program on real folders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "sandbox_images" / "toolbox" / "files.py"
CPYTHON = Path(sysconfig.get_path("stdlib")) / "test"

REAL_FILES = {
    "encoded_modules/module_koi8_r.py": b'# -*- encoding: koi8-r -*-\ntest = "\xf0\xcf\xda\xce\xc1\xce\xc9\xc5"\n',
    "encoded_modules/module_iso_8859_1.py": b'# -*- encoding: iso-8859-1 -*-\ntest = "oubli\xe9"\n',
    "tokenizedata/tokenize_tests-utf8-coding-cookie-and-utf8-bom-sig.txt": b"\xef\xbb\xbf# -*- coding: utf-8 -*-\n",
    "tokenizedata/tokenize_tests-latin1-coding-cookie-and-utf8-bom-sig.txt": b"\xef\xbb\xbf#coding: latin1\n",
    "tokenizedata/bad_coding.py": b"# -*- coding: uft-8 -*-\n",
    "tokenizedata/coding20731.py": b"#coding:latin1\r\n\r\n\r\n\r\n",
}
"""CPython's own files. A distribution may leave its tests out: then these bytes, made in their likeness, stand in."""


def real_file(name: str) -> bytes:
    path = CPYTHON / name
    return path.read_bytes() if path.exists() else REAL_FILES[name]


def run(root: Path, tool: str, /, folder: str = "", **arguments: object) -> tuple[int, str]:
    request = json.dumps({"tool": tool, "folder": folder, "arguments": arguments})
    done = subprocess.run(
        [sys.executable, "-I", PROGRAM, root], input=request.encode(), capture_output=True, timeout=60, check=False
    )
    assert done.stderr == b""
    return done.returncode, done.stdout.decode().removesuffix("\n")


def edit(root: Path, path: str, old: str, new: str) -> tuple[int, str]:
    return run(root, "edit_file", path=path, old_text=old, new_text=new)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "repo"
    made.mkdir()
    return made


# Editing (T16 to T21)


def test_a_straight_quote_is_replaced_and_a_curly_one_stays(root: Path) -> None:
    """T16: an exact match is bytes, not look-alikes."""
    file = root / "a.py"
    file.write_text('greeting = "hi"\ngreeting = “hi”\n')
    assert edit(root, "a.py", 'greeting = "hi"', 'greeting = "hello"')[0] == 0
    assert file.read_text() == 'greeting = "hello"\ngreeting = “hi”\n'


def test_two_exact_matches_are_refused_with_their_lines(root: Path) -> None:
    """T16: the count and the lines are given and the file stays."""
    file = root / "a.py"
    file.write_text("x = 1\ny = 2\nx = 1\n")
    code, text = edit(root, "a.py", "x = 1", "x = 2")
    assert (code, file.read_text()) == (1, "x = 1\ny = 2\nx = 1\n")
    assert "2 times, at lines 1, 3" in text


def test_overlapping_matches_are_two(root: Path) -> None:
    """A match that overlaps itself is not unique."""
    (root / "a").write_text("aaa")
    code, text = edit(root, "a", "aa", "b")
    assert code == 1
    assert "2 times" in text


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "a\nB", b"a\r\nB\r\nc\r\n"),
        (b"a\r\nb\n", "a\nb", "a\nB", b"a\r\nB\n"),
        (b"a\r\nb\nc\n", "b\nc", "b\nx\nc", b"a\r\nb\nx\nc\n"),
        (b"a\r\nb\r\n", "b", "b\nx", b"a\r\nb\r\nx\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\nb\nc\n", "a\nc\n", b"a\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "A\nb", b"A\nb\r\n"),
        (b"x\r\nb\r\n", "\nb", "\nB", b"x\r\nB\r\n"),
    ],
)
def test_line_endings_of_a_file_are_kept(root: Path, before: bytes, old: str, new: str, after: bytes) -> None:
    """T17: a plain newline stands for the file's own ending, and untouched lines keep theirs."""
    (root / "f").write_bytes(before)
    code, text = edit(root, "f", old, new)
    assert (code, (root / "f").read_bytes()) == (0, after), text


def test_a_byte_order_mark_stays_at_the_start_and_is_not_shown(root: Path) -> None:
    """T18: one mark, before and after, and the old text matches on line 1."""
    (root / "m.py").write_bytes(b"\xef\xbb\xbfimport os\n")
    assert run(root, "read_file", path="m.py")[1].split("\n")[1] == "1\timport os"
    assert edit(root, "m.py", "import os", "import sys")[0] == 0
    assert (root / "m.py").read_bytes() == b"\xef\xbb\xbfimport sys\n"


def test_one_foreign_byte_survives_an_edit_elsewhere(root: Path) -> None:
    """T19: 0x99 on line 999 is untouched by an edit of line 1."""
    lines = [b"line %d" % n for n in range(1, 1001)]
    lines[998] = b"caf\x99"
    (root / "f").write_bytes(b"\n".join(lines) + b"\n")
    assert edit(root, "f", "line 1\n", "LINE 1\n")[0] == 0
    lines[0] = b"LINE 1"
    assert (root / "f").read_bytes() == b"\n".join(lines) + b"\n"


@pytest.mark.parametrize("name", sorted(REAL_FILES))
def test_cpythons_odd_files_keep_every_other_byte(root: Path, name: str) -> None:
    """T18, T19: one ASCII text of CPython's own encoding tests is edited, all else stays."""
    before = real_file(name)
    (root / "f").write_bytes(before)
    assert run(root, "read_file", path="f")[0] == 0
    code, text = edit(root, "f", "coding:", "coding :")
    assert (code, before.count(b"coding:")) == (0, 1), text
    assert (root / "f").read_bytes() == before.replace(b"coding:", b"coding :")


def test_other_letters_are_not_put_into_a_koi8_file(root: Path) -> None:
    """T19: an edit that would mix encodings is refused with the encoding named."""
    (root / "f.py").write_bytes(real_file("encoded_modules/module_koi8_r.py"))
    code, text = edit(root, "f.py", "test", "тест")
    assert code == 1
    assert "koi8-r" in text
    assert (root / "f.py").read_bytes() == real_file("encoded_modules/module_koi8_r.py")


def test_tabs_stay_and_blanks_do_not_match_them(root: Path) -> None:
    """T20: an edit of a Makefile keeps its tabs; blanks instead are not found, with a hint."""
    (root / "Makefile").write_text("all:\n\techo hi\n\techo yo\n")
    assert edit(root, "Makefile", "\techo hi", "\techo ho")[0] == 0
    assert (root / "Makefile").read_text() == "all:\n\techo ho\n\techo yo\n"
    code, text = edit(root, "Makefile", "        echo yo", "        echo yes")
    assert code == 1
    assert r"other whitespace it is at line 3, which reads '\techo yo'" in text
    assert (root / "Makefile").read_text() == "all:\n\techo ho\n\techo yo\n"


@pytest.mark.parametrize(("before", "after"), [(b"a\nb", b"A\nb"), (b"a\nb\n", b"A\nb\n")])
def test_the_end_of_a_file_stays_as_it_is(root: Path, before: bytes, after: bytes) -> None:
    """T21: a final newline is neither added nor taken."""
    (root / "f").write_bytes(before)
    assert edit(root, "f", "a", "A")[0] == 0
    assert (root / "f").read_bytes() == after


def test_a_new_file_holds_exactly_its_content(root: Path) -> None:
    """T21: one byte asked for is one byte written, folders are made on the way."""
    assert run(root, "write_file", path="new/deep/x", content="x") == (0, "new/deep/x: written, 1 bytes, 1 lines")
    assert (root / "new/deep/x").read_bytes() == b"x"
    assert os.listdir(root / "new/deep") == ["x"]


def test_large_content_arrives_byte_for_byte(root: Path) -> None:
    """T32: 300 KB with shell characters and both line endings."""
    content = "EOF\n'\"$HOME `x` \\ \\n\r\n" * 15_000
    assert run(root, "write_file", path="big", content=content)[0] == 0
    assert (root / "big").read_bytes() == content.encode()


def test_a_file_keeps_its_mode(root: Path) -> None:
    """Writing and editing leave the executable bit."""
    (root / "run.sh").write_text("echo hi\n")
    (root / "run.sh").chmod(0o755)
    edit(root, "run.sh", "hi", "ho")
    run(root, "write_file", path="run.sh", content="echo he\n")
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("x", "x", "are the same"), ("", "x", "old_text is empty"), ("1\ta", "b", "line numbers")],
)
def test_an_edit_that_makes_no_sense_is_explained(root: Path, old: str, new: str, said: str) -> None:
    """A pointless edit changes nothing and says why."""
    (root / "f").write_text("a\n")
    code, text = edit(root, "f", old, new)
    assert code == 1
    assert said in text


# Reading (T22, T24)


def test_a_minified_line_is_read_in_parts(root: Path) -> None:
    """T22: 1.7 MB in one line: capped, the true length said, every part in reach, the same each time."""
    (root / "min.js").write_text("var a=1;" * 212_500)
    first = run(root, "read_file", path="min.js")
    assert first == run(root, "read_file", path="min.js") == run(root, "read_file", path="min.js")
    code, text = first
    assert code == 0
    assert 30_000 < len(text) < 41_000
    assert "this line has 1700000 characters" in text
    start = int(text.rsplit("start_column=", 1)[1].rstrip("]"))
    part = run(root, "read_file", path="min.js", start_line=1, end_line=1, start_column=start)[1].split("\n")[1]
    assert part.removeprefix("1\t").startswith("var a=1;"[(start - 1) % 8 :])


def test_lines_end_at_newlines_only(root: Path) -> None:
    """T24: form feed, U+2028 and a lone carriage return do not make a line, and an edit elsewhere keeps them."""
    text = "def a():\n    return 1\n\n\f\ndef b():\n    X = 1\n"
    (root / "f.py").write_text(text)
    assert run(root, "read_file", path="f.py", start_line=6)[1].split("\n") == [
        "f.py: lines 6-6 of 6 (44 bytes)",
        "6\t    X = 1",
    ]
    (root / "g.py").write_bytes('s = "a\u2028b\rc"\nt = 1\n'.encode())
    assert "of 2 (" in run(root, "read_file", path="g.py")[1]
    assert edit(root, "g.py", "t = 1", "t = 2")[1] == "g.py: edited at line 2 (1 lines of old text, 1 of new)"
    assert (root / "g.py").read_bytes() == 's = "a\u2028b\rc"\nt = 2\n'.encode()


def test_a_long_file_is_read_on_from_where_it_was_cut(root: Path) -> None:
    """The cut names the next line, and reading on loses nothing."""
    (root / "f").write_text("".join(f"{n} {'x' * 50}\n" for n in range(1, 3001)))
    seen, start = [], 1
    while start <= 3000:
        lines = run(root, "read_file", path="f", start_line=start)[1].split("\n")
        seen += [line.split("\t")[1].split()[0] for line in lines[1:] if "\t" in line]
        start = int(lines[-1].rsplit("=", 1)[1].rstrip("]")) if lines[-1].startswith("[...") else 3001
    assert seen == [str(n) for n in range(1, 3001)]


@pytest.mark.parametrize(
    ("content", "said"), [(b"\x7fELF\0\0", "binary"), (b"\xff\xfea\0", "UTF-16"), (b"", "an empty file")]
)
def test_what_is_no_text_is_named(root: Path, content: bytes, said: str) -> None:
    """Binary and UTF-16 files are refused by name, an empty one is no error."""
    (root / "f").write_bytes(content)
    assert said in run(root, "read_file", path="f")[1]


def test_controls_in_a_file_are_shown_as_escapes(root: Path) -> None:
    """Nothing that a file holds can act on a terminal, and foreign bytes are readable."""
    (root / "f").write_bytes(b"\x1b[31mred\xff\n")
    assert run(root, "read_file", path="f")[1].split("\n")[1] == r"1	\x1b[31mred\xff"


@pytest.mark.parametrize("kind", ["fifo", "folder", "missing"])
def test_what_is_no_file_is_refused_at_once(root: Path, kind: str) -> None:
    """A pipe does not block and a folder is no file."""
    if kind == "fifo":
        os.mkfifo(root / "f")
    elif kind == "folder":
        (root / "f").mkdir()
    for tool, arguments in (("read_file", {}), ("edit_file", {"old_text": "a", "new_text": "b"})):
        assert run(root, tool, path="f", **arguments)[0] == 1


# Staying inside (T23, H42)


@pytest.fixture
def outside(root: Path) -> Path:
    made = root.parent / "outside"
    made.mkdir()
    (made / "v.txt").write_text("secret\n")
    (root / "notes.md").symlink_to(made / "v.txt")
    (root / "dangling").symlink_to(made / "new.txt")
    (root / "folder").symlink_to(made)
    (root / "near").symlink_to("../outside/v.txt")
    (root / "hop").symlink_to("folder/v.txt")
    return made


@pytest.mark.parametrize(
    "path", ["notes.md", "dangling", "folder/v.txt", "folder/new.txt", "near", "hop", "../outside/v.txt", "ABSOLUTE"]
)
@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file"])
def test_no_path_leads_out(root: Path, outside: Path, path: str, tool: str) -> None:
    """T23: links and dots that leave are refused with where they lead, and nothing there changes."""
    path = str(outside / "v.txt") if path == "ABSOLUTE" else path
    arguments = {"write_file": {"content": "x"}, "edit_file": {"old_text": "secret", "new_text": "x"}}.get(tool, {})
    code, text = run(root, tool, path=path, **arguments)
    assert code == 1
    assert f"leads to {outside}" in text
    assert [(file.name, file.read_text()) for file in outside.iterdir()] == [("v.txt", "secret\n")]


def test_listing_and_searching_do_not_follow_links_out(root: Path, outside: Path) -> None:
    """T23: a linked folder is shown as a link and refused when asked for."""
    assert f"folder -> {outside}" in run(root, "list_files")[1].split("\n")
    assert run(root, "list_files", path="folder")[0] == 1
    assert run(root, "search", pattern="secret", path="folder")[0] == 1


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "a/../../x", "x\0y", "a/../../repo/f"])
def test_hostile_paths_are_refused(root: Path, path: str) -> None:
    """H42: dots, absolute paths and NUL."""
    (root / "a").mkdir()
    (root / "f").write_text("x")
    assert run(root, "read_file", path=path)[0] == 1


def test_links_within_the_tree_and_absolute_paths_within_it_work(root: Path) -> None:
    """What stays inside is allowed: a link is written through, not replaced."""
    (root / "real").mkdir()
    (root / "real/f").write_text("a\n")
    (root / "link").symlink_to(root / "real")
    assert edit(root, str(root / "link/f"), "a", "b")[0] == 0
    assert (root / "link").is_symlink()
    assert (root / "real/f").read_text() == "b\n"


def test_a_circle_of_links_ends(root: Path) -> None:
    """A link to itself is refused, not followed for ever."""
    (root / "loop").symlink_to("loop")
    assert "circle" in run(root, "read_file", path="loop")[1]


def test_a_link_that_is_swapped_in_meanwhile_leads_nowhere(root: Path, outside: Path) -> None:
    """H42: while a folder and a link out of the tree take turns under one name, no write ever lands outside."""
    (root / "real").mkdir()
    swapper = (
        "import os, sys\nos.chdir(sys.argv[1])\nos.symlink(sys.argv[2], 'out')\nprint(flush=True)\n"
        "while True:\n os.rename('real', 'd'); os.rename('d', 'real'); os.rename('out', 'd'); os.rename('d', 'out')\n"
    )
    with subprocess.Popen([sys.executable, "-c", swapper, root, outside], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        codes = {run(root, "write_file", path="d/v.txt", content="breach")[0] for _ in range(25)}
        process.kill()
    assert codes <= {0, 1}
    assert [(file.name, file.read_text()) for file in outside.iterdir()] == [("v.txt", "secret\n")]


# Listing and searching


def test_a_folder_is_listed_to_a_depth(root: Path) -> None:
    """Folders end in a slash, what nobody reads is named but not entered."""
    for name in ("src/pkg/deep/a.py", "node_modules/x/y.js", "b c.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    assert run(root, "list_files") == (0, "b c.txt\nnode_modules/ (not listed)\nsrc/\nsrc/pkg/")
    assert run(root, "list_files", folder="src", depth=3) == (0, "pkg/\npkg/deep/\npkg/deep/a.py")


def test_names_that_are_no_text_are_shown_as_escapes(root: Path) -> None:
    """T15: a name with byte 0xFF, a newline or an escape sequence makes one harmless line."""
    (Path(os.fsdecode(os.fsencode(root) + b"/a\xff\n\x1b[2J"))).write_text("")
    assert run(root, "list_files") == (0, r"a\xff\n\x1b[2J")


needs_ripgrep = pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep lives in the toolbox image")


@needs_ripgrep
def test_a_search_gives_path_line_and_text(root: Path) -> None:
    """Matches are named by the path a model would use; no match is a result."""
    (root / "src").mkdir()
    (root / "src/a.py").write_text("x\nneedle(1)\n")
    assert run(root, "search", pattern=r"needle\(") == (0, "src/a.py:2:needle(1)")
    assert run(root, "search", pattern="needle", path="src") == (0, "src/a.py:2:needle(1)")
    assert run(root, "search", pattern="needle", path="src/a.py") == (0, "src/a.py:2:needle(1)")
    assert run(root, "search", pattern="needle", path="a.py", folder="src") == (0, "a.py:2:needle(1)")
    assert run(root, "search", pattern="nothing") == (0, "no line matches 'nothing' in .")


@needs_ripgrep
@pytest.mark.parametrize("pattern", ["; touch x", "$(touch x)", "`touch x`", "a\nb", "--files", "-e", "' \""])
def test_a_pattern_is_passed_as_it_is(root: Path, pattern: str) -> None:
    """H43: neither a shell nor ripgrep's options see it."""
    (root / "f").write_text(f"before {pattern} after\n")
    code, text = run(root, "search", pattern=pattern, literal=True)
    assert os.listdir(root) == ["f"]
    assert text.startswith("f:1:") or (code == 1 and "\n" in pattern)


@needs_ripgrep
def test_a_wrong_pattern_is_explained(root: Path) -> None:
    """ripgrep's own words reach the model."""
    code, text = run(root, "search", pattern="needle(")
    assert code == 1
    assert "unclosed group" in text


@needs_ripgrep
def test_many_matches_are_cut_with_a_hint(root: Path) -> None:
    """At most 200 lines are shown."""
    (root / "f").write_text("x\n" * 1000)
    lines = run(root, "search", pattern="x")[1].split("\n")
    assert len(lines) == 201
    assert "more than 200 lines match" in lines[-1]
