"""What the morning report says of a night, on a real archive and without an engine."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs_made import AT, checked, claimed, ended, name_runs, replied

from scheduler.cli.main import run as dawn
from scheduler.reports import kept, pages
from scheduler.reports.fingerprints import words
from scheduler.reports.reported import SAID, Morning, Spend, headline
from worker.contract.delivered import Delivery
from worker.contract.delivery import Deliver
from worker.contract.events import (
    Asked,
    Event,
    Failure,
    Finished,
    Parked,
    Sealed,
    Unrecorded,
)
from worker.contract.results import Contradiction
from worker.contract.run import Run, exit_code
from worker.contract.task import Budget
from worker.store import keys
from worker.store.archive import Archive
from worker.store.deliveries import write_delivery
from worker.store.journal import Journal

Make = Callable[..., Run]

NIGHT = "night-0123456789ab"
BEFORE = "night-ba9876543210"
ASKED = Asked(call_id="c1", kind="approval", binding="0" * 64, question="push?")
DIGEST = "a" * 64

pytestmark = pytest.mark.usefixtures("without_stack")


def failed(cls: str, reason: str, detail: str = "") -> list[Event]:
    failure = Failure(cls=cls, reason=reason, detail=detail)
    return [claimed(), Finished(failure=failure), Sealed(outcome="failed", failure=failure)]


def verified() -> list[Event]:
    return [claimed(), *ended("changed", verdict="verified", artifacts={"patch.diff": DIGEST})]


def broke(tail: str) -> list[Event]:
    return [claimed(), Finished(), checked("broke", "red", tail), Sealed(outcome="changed", verdict="broke")]


@pytest.fixture
def night(archive: Archive, make_run: Make) -> Callable[..., Morning]:
    """night({target: events}, **task changes): the report of a batch of these."""

    def made(runs: dict[str, list[Event]], batch: str = NIGHT, at: str = AT, **changes: Any) -> Morning:
        for target, events in runs.items():
            make_run(f"{target}-{batch[-4:]}", *events, batch=batch, target=target, at=at, **changes)
        name_runs(archive, {f"{target}-{batch[-4:]}": target for target in runs}, batch)
        return kept.gather(archive, batch, at=AT)

    return made


Night = Callable[..., Morning]


def test_the_first_line_is_honest(night: Night) -> None:
    """All that is not verified is named, and what it cost of what it may."""
    step = replied(cost_microusd=38_000_000)
    report = night(
        {
            "a": [claimed(), step, *ended("changed", verdict="verified")],
            "b": verified(),
            "c": failed("limit", "steps"),
            "d": broke("1 failed"),
            "e": [Sealed(outcome="skipped", detail="budget")],
            "f": [],
            "g": [claimed(), replied(cost_microusd=0), ASKED, Parked(waiting="approval", detail="push?")],
            "h": [claimed(), *ended("changed", verdict="flaky")],
            "i": [claimed(), *ended("no_change", verdict="unverified")],
            "j": [Sealed(outcome="cancelled")],
        },
        budget=Budget(usd=60),
    )
    assert report.headline == (
        "2 of 10 verified, 2 failed, 1 flaky, 1 unverified, 1 cancelled, 1 waiting for you, 2 not reached, $38 of $60"
    )


@given(st.dictionaries(st.sampled_from(list(SAID)), st.integers(1, 500), min_size=1))
def test_the_numbers_of_the_first_line_add_up(counts: dict[Any, int]) -> None:
    """Whatever became of the targets, none is left out."""
    line = headline(counts, Spend(batch_microusd=0, known=True))
    first, rest = re.match(r"(\d+) of (\d+) verified(.*), \$0$", line).groups()[0], line.split(" verified", 1)[1]
    told = [int(number) for number in re.findall(r", (\d+) [a-z]", rest)]
    assert int(first) + sum(told) == sum(counts.values()) == int(line.split(" ")[2])


@pytest.mark.parametrize(
    ("costs", "told"), [((None,), "unknown cost"), ((1_500_000, None), "at least $1.50"), ((), "$0")]
)
def test_the_first_line_knows_no_price_that_nobody_knows(
    costs: tuple[int | None, ...], told: str, night: Night
) -> None:
    """Unknown is not free."""
    steps = [replied(step, cost_microusd=cost) for step, cost in enumerate(costs, start=1)]
    assert night({"a": [claimed(), *steps, *ended()]}).headline.endswith(f", {told}")


def test_what_waits_for_a_person_names_the_exact_commands(night: Night, archive: Archive) -> None:
    """A question its answers, a used up budget the raise, a guard the look at its patch; what many wait for once."""
    waits = [claimed(), replied(cost_microusd=0), ASKED, Parked(waiting="approval", detail="push?")]
    money = [claimed(), Parked(waiting="budget", detail="$1.00 of $1.00")]
    report = night(
        {"a": waits, "b": money, "c": money, "d": failed("refused", "guard", "tests deleted"), "e": verified()},
        budget=Budget(usd=1),
    )
    told = [(need.targets, need.commands) for need in report.needs]
    assert told == [
        (("a",), ("dawn approve a-89ab c1", 'dawn deny a-89ab c1 --reason "..."')),
        (("b", "c"), (f"dawn budget {NIGHT} USD",)),
        (("d",), ("dawn diff d-89ab",)),
    ]
    assert report.news == ("needs_person", "unfinished")


def test_a_verified_patch_says_how_to_get_it(night: Night) -> None:
    """Also where nothing but the patch was asked for; one that broke something is told among the failures only."""
    bad = [*broke("x")[:-1], Sealed(outcome="changed", verdict="broke", artifacts={"patch.diff": DIGEST})]
    (one,) = night({"a": verified(), "b": bad}).delivered
    assert (one.state, one.get) == ("patch", "dawn diff a-89ab | git apply --index")


def test_what_became_of_patches_on_a_forge_is_told(night: Night, archive: Archive) -> None:
    """A pull request with its address; one that waits for a review, with the words that answer; a failed delivery."""
    deliver = Deliver(kind="pr", when="approved")
    night({"open": verified(), "waits": verified(), "wrong": verified()}, deliver=deliver)
    base: dict[str, Any] = {"n": 0, "by": "w", "at": AT, "patch": DIGEST}
    url = "https://git.example.org/cart/pull/7"
    write_delivery(archive, "open-89ab", Delivery(**base, act="open", state="pr", url=url, number=7))
    write_delivery(archive, "wrong-89ab", Delivery(**base, act="failed", state="error", detail="the base is gone"))
    report = kept.gather(archive, NIGHT, at=AT)
    patch = "dawn diff {}-89ab | git apply --index"
    assert [(one.target, one.state, one.get) for one in report.delivered] == [
        ("open", "pr", url),
        ("waits", "patch", patch.format("waits")),
        ("wrong", "patch", patch.format("wrong")),
    ]
    assert {need.targets: need.commands for need in report.needs} == {
        ("waits",): tuple(f"dawn {words}" for words in (
            "diff waits-89ab", "review waits-89ab --approve", "review waits-89ab --reject",
        )),
        ("wrong",): ("dawn deliver wrong-89ab",),
    }  # fmt: skip
    assert f'<a href="{url}"' in pages.html(report).decode()


def test_a_patch_that_a_worker_is_to_deliver_is_on_its_way(night: Night) -> None:
    """Nobody needs to do anything."""
    report = night({"a": verified()}, deliver=Deliver(kind="branch", when="verified"))
    assert ([one.state for one in report.delivered], report.delivering, report.needs) == (["on its way"], 1, ())


def test_what_the_evidence_contradicts_and_guards_that_were_hit_are_warnings(night: Night) -> None:
    """The claim beside what was measured."""
    said = Contradiction(claim="All tests pass.", evidence="check tests is red")
    hit = checked("verified").model_copy(update={"guards": ("tests/test_x.py is deleted",)})
    report = night(
        {"a": [claimed(), Finished(), hit, Sealed(outcome="changed", verdict="broke", contradictions=(said,))]}
    )
    assert [warned.text for warned in report.warnings] == [
        'it says "All tests pass.", but check tests is red',
        "a guard was hit: tests/test_x.py is deleted",
    ]


def test_failures_that_are_alike_are_told_once(night: Night) -> None:
    """Other paths, numbers and hashes make no other failure; another error does. The largest group is first."""
    tail = "{0}/tests/test_cart.py:{1}: in test\nE assert {1} == 4\n==== 1 failed in {1}.2s (commit {2}) ===="
    report = night(
        {
            "other": failed("env", "image", "no such image"),
            "a": broke(tail.format("/home/a", 17, "0a1b2c3d4e5f")),
            "b": broke(tail.format("/srv/b/c", 230, "99ffee88dd77")),
            "c": broke("ImportError: no module named cart"),
        }
    )
    groups = [(group.kind, group.targets) for group in report.failures]
    assert groups[0] == ("broke", ("a", "b"))
    assert sorted(groups[1:]) == [("broke", ("c",)), ("env/image", ("other",))]
    assert "E assert 17 == 4" in report.failures[0].sample


def test_each_group_of_failures_has_the_exact_command_to_retry_it(night: Night) -> None:
    """By class or verdict where that means this group alone, else by name; of many alike all of the class."""
    many = {f"m{n}": failed("limit", "steps", "100 of 100") for n in range(9)}
    report = night(
        {
            "a": failed("infra", "disk", "full"),
            "b": failed("env", "image", "none"),
            "c": failed("env", "setup", "pip complains"),
            "d": broke("x"),
            "e": failed("limit", "cost", "$3 of $3"),
            **many,
        }
    )
    assert {group.kind: group.retry for group in report.failures} == {
        "infra/disk": f"dawn retry {NIGHT} --class infra",
        "env/image": "dawn retry b-89ab",
        "env/setup": "dawn retry c-89ab",
        "broke": f"dawn retry {NIGHT} --state broke",
        "limit/cost": "dawn retry e-89ab",
        "limit/steps": f"dawn retry {NIGHT} --class limit",
    }


@pytest.mark.parametrize(
    "text",
    ["https://user@host/x?y=1 is gone", "/a/b.py", "C:\\x\\y", "deadbeef12", "0x7ffe", "12:30:05.123", "3,141.59"],
)
def test_what_differs_from_run_to_run_has_no_part_in_a_fingerprint(text: str) -> None:
    """Addresses, paths, hashes, times, numbers."""
    assert re.fullmatch(r"<\w+>( is gone)?", words(text))


def test_a_fingerprint_keeps_the_words(night: Night) -> None:
    """A word of letters a to f is no hash."""
    assert words("bad facade: a defaced deadbeef") == "bad facade: a defaced deadbeef"


def test_changes_are_told_against_the_night_before(night: Night) -> None:
    """Of the same name and older; a batch of another name, or a later one, is not looked at."""
    night(
        {"a": broke("x"), "b": verified(), "c": verified(), "d": broke("y")}, BEFORE, "2026-11-29T02:00:00.000+00:00"
    )
    night({"a": verified()}, "nightly-ba9876540000", "2026-11-29T03:00:00.000+00:00")
    night({"a": broke("x")}, "night-ffffffffffff", "2026-12-01T02:00:00.000+00:00")
    changes = night({"a": verified(), "b": broke("x"), "c": verified(), "d": [], "e": verified()}).changes
    assert changes is not None
    assert (changes.since, changes.newly_verified, changes.newly_failing) == (BEFORE, ("a",), ("b",))
    assert (changes.otherwise, changes.same, changes.only_now) == (("d: failed, now not reached",), 1, ("e",))


def test_what_was_not_reached_says_why(night: Night) -> None:
    """Skipped by the scheduler, held by a budget, or simply not begun."""
    report = night(
        {
            "a": [Sealed(outcome="skipped", detail="breaker")],
            "b": [Sealed(outcome="skipped", detail="breaker")],
            "c": [],
        }
    )
    assert [(left.why, left.targets) for left in report.not_reached] == [
        ("breaker", ("a", "b")),
        ("no worker has begun it", ("c",)),
    ]
    assert "breaker" in report.news


def test_a_batch_stopped_by_its_budget_names_who_was_skipped(night: Night) -> None:
    """T72: what ran keeps its patch, the rest is skipped for the budget, the total stays under it, exit code 6."""
    step = replied(cost_microusd=100_000)
    ran = [
        claimed(),
        *(replied(n, cost_microusd=100_000) for n in range(1, 5)),
        *ended("changed", verdict="verified"),
    ]
    stopped = Failure(cls="limit", reason="batch_budget", detail="$1.00 of $1.00")
    cut = [
        claimed(),
        step,
        Finished(failure=stopped),
        Sealed(outcome="failed", failure=stopped, artifacts={"patch.diff": DIGEST}),
    ]
    skipped: list[Event] = [Sealed(outcome="skipped", detail="budget")]
    report = night(
        {"a": ran, "b": ran, "c": cut, "d": cut, **{f"e{n}": skipped for n in range(6)}},
        budget=Budget(usd=1, on_limit="stop"),
    )
    assert report.headline == "2 of 10 verified, 2 failed, 6 not reached, $1 of $1"
    assert [(left.why, len(left.targets)) for left in report.not_reached] == [("budget", 6)]
    assert "budget" in report.news


def test_three_of_ten_that_cannot_run_are_told_with_their_reasons(night: Night, archive: Archive) -> None:
    """T49: a missing image and a repository that nobody can read fail by themselves and by name, the others count."""
    runs = {f"t{n}": verified() for n in range(7)}
    report = night(
        {**runs, "t7": failed("env", "image", "no such image"), "t8": failed("env", "repository", "denied")}
    )
    assert report.headline == "7 of 9 verified, 2 failed, $0"
    assert sorted(group.kind for group in report.failures) == ["env/image", "env/repository"]
    runs_seen = [Journal(archive, row.run).load() for row in report.rows]
    assert exit_code(runs_seen) == 4


def test_an_empty_repository_is_one_failure_with_its_reason(night: Night) -> None:
    """T41: the two others are verified."""
    report = night({"a": verified(), "b": failed("env", "ref", "the repository has no commits"), "c": verified()})
    assert report.headline == "2 of 3 verified, 1 failed, $0"
    assert [row.detail for row in report.rows if row.state == "failed"] == ["env/ref the repository has no commits"]


def test_trouble_of_the_machines_is_told_as_that(night: Night) -> None:
    """T54: infra, with the words of the engine, and no failure of an agent; it is retried by its class."""
    report = night({"a": failed("infra", "disk", "no space left on device"), "b": verified()})
    (group,) = report.failures
    assert (group.kind, group.retry) == ("infra/disk", f"dawn retry {NIGHT} --class infra")


def test_runs_that_ended_by_time_are_failures_of_their_limit(night: Night) -> None:
    """T55: a frozen container and a silent provider end as time-outs, and are one group."""
    wall = failed("limit", "wall", "worked for 30 s of 30 s")
    report = night({"a": wall, "b": failed("limit", "wall", "worked for 31 s of 30 s"), "c": verified()})
    assert [(group.kind, group.targets) for group in report.failures] == [("limit/wall", ("a", "b"))]
    assert report.ended


def test_what_was_lost_of_the_money_is_told(night: Night) -> None:
    """A reply that nobody kept was perhaps paid for."""
    spend = night({"a": [claimed(), Unrecorded(cost_microusd=250_000, tokens=9), *ended()]}).spend
    assert (spend.batch_microusd, spend.unrecorded_microusd) == (250_000, 250_000)


def test_warnings_name_what_a_reader_could_overlook(night: Night) -> None:
    """An unstable check, files left out of a patch, a masked secret, a submodule that nobody could fetch."""
    report = night(
        {
            "a": [claimed(), *ended("changed", verdict="flaky")],
            "b": [
                claimed(),
                Finished(text="the key is [secret API_KEY]"),
                checked("verified", left_out={"big.bin": "over 1 MiB", "x.log": "ignored"}, notes=("no submodule",)),
                Sealed(outcome="changed", verdict="verified"),
            ],
        }
    )
    assert [warned.text for warned in report.warnings if warned.target == "b"] == [
        "no submodule",
        "1 changed files are not in the patch, the first is big.bin",
        "a secret was masked in what it said or printed",
    ]
    assert "flaky" in report.warnings[0].text


def test_a_target_without_a_readable_run_counts_as_damaged(night: Night, archive: Archive) -> None:
    """The others are told; what names the damage is the command to type. Exit code 11."""
    night({"a": verified(), "b": verified()})
    first = keys.segment("a-89ab", 1)
    archive.delete([first])
    archive.create(first, b"{}\n")
    report = kept.gather(archive, NIGHT, at=AT)
    assert report.headline == "1 of 2 verified, 1 damaged, $0"
    assert [need.commands for need in report.needs] == [("dawn verify a-89ab",)]
    assert dawn(["report", NIGHT]) == 11


def test_a_run_that_was_never_written_counts(archive: Archive, make_run: Make) -> None:
    """A submit that was cut off lets no target go missing."""
    make_run("a", *verified(), target="a")
    name_runs(archive, {"a": "a", "b": "b"})
    report = kept.gather(archive, NIGHT, at=AT)
    assert report.headline == "1 of 2 verified, 1 not written, $0"
    assert (report.runs, report.sealed) == (2, 1)


class Page(HTMLParser):
    """Tags and attributes of a page, and the text that a reader sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> \x1b[2J\x1b]0;owned\x07 \u202egnp.exe `; rm -rf ~` ```\n"
    "# heading\n[click](javascript:alert(3)) {{ 7*7 }} {% include 'x' %} &lt; | --- |"
)


@pytest.fixture
def hostile(night: Night) -> Morning:
    """A report in which every text that a repository or a model can write is hostile."""
    asked = ASKED.model_copy(update={"question": HOSTILE})
    return night(
        {
            "a": failed("env", "setup", HOSTILE),
            "b": broke(HOSTILE),
            "c": [claimed(), replied(cost_microusd=0), asked, Parked(waiting="approval", detail=HOSTILE)],
            "d": [claimed(), checked("flaky", notes=(HOSTILE,)), *ended("changed", verdict="flaky")],
            "e": [Sealed(outcome="skipped", detail=HOSTILE)],
            "f": [claimed(), checked("verified", left_out={HOSTILE: HOSTILE}), *ended("changed", verdict="verified")],
        }
    )  # fmt: skip


def test_hostile_text_stays_text_in_the_page(hostile: Morning) -> None:
    """No tag, attribute or template of it becomes one; nothing of the page runs or is fetched."""
    page = Page(pages.html(hostile).decode())
    assert page.tags["script"] == page.tags["img"] == page.tags["link"] == page.tags["iframe"] == 0
    assert not {name for name, _ in page.attributes if name.startswith("on") or name == "src"}
    assert "<script>alert(1)</script>" in page.text
    assert "{{ 7*7 }}" in page.text
    assert [value for name, value in page.attributes if name == "href"] == []


def test_no_control_byte_of_hostile_text_reaches_a_reader(hostile: Morning) -> None:
    """In none of the three forms, also decoded."""
    told = [pages.html(hostile).decode(), pages.markdown(hostile), *_texts(json.loads(hostile.stored()))]
    assert "\\x1b" in "".join(told)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", "".join(told))


def test_hostile_text_ends_no_span_of_markdown(hostile: Morning) -> None:
    """Read as CommonMark, no heading, link or HTML of it is one."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt().parse(pages.markdown(hostile))
    inline = [child for token in tokens for child in token.children or ()]
    headings = [tokens[n + 1].content for n, token in enumerate(tokens) if token.type == "heading_open"]
    assert "heading" not in headings
    assert not {token.type for token in (*tokens, *inline)} & {"html_block", "html_inline", "link_open", "image"}


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for entry in value.items() for one in entry for text in _texts(one)]
    return [text for one in value for text in _texts(one)] if isinstance(value, list) else []


def test_only_an_address_becomes_a_link() -> None:
    """A forge's answer could name anything."""
    assert pages.is_address("https://git.example.org/cart/pull/7")
    assert not any(map(pages.is_address, ["javascript:alert(1)", "https://x y", "http://x/", 'https://x/"onclick="']))


def test_a_report_that_would_say_the_same_is_not_written_again(night: Night, archive: Archive) -> None:
    """Later, and with another day's spending, it still is the same; a retry makes another."""
    report = night({"a": failed("infra", "disk", "full")})
    first = kept.store(archive, report)
    again = kept.store(archive, report.model_copy(update={"at": "2026-12-24T00:00:00.000+00:00"}))
    assert (first.n, first.new, again.n, again.new) == (0, True, 0, False)
    other = kept.store(archive, report.model_copy(update={"note": "looked at again"}))
    assert (other.n, other.new) == (1, True)
    assert kept.latest(archive, NIGHT) == (1, other.report)


def test_a_report_cut_off_in_the_middle_is_made_whole(night: Night, archive: Archive) -> None:
    """Its number was taken, its page was not written: the next look writes it."""
    report = night({"a": verified()})
    archive.create(keys.batch_report(NIGHT, 0, "report.json"), report.stored())
    assert kept.store(archive, report).new is False
    assert archive.get(keys.batch_report(NIGHT, 0, "report.html")) == pages.html(report)
    assert archive.get(keys.batch_report(NIGHT, 0, "report.md")) == pages.markdown(report).encode()


def test_a_stored_report_that_cannot_be_read_is_followed_by_another(night: Night, archive: Archive) -> None:
    """Create-only: the damaged one stays where it is."""
    archive.create(keys.batch_report(NIGHT, 0, "report.json"), b"{")
    assert kept.store(archive, night({"a": verified()})).n == 1


def test_dawn_report_prints_writes_and_stores(
    night: Night, archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Markdown by itself, JSON and HTML when asked; by the first letters of the batch."""
    night({"a": verified()})
    assert dawn(["report", "night"]) == 0
    assert capsys.readouterr().out.startswith("# 1 of 1 verified, $0\n")
    assert dawn(["report", "night", "--json", "--html", str(tmp_path / "r.html"), "--store"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["report"]["rows"][0]["state"] == "verified"
    assert (tmp_path / "r.html").read_bytes().startswith(b"<!doctype html>")
    assert said.err == f"report 0 of {NIGHT}\n"


def test_a_checked_report_says_so(tmp_path: Path, archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody checked is not called verified; what is damaged is called that, exit code 11."""
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "answer.txt").write_text("41\n")
    (tmp_path / "night.yaml").write_text(
        "version: 1\nname: night\ntargets: [{repo: ./sample}]\ntask: {commands: ['true']}\n"
    )
    assert dawn(["submit", "night.yaml", "--detach"]) == 0
    assert dawn(["report", "night"]) == 0
    assert "chain not checked" in capsys.readouterr().out
    assert dawn(["report", "night", "--verify"]) == 0
    assert "chain verified" in capsys.readouterr().out
    (batch,) = archive.folders("batches/")
    archive.delete([keys.batch_manifest(batch)])
    archive.create(keys.batch_manifest(batch), b"version: 2")
    assert dawn(["report", "night", "--verify"]) == 11
    assert "chain damaged" in capsys.readouterr().out


def test_a_reader_on_a_phone_and_in_the_dark_is_thought_of(night: Night) -> None:
    """Nothing to fetch: the page forbids it itself."""
    page = pages.html(night({"a": verified()})).decode()
    assert "default-src 'none'" in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
