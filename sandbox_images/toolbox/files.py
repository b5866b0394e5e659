"""Owns the file tools inside their container: list, read, search, write, edit. Refuses every path that leaves ROOT.

usage: files.py [ROOT] < request      (ROOT: /workspace/repo)

The request is JSON: {"tool": NAME, "folder": where relative paths begin, below ROOT, "arguments": {...}}. The text
for the model goes to stdout; exit code 0, or 1 when the text says why nothing was done. Lines end at \\n only.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # -I leaves the program's own folder out

from beneath import Place, Refused, Root, exists, kind, open_file, open_folder, replace
from edits import edited, encoding, is_utf8, line_count

FILE_BYTES_MAX = 64 * 2**20
SHOWN_BYTES = 40_000
SHOWN_LINES = 2_000
SHOWN_LINE_CHARS = 2_000
LISTED_MAX = 1_000
FOUND_MAX = 200
FOUND_LINE_CHARS = 400
NOT_LISTED = frozenset({".git", "node_modules", "__pycache__", ".venv", ".tox", ".mypy_cache", ".pytest_cache"})
BOM = b"\xef\xbb\xbf"


def list_files(root: Root, path: str = ".", depth: int = 2) -> str:
    """Paths below a folder, relative to it, folders with a trailing slash, links with their target."""
    place = root.find(path)
    with open_folder(place, path) as folder:
        found = list(_walk(folder, "", depth))
    shown = found[:LISTED_MAX]
    if len(found) > len(shown):
        shown.append(f"[... {len(found) - len(shown)} more; list a folder below, or use a smaller depth]")
    return "\n".join(shown) or f"{path} is an empty folder"


def _walk(folder: int, prefix: str, depth: int) -> Iterator[str]:
    for name in sorted(os.listdir(folder)):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        shown = prefix + _name(name)
        if stat.S_ISLNK(mode):
            yield f"{shown} -> {_name(os.readlink(name, dir_fd=folder))}"
        elif not stat.S_ISDIR(mode):
            yield shown
        elif name in NOT_LISTED:
            yield f"{shown}/ (not listed)"
        else:
            yield f"{shown}/"
            if depth > 1:
                try:
                    below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                except PermissionError:
                    yield f"{shown}/ (permission denied)"
                    continue
                yield from _walk(below, f"{shown}/", depth - 1)
                os.close(below)


def read_file(root: Root, path: str, start_line: int = 1, end_line: int | None = None, start_column: int = 1) -> str:
    """Numbered lines of a text file, at most SHOWN_BYTES of them, under a heading that says what there is."""
    data, _ = _read(root.find(path), path)
    body = data.removeprefix(BOM)
    lines = body.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        return f"{path}: an empty file ({len(data)} bytes)"
    last = min(len(lines), end_line or start_line + SHOWN_LINES - 1)
    if not start_line <= last:
        raise Refused(f"{path} has {len(lines)} lines; line {start_line} to {end_line or 'the end'} is no part of it")
    notes = [f"{len(data)} bytes", *_notes(body, lines)]
    shown: list[str] = []
    following, rest = start_line, SHOWN_BYTES
    for number in range(start_line, last + 1):
        line = f"{number}\t{_column(lines[number - 1], number, start_column, start_line == last)}"
        rest -= len(line.encode()) + 1
        if rest < 0 and shown:
            break
        shown.append(line)
        following = number + 1
    if following <= len(lines):
        shown.append(f"[... {len(lines) - following + 1} more lines; go on with start_line={following}]")
    heading = f"{path}: lines {start_line}-{following - 1} of {len(lines)} ({', '.join(notes)})"
    return "\n".join([heading, *shown])


def _column(line: bytes, number: int, start: int, alone: bool) -> str:
    """The line from a column on, cut to what may be shown of one line."""
    text = line.removesuffix(b"\r").decode("utf-8", "backslashreplace")
    cut = _clip(text[start - 1 :], SHOWN_BYTES - 1_000) if alone else text[start - 1 :][:SHOWN_LINE_CHARS]
    following = start + len(cut)
    if following > len(text):
        return _visible(cut)
    more = f"start_line={number}, end_line={number}, start_column={following}"
    return f"{_visible(cut)} [... cut: this line has {len(text)} characters; go on with {more}]"


def _notes(body: bytes, lines: list[bytes]) -> list[str]:
    """What the reader cannot see in the lines."""
    notes = []
    crlf = body.count(b"\r\n")
    if crlf:
        notes.append(
            "CRLF line endings" if crlf == body.count(b"\n") else f"{crlf} of {len(lines)} lines end in CRLF"
        )
    if not body.endswith(b"\n"):
        notes.append("no newline at the end")
    if not is_utf8(body):
        notes.append(f"not UTF-8 but {encoding(body)}: other bytes are shown as \\xNN")
    return notes


def search(
    root: Root,
    pattern: str,
    path: str = ".",
    glob: str | None = None,
    ignore_case: bool = False,
    literal: bool = False,
) -> str:
    """Lines that match, as path:line:text, from ripgrep. No match is a result, not an error."""
    place = root.find(path)
    exists(place, path)
    prefix = "" if path in (".", "./") else path.rstrip("/")
    command = ["rg", "--no-config", "--no-messages", "--color=never", "--no-heading", "--with-filename", "--null"]
    command += [
        "--line-number",
        "--sort=path",
        "--hidden",
        f"--max-columns={FOUND_LINE_CHARS}",
        "--max-columns-preview",
    ]
    command += [f"--glob={glob}"] if glob else []
    command += ["--glob=!.git", *["--ignore-case"] * ignore_case, *["--fixed-strings"] * literal]
    command += [f"--regexp={pattern}", "--", f"./{place.name}" if place.name else "."]
    os.fchdir(place.folder)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as rg:
        assert rg.stdout is not None
        assert rg.stderr is not None
        found = [line for line, _ in zip(rg.stdout, range(FOUND_MAX + 1), strict=False)]
        if len(found) > FOUND_MAX:
            rg.kill()
        problem = rg.stderr.read().decode("utf-8", "replace").strip()
    if not found and problem:
        raise Refused(f"{problem}\nThe pattern is a regular expression; set literal to search for it as it stands.")
    shown = [_found(line, place.name, prefix) for line in found[:FOUND_MAX]]
    if len(found) > FOUND_MAX:
        shown.append(f"[... more than {FOUND_MAX} lines match; narrow the pattern, path or glob]")
    return "\n".join(shown) or f"no line matches {pattern!r} in {path}"


def _found(line: bytes, start: str, prefix: str) -> str:
    """ripgrep's line with the path as the model would write it."""
    name, _, rest = line.rstrip(b"\r\n").partition(b"\0")
    below = _name(os.fsdecode(name)).removeprefix("./").removeprefix(start).lstrip("/")
    shown = "/".join(part for part in (prefix, below) if part)
    return f"{shown}:{_visible(rest.decode('utf-8', 'backslashreplace'))}"


def write_file(root: Root, path: str, content: str) -> str:
    """Exactly these bytes under that path; missing folders are made, an existing file keeps its mode."""
    place = root.find(path)
    mode = None
    if not place.missing and kind(place) is not None:
        with open_file(place, path) as file:
            mode = stat.S_IMODE(os.fstat(file).st_mode)
    data = content.encode()
    replace(place, data, mode)
    return f"{path}: {'written' if mode is None else 'overwritten'}, {len(data)} bytes, {line_count(data)} lines"


def edit_file(root: Root, path: str, old_text: str, new_text: str) -> str:
    """Replace the one place that holds old_text. No byte outside of it changes."""
    if old_text == new_text:
        raise Refused("old_text and new_text are the same; nothing was done")
    if not old_text:
        raise Refused("old_text is empty; use write_file to make a file, or quote the text to replace")
    place = root.find(path)
    data, mode = _read(place, path)
    body = data.removeprefix(BOM)
    old, new = old_text.encode(), new_text.encode()
    if not new.isascii() and not is_utf8(body):
        raise Refused(f"{path} is not UTF-8 but {encoding(body)}; only ASCII text can be put into it here")
    changed, line = edited(body, old, new)
    replace(place, data[: len(data) - len(body)] + changed, mode)
    return f"{path}: edited at line {line} ({line_count(old)} lines of old text, {line_count(new)} of new)"


def _read(place: Place, path: str) -> tuple[bytes, int]:
    """The bytes of a text file and its mode."""
    with open_file(place, path) as file:
        status = os.fstat(file)
        if status.st_size > FILE_BYTES_MAX:
            part = "use run_command with head, tail or sed -n on it"
            raise Refused(f"{path} has {status.st_size} bytes, more than {FILE_BYTES_MAX}; {part}")
        with open(file, "rb", closefd=False) as stream:
            data = stream.read()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data:
        kind = "UTF-16 text" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "binary"
        raise Refused(f"{path} is {kind} ({len(data)} bytes), not a text file; use run_command for it")
    return data, stat.S_IMODE(status.st_mode)


def _clip(text: str, size: int) -> str:
    """The longest beginning of text with at most size bytes of UTF-8."""
    return text.encode("utf-8", "surrogatepass")[:size].decode("utf-8", "ignore")


def _name(name: str) -> str:
    """A file name as text: bytes that are not UTF-8, and control characters, are shown as escapes."""
    return _visible(os.fsencode(name).decode("utf-8", "backslashreplace")).replace("\n", "\\n").replace("\t", "\\t")


def _visible(text: str) -> str:
    """Control characters as escapes, so that no terminal and no later filter acts on them."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)


TOOLS = {tool.__name__: tool for tool in (list_files, read_file, search, write_file, edit_file)}


def main(arguments: list[str], request: dict[str, Any]) -> tuple[str, int]:
    """The text for the model and the exit code."""
    try:
        root = Root(arguments[0] if arguments else "/workspace/repo", request["folder"])
        return TOOLS[request["tool"]](root, **request["arguments"]), 0
    except Refused as refused:
        return str(refused), 1
    except OSError as error:
        return f"{request['arguments'].get('path', '.')}: {error.strerror}; nothing was done", 1


if __name__ == "__main__":
    text, code = main(sys.argv[1:], json.load(sys.stdin.buffer))
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
    sys.exit(code)
