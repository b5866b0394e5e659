"""What drawings on the pages hold: marks, links, words, and a table of the same numbers."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.web import charts
from scheduler.web.charts import Cell, Lane, Point, Series, Shade, Stretch

HOSTILE = '</title></svg><script>alert(1)</script>"><b onload=x>&amp;'
"""T68, and what would end an attribute or an element."""
WORDS = st.text(min_size=0, max_size=30)
VALUES = st.floats(min_value=0, max_value=1e9, allow_nan=False)


class Parts(HTMLParser):
    """The elements of a page, and the words of those that are asked for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {"title": [], "td": []}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag in self.words:
            self.words[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        for tag in {"title", "td"} & set(self._open):
            self.words[tag][-1] += data


def every_kind(words: str, href: str = "") -> str:
    """A page with a drawing of each kind, in which these words stand wherever words may."""
    two = [Series(words, [1, 2]), Series("b", [0, 3], "two")]
    lane = Lane(words, [Stretch(0, 9, "verified", words, words, href)], [Point(4, "approval", words)])
    return "".join(
        [
            charts.over("a", words, [words, "2"], two, limit=9, limit_name=words, along=words),
            charts.over("b", words, [words, "2"], two, shape="area", told=lambda value: f"{words}{value}"),
            charts.strip("c", words, [Cell("read", words, href)], ["read"], along=words),
            charts.lanes("d", words, [lane], shades=[Shade(1, 2, words)], notes=[words]),
            charts.gauge(1, 2, words),
        ]
    )


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text))


@given(st.lists(st.tuples(VALUES, VALUES), max_size=400), st.sampled_from(["bars", "area"]), VALUES)
@settings(max_examples=40, deadline=None)
def test_every_number_of_a_chart_stands_in_its_table(
    pairs: list[tuple[float, float]], shape: Any, limit: float
) -> None:
    """Whatever a mark says when it is pointed at can be read in the table too."""
    labels = [str(n) for n in range(1, len(pairs) + 1)]
    series = [Series("in", [one for one, _ in pairs]), Series("out", [one for _, one in pairs], "two")]
    page = Parts(charts.over("spend", "Spent", labels, series, shape=shape, limit=limit))
    told = numbers(" ".join(page.words["title"]))
    assert told <= numbers(" ".join(page.words["td"]))
    assert charts.count(limit) in told


def test_the_table_of_a_timeline_has_every_bar_mark_and_shade() -> None:
    """What is drawn of lanes is told with its times."""
    lane = Lane("host-1", [Stretch(60, 125, "verified", "cart", "verified")], [Point(70, "takeover", "shop")])
    page = Parts(charts.lanes("night", "Night", [lane], shades=[Shade(0, 65, "window closed")]))
    rows = " ".join(page.words["td"])
    for words in page.words["title"]:
        assert all(part in rows for part in re.split(", | to ", words))
    assert "1970-01-01 00:02:05" in rows
    assert "window closed" in rows


@given(WORDS)
@settings(max_examples=60, deadline=None)
def test_words_stay_words(words: str) -> None:
    """T68: no text of a stranger makes an element, an attribute or a link of its own."""
    shape = [(tag, sorted(names)) for tag, names in Parts(every_kind("plain")).elements]
    assert [(tag, sorted(names)) for tag, names in Parts(every_kind(words + HOSTILE)).elements] == shape


@pytest.mark.parametrize(
    "href",
    ["javascript:alert(1)", "//evil.example.org/x", "https://evil.example.org", "/\\evil.example.org", " /x", "d:x"],
)
def test_an_address_outside_the_site_makes_no_link(href: str) -> None:
    """T68: a mark is followed within the site only."""
    assert "<a" not in every_kind("x", href)
    assert '<a href="/runs/r1"' in every_kind("x", "/runs/r1")


def test_no_control_or_direction_character_comes_through() -> None:
    """A lane's name cannot look like another's, and no drawing ends a terminal's line."""
    page = every_kind("cart\u202egnp.exe\x1b[31m\x00")
    assert "cart\\u202egnp.exe\\x1b[31m\\x00" in page
    assert not {"\u202e", "\x1b", "\x00"} & set(page)


def test_no_markup_has_a_style() -> None:
    """The pages' policy would drop it: looks come from classes."""
    page = Parts(every_kind("x", "/runs/r1"))
    names = {name for _, attributes in page.elements for name in attributes}
    assert names & {"style", "fill", "stroke", "onclick"} == set()


def test_a_drawing_is_sound_xml_and_named() -> None:
    """Each figure's drawing has a role, and a name that is on the page."""
    tree = ElementTree.fromstring(f"<div>{every_kind('plain & simple', '/x')}</div>")
    ids = {element.get("id") for element in tree.iter()}
    drawings = [svg for figure in tree.iter("figure") for svg in figure.iter("svg")]
    assert [svg.get("role") for svg in drawings] == ["img", "img", "group", "group"]
    assert all(svg.get("aria-labelledby") in ids for svg in drawings)


@pytest.mark.parametrize("name", ["a b", "A", 'x"', ""])
def test_a_name_that_is_no_plain_word_is_refused(name: str) -> None:
    """A class or an id is never made of what strangers wrote."""
    with pytest.raises(ValueError, match="no name of a colour"):
        charts.over(name, "t", ["1"], [Series("a", [1])])
    with pytest.raises(ValueError, match="no name of a colour"):
        charts.over("t", "t", ["1"], [Series("a", [1], name)])


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=3_000))
@settings(max_examples=20, deadline=None)
def test_many_steps_make_few_marks_and_nothing_is_lost(values: list[float]) -> None:
    """A long run is drawn of neighbours put together, says so, and the sum stays."""
    page = charts.over("s", "Spent", [str(n) for n in range(len(values))], [Series("a", values)], told=repr)
    parts = Parts(page)
    assert sum(tag == "rect" for tag, _ in parts.elements) <= charts.BARS_DRAWN
    assert sum(float(cell) for cell in parts.words["td"][1::2]) == pytest.approx(sum(values))
    assert ("neighbours" in page) == (len(values) > charts.BARS_DRAWN)


def test_a_strip_of_a_long_run_keeps_what_is_most_telling() -> None:
    """One error among 5,000 steps is seen, and leads to its step."""
    cells = [Cell("error" if n == 4_321 else "read", f"step {n}", f"#s{n}") for n in range(5_000)]
    page = charts.strip("map", "Steps", cells, ["error", "read"])
    shown = [names for tag, names in Parts(page).elements if tag == "rect"]
    assert len(shown) <= charts.CELLS_DRAWN
    assert [one["class"] for one in shown].count("k-error") == 1
    assert 'href="#s4321"' in page


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e4)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_bars_of_a_lane_never_cover_each_other(spans: list[tuple[float, float]]) -> None:
    """What one worker does at the same time stands in rows of its own."""
    bars = [Stretch(start, start + long, "verified", "x", "verified") for start, long in spans]
    rows = charts._packed(bars)
    for n, one in enumerate(bars):
        for m, other in enumerate(bars[:n]):
            if rows[n] == rows[m]:
                assert one.end <= other.start or other.end <= one.start


def test_a_timeline_is_bounded_and_says_what_it_leaves_out() -> None:
    """A batch of thousands makes a page that a browser can show."""
    bars = [Stretch(n, n + 1, "verified", f"r{n}", "verified") for n in range(5)]
    page = charts.lanes("t", "T", [Lane(f"host-{n}", bars * 100) for n in range(100)])
    marks = sum(tag == "rect" for tag, _ in Parts(page).elements)
    assert marks == charts.STRETCHES_DRAWN
    assert "40 more lanes are left out" in page
    assert f"{50_000 - marks:} more bars are left out" in page


def test_the_axis_of_a_short_timeline_has_seconds() -> None:
    """By minutes all of its ticks would read the same; over hours the date is what tells them apart."""
    short = charts.lanes("t", "T", [Lane("host", [Stretch(0, 40, "good", "a", "worked")])])
    assert all(f">00:00:{at:02}</text>" in short for at in (0, 10, 20, 30, 40))
    long = charts.lanes("t", "T", [Lane("host", [Stretch(0, 40_000, "good", "a", "worked")])])
    assert ">01-01 11:06</text>" in long
