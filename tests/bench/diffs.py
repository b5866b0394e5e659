"""Measures what patches cost the pages: one of 20 MiB in its worst shapes, a thousand alike and unlike, and lexers on
texts that were made against them. Refuses to be a test.

`PYTHONPATH=tests .venv/bin/python tests/bench/diffs.py [--lexers]`
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

from scheduler.web.patches import diffs
from scheduler.web.patches.groups import Changed, grouped
from scheduler.web.patches.highlight import BY_SUFFIX, CHUNK_CHARS, Allowance
from scheduler.web.patches.provenance import provenance

MIB = 2**20
SIZE = 20 * MIB
HEAD = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n"
SEEDS = (
    "' \" ( [ { < /* // # ` $ ${ a a. 1 1. _ = @ - -- & * %{ << <<a <!-- <a ''' f'{ a: | a, a:: #{ a=> 0x [] () {} "
    'a[ <% <?php $a-> .. e1 :: ~~ public \\ "\\'
)
"""Words that are repeated, and the blanks between them."""


def measured(name: str, work: Callable[[], object]) -> None:
    """Print the processor's time that it takes, and the memory it has at once (in a second go, a slower one)."""
    start = time.process_time()
    work()
    taken_s = time.process_time() - start
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{name:52} {1000 * taken_s:9.1f} ms {peak / MIB:8.1f} MiB", flush=True)


def shapes() -> Iterator[tuple[str, bytes]]:
    """Patches of 20 MiB."""
    lines = SIZE // 2
    yield (
        "one file of ten million empty lines",
        f"{HEAD.format('a.py')}@@ -0,0 +1,{lines} @@\n".encode() + b"+\n" * lines,
    )
    yield "one line", f"{HEAD.format('a.js')}@@ -0,0 +1 @@\n".encode() + b"+" + b"x" * SIZE + b"\n"
    code = b"+    return self.total(items, 1)  # sum\n"
    count = SIZE // len(code)
    yield "one file of code", f"{HEAD.format('a.py')}@@ -0,0 +1,{count} @@\n".encode() + code * count
    small = HEAD.format("src/file.py").encode() + b"@@ -1,2 +1,2 @@\n import os\n-a = 1\n+a = 2\n"
    yield "files of one small hunk", small * (SIZE // len(small))
    yield "nothing but headers of files", b"diff --git a b\n" * (SIZE // 15)
    yield "nothing but headers of hunks", HEAD.format("a").encode() + b"@@ -1 +1 @@\n" * (SIZE // 12)
    yield "no diff", b"x\n" * lines


def patches(kinds: int, count: int = 1_000, lines: int = 60) -> list[Changed]:
    """A batch of that many patches of so many kinds."""
    words, made = random.Random(7), []
    texts = [[" ".join(words.choices("abcdefghijklmnop", k=8)) for _ in range(lines)] for _ in range(kinds)]
    for number in range(count):
        added = "".join(f"+{line}\n" for line in texts[number % kinds])
        patch = f"{HEAD.format('src/setup.py')}@@ -0,0 +1,{lines} @@\n{added}".encode()
        made.append(Changed(f"run-{number}", f"repo{number}", hashlib.sha256(patch).hexdigest(), patch))
    return made


def lexers() -> None:
    """The slowest text of each lexer that may be used, of as many characters as it is handed at once, and of twice
    as many."""
    from pygments.lexers import find_lexer_class_by_name

    for alias in sorted({*BY_SUFFIX.values()}):
        worst = {}
        for chars in (CHUNK_CHARS, 2 * CHUNK_CHARS):
            found = []
            for seed in (*SEEDS.split(), " ", "\t", "\n", "a\n", "a "):
                for before in ("", "x = "):
                    text = before + (seed * chars)[:chars]
                    start = time.process_time()
                    for _ in find_lexer_class_by_name(alias)().get_tokens_unprocessed(text):
                        pass
                    found.append((time.process_time() - start, before + seed))
            worst[chars] = max(found)
        told = "   ".join(f"{chars} chars {1000 * taken:7.1f} ms {text!r}" for chars, (taken, text) in worst.items())
        print(f"{alias:12} {told}", flush=True)


def main() -> None:
    if "--lexers" in sys.argv:
        lexers()
        return
    for name, patch in shapes():
        measured(f"files: {name}", partial(diffs.read, patch))
        file = diffs.read(patch).files[-1]
        for where, first in (("first", 0), ("middle", 4_000_000)):
            measured(f"{where} window: {name}", partial(diffs.window, patch, file, first, allowance=Allowance(60)))
        measured(f"calls: {name}", partial(provenance, [], patch, diffs.read(patch).files))
    for kinds in (1, 100, 1_000):
        made = patches(kinds)
        measured(f"groups: 1,000 patches of {kinds} kinds", partial(grouped, made))
    for count in (500, 2_000):
        made = patches(count, count)
        measured(f"groups: {count} patches of as many kinds", partial(grouped, made))
    large = patches(10, 250, 4_000)
    measured("groups: 250 patches of 4,000 lines, 10 kinds", partial(grouped, large))


if __name__ == "__main__":
    main()
