"""Where targets are listed, which ids they get, and what is asked of each."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from repositories import commit_all, git
from runs_made import AT, ended

from scheduler.enqueue import Batch, freeze, submit
from scheduler.launch import batch_of
from scheduler.manifests.previous import previous_targets
from scheduler.manifests.reading import Loaded, ManifestFault, parse
from scheduler.runs import Found, runs_in
from worker.contract.events import Event
from worker.contract.task import Limits, Repo
from worker.store.archive import Archive
from worker.store.journal import Journal
from worker.store.members import members

HOSTILE = ("a+b", "a b", "ü#?%41", "../x", "a//b", "x/", "/y", ".", "A", "a", "ä", "a\u0308", "x" * 200, "<b>&amp;")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "manifest"
    place.mkdir()
    return place


def load(folder: Path, targets: str, rest: str = "", work: str = "{commands: [fix]}") -> Loaded:
    text = f"version: 1\nname: fleet\ntargets: {targets}\ntask: {work}\n{rest}"
    return parse(text, "fleet.yaml", folder, Limits())


def told(folder: Path, targets: str, rest: str = "", work: str = "{commands: [fix]}") -> list[str]:
    with pytest.raises(ManifestFault) as caught:
        load(folder, targets, rest, work)
    return caught.value.lines()


def frozen(loaded: Loaded) -> Batch:
    return freeze(loaded, [Repo(url="https://git.example.org/r", label="r") for _ in loaded.targets])


def repository(place: Path) -> None:
    place.mkdir(parents=True)
    git(place, "init", "--quiet")
    (place / "x.py").write_text("x = 1\n")
    commit_all(place)


def test_a_table_lists_targets(folder: Path) -> None:
    """Its own columns, an empty cell left out, and every other column a var; quotes as spreadsheets write them."""
    (folder / "repos.csv").write_text(
        "\ufeffrepo,ref,image,id,secret,owner,note\n"
        'https://git.example.org/a,main,node,first,FORGE,ann,"two\nlines, and ""quotes"""\n'
        "\n"
        "https://git.example.org/b,,,,,bob,\n"
    )
    first, second = load(folder, "{file: repos.csv}").targets
    assert (first.id, first.target.ref, first.target.image, first.target.secret) == ("first", "main", "node", "FORGE")
    assert first.target.vars == {"owner": "ann", "note": 'two\nlines, and "quotes"'}
    assert (second.id, second.target.ref, second.target.vars) == ("b", None, {"owner": "bob", "note": ""})


def test_a_text_lists_repositories(folder: Path) -> None:
    """One a line; # begins a comment at the start of a word only."""
    (folder / "repos.txt").write_text("# ours\nhttps://git.example.org/a#x  # why\n\n  git@git.example.org:team/b\n")
    assert [one.target.repo for one in load(folder, "[{file: repos.txt}]").targets] == [
        "https://git.example.org/a#x",
        "git@git.example.org:team/b",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("repo,path\nhttps://git.example.org/a,../x\n", "repos.csv:2:1 value path path '../x' must be a plain"),
        ("repo\n\nftp://x/y\n", "repos.csv:3:1 target repo ftp://x/y has a scheme we do not fetch"),
        ("repo,two words\nx,y\n", "repos.csv:2:1 value vars.two words"),
        (
            "repository\nx\n",
            "fleet.yaml:3:17 file targets.file repos.csv is no table: its first line names no column",
        ),
        ("repo,a,a\nx,y,z\n", "repos.csv is no table: two columns 'a'"),
        ("repo\nx,y\n", "repos.csv is no table: line 2 has 2 cells, for 1 columns"),
        ('repo\n"x\n', "repos.csv is no table: unexpected end of data"),
        (
            "repo,id\nhttps://h/a,1\nhttps://h/b,1\n",
            "repos.csv:3:1 duplicate-id id '1' is the id of two targets, the",
        ),
    ],
)
def test_what_is_wrong_in_a_table_has_its_own_line(folder: Path, text: str, line: str) -> None:
    """Of the table where it has one, else of the manifest's source."""
    (folder / "repos.csv").write_text(text)
    [only] = told(folder, "{file: repos.csv}")
    assert line in only


def test_a_folder_lists_the_repositories_directly_inside(folder: Path) -> None:
    """By name, beside other sources; what is no repository is passed over, and a folder without one refused."""
    repository(folder / "clones" / "two")
    repository(folder / "clones" / "one")
    repository(folder / "clones" / "deep" / "three")
    (folder / "clones" / "notes.txt").write_text("no repository\n")
    loaded = load(folder, "[{repo: https://git.example.org/a}, {folder: clones/}]")
    assert [one.id for one in loaded.targets] == ["a", "one", "two"]
    assert "clones/deep/three holds no git repository" in told(folder, "{folder: clones/deep/three}")[0]
    assert "fleet.yaml:3:19 file targets.folder cannot read gone" in told(folder, "{folder: gone}")[0]


def test_excluded_targets_are_left_out(folder: Path) -> None:
    """By repository or id; then even one that cannot be used is no mistake, but none at all is."""
    targets = "[{repo: https://git.example.org/old/a}, {repo: gone}, {repo: https://git.example.org/b}]"
    assert [one.id for one in load(folder, targets, "exclude: ['*/old/*', gone]\n").targets] == ["b"]
    assert [one.id for one in load(folder, targets, "exclude: [a, gone]\n").targets] == ["b"]
    [line] = told(folder, targets, "exclude: ['*']\n")
    assert line == "fleet.yaml:3:10 target targets comes to no target at all"


def test_more_targets_than_meant_are_refused_with_their_number(folder: Path) -> None:
    """A thousand unless the manifest says otherwise; excluded ones do not count."""
    (folder / "many.txt").write_text("".join(f"https://git.example.org/r{n}\n" for n in range(1_001)))
    [line] = told(folder, "{file: many.txt}")
    assert line.startswith("fleet.yaml:3:10 too-many targets comes to 1,001 targets, more than max_targets, which is")
    assert len(load(folder, "{file: many.txt}", "exclude: ['*/r7']\n").targets) == 1_000
    assert len(load(folder, "{file: many.txt}", "max_targets: 1001\n").targets) == 1_001


def test_ids_given_twice_are_refused_and_case_is_told_apart(folder: Path) -> None:
    """Both places are told; `A` and `a` are two targets, of two runs (T52)."""
    entry = "{{repo: https://git.example.org/r, id: {}}}"
    [line] = told(folder, f"\n- {entry.format('a')}\n- {entry.format('A')}\n- {entry.format('a')}")
    assert line.startswith("fleet.yaml:6:41 duplicate-id targets[2].id 'a' is the id of two targets, the first is on")
    assert "line 4 column 41" in line
    made = frozen(load(folder, f"\n- {entry.format('a')}\n- {entry.format('A')}"))
    assert [task.target for task in made.tasks] == ["a", "A"]
    assert len({task.run for task in made.tasks}) == 2


def test_an_id_that_was_not_given_is_never_one_that_was(folder: Path) -> None:
    """Numbers are counted on until the id is free."""
    url = "https://git.example.org/r"
    loaded = load(folder, f"[{{repo: {url}}}, {{repo: {url}}}, {{repo: {url}, id: r#2}}, {{repo: {url}, path: p}}]")
    assert [one.id for one in loaded.targets] == ["r", "r#3", "r#2", "r/p"]


@pytest.mark.parametrize(
    ("targets", "work"),
    [
        ("{file: pipe}", "{commands: [fix]}"),
        ("{repo: https://git.example.org/r}", "{prompt_file: pipe, model: anthropic/x}"),
        ("{repo: https://git.example.org/r}", "{prompt: fix, model: 'scripted:pipe'}"),
        ("{repo: https://git.example.org/r}", "{prompt: fix, model: 'scripted:/dev/zero'}"),
    ],
)
def test_a_manifest_names_regular_files_only(folder: Path, targets: str, work: str) -> None:
    """Nobody waits for a pipe that nobody writes to, or reads a device to its end."""
    os.mkfifo(folder / "pipe")
    [line] = told(folder, targets, work=work)
    assert "is no regular file" in line


def test_ids_are_found_in_a_time_that_grows_with_the_targets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of many that have one label: each number is tried once."""
    tried: list[str] = []

    class Counted(Counter[str]):
        def __setitem__(self, key: str, value: int) -> None:
            tried.append(key)
            super().__setitem__(key, value)

    monkeypatch.setattr("scheduler.manifests.resolve.Counter", Counted)
    (folder / "repos.txt").write_text("".join(f"https://git.example.org/{n}/r\n" for n in range(300)))
    assert load(folder, "{file: repos.txt}").targets[-1].id == "r#300"
    assert len(tried) == 300


def test_every_id_is_stored_listed_and_read_back_as_its_own(folder: Path, archive: Archive) -> None:
    """Signs, dots, slashes, letters that only look alike: no two collide, and no key holds anything of them (T64)."""
    (folder / "ids.csv").write_text("repo,id\n" + "".join(f"https://git.example.org/r,{one}\n" for one in HOSTILE))
    made = frozen(load(folder, "{file: ids.csv}"))
    assert submit(made, archive, by="me", at=AT) == len(HOSTILE)
    assert [one.target for one in members(archive, made.id)] == list(HOSTILE)
    runs = runs_in(archive, Found("batch", made.id))
    assert [Journal(archive, run).task().target for run in runs] == list(HOSTILE)
    parts = {part for key in archive.list("") for part in key.split("/")}
    assert not parts & {"", ".", ".."}
    assert all(part.isascii() and len(part) < 100 for part in parts)


@pytest.mark.parametrize("id_", ['"' + "x" * 201 + '"', '"a\\nb"', '"\\e[31m"', '""', "7"])
def test_an_id_that_cannot_be_one_is_refused_before_start(folder: Path, id_: str) -> None:
    """Longer than 200 characters, with control characters, empty, or a number (T64)."""
    [line] = told(folder, f"[{{repo: https://git.example.org/r, id: {id_}}}]")
    assert " targets[0].id " in line


def test_prompt_and_commands_are_each_targets_own(folder: Path) -> None:
    """Filled from its vars; in a command as one word for the shell. The template is what the batch asked."""
    url = "https://git.example.org"
    targets = f"[{{repo: {url}/a, vars: {{who: ann o'hara}}}}, {{repo: {url}/b, ref: dev, vars: {{who: bob}}}}]"
    prompt = "Mail {{ vars.who }} of {{ repo.label }}{{ repo.ref }}."
    work = f"{{model: openai/x, prompt: '{prompt}', commands: ['mail {{{{ vars.who }}}}']}}"
    made = frozen(load(folder, targets, "", work))
    assert [task.prompt for task in made.tasks] == ["Mail ann o'hara of a.", "Mail bob of bdev."]
    assert [task.commands for task in made.tasks] == [("mail 'ann o'\"'\"'hara'",), ("mail 'bob'",)]
    assert [task.vars for task in made.tasks] == [{"who": "ann o'hara"}, {"who": "bob"}]
    assert {task.v for task in made.tasks} == {3}
    assert frozen(load(folder, targets.replace("bob", "eve"), "", work)).id != made.id


@pytest.mark.parametrize(
    ("work", "line"),
    [
        ("{commands: [ok, 'do {{ vars.whom }}']}", "yaml:4:27 template task.commands[1] nothing is called vars.whom"),
        ("{commands: ['do {{ who }}']}", "task.commands[0] {{ begins no name (write {{ vars.name }}, or {{{{"),
        ("{commands: ['do \"{{ vars.who }}\"']}", "task.commands[0] vars.who stands where its value could"),
        ("{commands: ['do {{ vars.some }}']}", "template task.commands[0] 1 of 2 targets have no vars.some"),
        ("{commands: ['do {{ vars.long }}']}", "template task.commands[0] vars.long has several lines"),
        ("{model: openai/x, prompt: 'a {{ repo.name }}'}", "template task.prompt nothing is called repo.name"),
        ("{model: openai/x, prompt_file: prompt.md}", "prompt.md:2:5 template (document) nothing is called vars.x"),
        ("{model: openai/x, prompt_file: gone.md}", "fleet.yaml:4:38 file task.prompt_file cannot read "),
        ("{model: openai/x, prompt_file: prompt.md, prompt: p}", "has both prompt and prompt_file"),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_filled_is_told_where_it_stands(folder: Path, work: str, line: str) -> None:
    """In the manifest or in the prompt's own file, before anything starts, with what was meant."""
    (folder / "prompt.md").write_text("One.\nFor {{ vars.x }}\n")
    own = '{who: ann, some: x, long: "a\\nb"}'
    targets = f"[{{repo: https://git.example.org/a, vars: {own}}}, {{repo: https://git.example.org/b, vars: {own}}}]"
    [only] = told(folder, targets.replace("some: x, ", "", 1), "", work)
    assert line in only


def test_a_prompt_file_is_as_if_it_stood_in_the_manifest(folder: Path) -> None:
    """Relative to the manifest, and part of what was asked: another text is another batch."""
    (folder / "prompt.md").write_text("Fix it.\n")
    work = "{model: openai/x, prompt_file: prompt.md}"
    made = frozen(load(folder, "[{repo: https://git.example.org/a}]", "", work))
    assert [task.prompt for task in made.tasks] == ["Fix it.\n"]
    inline = frozen(
        load(folder, "[{repo: https://git.example.org/a}]", "", '{model: openai/x, prompt: "Fix it.\\n"}')
    )
    assert inline.id == made.id
    (folder / "prompt.md").write_text("Fix all of it.\n")
    assert frozen(load(folder, "[{repo: https://git.example.org/a}]", "", work)).id != made.id


def test_a_manifest_without_the_new_words_is_the_batch_it_was() -> None:
    """Its id, and that of its run, are what was made of it before there were any; computed then."""
    text = (
        "version: 1\nname: night\ntargets: [{repo: https://git.example.org/a, path: p}]\n"
        "task: {model: openai/x, prompt: fix, commands: [fix]}\nchecks: [t=x]\n"
    )
    loaded = parse(text, "m", Path("/"), Limits())
    made = freeze(loaded, [Repo(url="https://git.example.org/a", label="a", path="p")])
    assert (made.id, made.tasks[0].run, made.tasks[0].v) == ("night-06998229639b", "a-f6448f7f326f", 1)


def end(archive: Archive, run: str, *events: Event) -> None:
    journal = Journal(archive, run)
    folded = journal.load()
    for event in events:
        folded = journal.append(folded, [event], attempt=None, at=AT)


def test_an_earlier_batch_lists_its_targets_by_what_became_of_them(folder: Path, archive: Archive) -> None:
    """By outcome, by verdict, or that nothing has; the latest of a name, or the one whose id is given."""
    urls = ", ".join(f"{{repo: https://git.example.org/{name}}}" for name in "abcd")
    made = frozen(load(folder, f"[{urls}]"))
    submit(made, archive, by="me", at=AT)
    for task, events in zip(
        made.tasks,
        (ended("failed"), ended("changed", verdict="broke"), ended("skipped", detail="window")),
        strict=False,
    ):
        end(archive, task.run, *events)

    def listed(where: str, batch: str = "fleet") -> list[str]:
        loaded = load(folder, f"{{previous: {{batch: {batch}, where: {where}}}}}")
        return [one.id for one in loaded.resolved(lambda asked: previous_targets(archive, asked)).targets]

    assert listed("failed") == ["a"]
    assert listed("[failed, broke]") == ["a", "b"]
    assert listed("changed", batch=made.id) == ["b"]
    assert listed("not_reached") == ["c", "d"]
    assert listed("all") == ["a", "b", "c", "d"]
    with pytest.raises(ManifestFault) as caught:
        listed("verified")
    assert caught.value.lines() == ["fleet.yaml:3:10 target targets comes to no target at all"]
    with pytest.raises(ManifestFault, match="1 problem") as caught:
        listed("failed", batch="other")
    assert caught.value.lines()[0].startswith("fleet.yaml:3:21 target targets.previous there is no batch 'other'")


def test_a_target_of_an_earlier_batch_is_as_it_was(folder: Path, archive: Archive) -> None:
    """Id, ref, path, image, vars, secret, and the packed code of a folder that may be gone since."""
    repository(folder / "local")
    targets = "[{repo: local, ref: main, path: p, image: node, id: mine, vars: {who: ann}, secret: FORGE}]"
    first = batch_of(load(folder, targets), archive, say=lambda _: None)
    submit(first, archive, by="me", at=AT)
    shutil.rmtree(folder / "local")
    again = load(folder, "{previous: {batch: fleet, where: all}}", work="{commands: ['tell {{ vars.who }}']}")
    assert again.targets == ()
    second = batch_of(again, archive, say=lambda _: None)
    [old], [new] = first.tasks, second.tasks
    assert (new.target, new.repo, new.environment, new.vars) == (old.target, old.repo, old.environment, old.vars)
    assert new.repo.secret == "FORGE"
    assert new.commands == ("tell 'ann'",)


@pytest.mark.parametrize("place", ["target", "table"])
def test_the_value_of_a_secret_is_no_name(folder: Path, place: str) -> None:
    """It is refused before anything is stored, and not repeated."""
    (folder / "repos.csv").write_text("repo,secret\nhttps://git.example.org/a,ghp_0815\n")
    listed = {"target": "[{repo: https://git.example.org/a, secret: ghp_0815}]", "table": "{file: repos.csv}"}
    [line] = told(folder, listed[place])
    assert "must be the NAME of a secret, in capitals, never its value: set DAWN_SECRET_NAME" in line
    assert "ghp_0815" not in line


def test_a_target_without_a_var_is_told_though_an_earlier_batch_may_have_it(folder: Path) -> None:
    """What is known already is judged, offline too."""
    targets = "[{repo: https://git.example.org/a}, {previous: {batch: fleet, where: all}}]"
    [line] = told(folder, targets, work="{commands: ['tell {{ vars.who }}']}")
    assert "1 of 1 targets have no vars.who" in line


def test_vars_of_an_earlier_batch_are_judged_when_it_is_read(folder: Path, archive: Archive) -> None:
    """What no target of it has is a mistake of the manifest, told with its place."""
    submit(frozen(load(folder, "[{repo: https://git.example.org/a}]")), archive, by="me", at=AT)
    loaded = load(folder, "{previous: {batch: fleet, where: all}}", work="{commands: ['tell {{ vars.who }}']}")
    with pytest.raises(ManifestFault) as caught:
        loaded.resolved(lambda asked: previous_targets(archive, asked))
    assert caught.value.lines()[0].startswith("fleet.yaml:4:25 template task.commands[0] nothing is called vars.who")
