"""Owns what a line of a journal is to whoever only looks: the same record, proven, in less memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worker.contract.events import Record, Replied, Reply, canonical
from worker.store import skim
from worker.store.skim import CUT, parsed_line, shortened, skimmed

GOLDEN = sorted(Path(__file__).with_name("golden").glob("v*/journal.jsonl"))
TEXT = 'a"\\n\\\\"\n\U0001f600\ud83d\x1b\\u12ü'


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_it_reads_what_a_worker_reads(path: Path) -> None:
    """Of every version's lines the record and the hash are the same."""
    lines = path.read_bytes().splitlines()
    assert [skimmed(line) for line in lines] == [parsed_line(line) for line in lines]


def test_no_flipped_byte_passes() -> None:
    """Whichever byte of a line is another, it is refused."""
    line = GOLDEN[-1].read_bytes().splitlines()[3]
    for at in range(len(line)):
        with pytest.raises(ValueError, match=r"\w"):
            skimmed(line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :])


@pytest.mark.parametrize("kept", range(1, 80))
def test_a_text_is_cut_between_two_letters(kept: int) -> None:
    """Wherever a text is cut, no escape is cut in two: what is left is its beginning, and the mark."""
    [name, value] = json.loads(shortened(canonical(["short", TEXT * 9]), kept))
    assert name == "short" or kept < len("short")
    before, mark, after = value.partition(CUT)
    assert (mark, after) == (CUT, "")
    # The halves of a letter beyond the basic plane are two escapes, between which it may be cut.
    halves = (TEXT * 9).encode("utf-16-le", "surrogatepass")
    assert halves.startswith(before.encode("utf-16-le", "surrogatepass"))
    assert len(canonical(before)) - 2 > kept - 6


def test_texts_that_fit_stay_as_they_are() -> None:
    """JSON whose texts are short enough comes back byte by byte."""
    data = canonical({"a": TEXT, "b": [1.5, None, {"c": "x" * 100}]})
    assert shortened(data, 200) == data


def test_a_long_line_keeps_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a line beyond what is read whole, texts are cut and numbers are not."""
    monkeypatch.setattr(skim, "WHOLE_BYTES", 1_000)
    reply = Reply(text="x" * 200_000, reasoning="short", cost_microusd=7)
    event = Replied(step=3, phase="model", reply=reply)
    line = Record(run="r", seq=1, at="2026-12-01T00:00:00.000+00:00", nonce="n", prev="0" * 64, event=event).line()
    record, line_hash = skimmed(line)
    assert line_hash == parsed_line(line)[1]
    assert isinstance(record.event, Replied)
    assert record.event.reply.text == "x" * skim.KEPT_BYTES + CUT
    assert (record.event.reply.reasoning, record.event.reply.cost_microusd, record.event.step) == ("short", 7, 3)
