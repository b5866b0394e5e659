"""Owns reading a manifest: every mistake is reported at once, each with file, line and column. Refuses to look at the
repositories that it names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import TypeAdapter, ValidationError

from scheduler.manifests.complaints import complaints
from scheduler.manifests.manifest import FromDockerfile, Manifest, Work, Workplace
from scheduler.manifests.resolve import Resolved, Text, resolve
from scheduler.manifests.sources import Asked, At, Outside, Reach, Source, Target, text_file
from scheduler.manifests.targets import Origin
from scheduler.manifests.template import MARK
from worker.contract import dockerfile
from worker.contract.errors import InvalidFault
from worker.contract.model_name import parse_model_name
from worker.contract.places import Document, Place, Problem, read
from worker.contract.surroundings import DOCKERFILE_CHARS_MAX, Environment
from worker.contract.task import Limits, OwnTool, OwnTools, beyond

COMMAND_LINE: Final = "command line"
"""Name of a manifest that was made of options: its lines and columns mean nothing to anybody."""


Answer = tuple[Asked, Sequence[tuple[Target, Origin | None]]]
"""What somebody was asked, and the targets that he named."""


@dataclass(frozen=True)
class Loaded:
    """A valid manifest. text: the file as written. folder: what relative paths are relative to.

    script: text of the script when the model is scripted. environment: with the text of the Dockerfile. document:
    where each value stands. texts: the prompt, then each command, as written. targets: what its sources come to;
    without those of `awaited`, which only archive and forges can tell (`resolved`). answers: what those said.
    excluded: names of those that it leaves out.
    """

    manifest: Manifest
    text: str
    name: str
    folder: Path
    script: str | None
    environment: Environment
    document: Document
    texts: tuple[Text, ...]
    targets: tuple[Resolved, ...]
    awaited: tuple[Asked, ...] = ()
    excluded: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()

    def resolved(self, outside: Outside) -> Loaded:
        """With all targets. Raises ManifestFault, and StoreFault and the like as whoever is asked does."""
        if not self.awaited:
            return self
        answers: list[Answer] = []

        def ask(asked: Asked) -> Sequence[tuple[Target, Origin | None]]:
            answers.append((asked, outside(asked)))
            return answers[-1][1]

        entries, whole = _entries(self.document, enumerate(self.manifest.targets)), self.document.place(("targets",))
        found = resolve(self.manifest, entries, whole, Reach(self.folder, ask), self.texts)
        if found.problems:
            raise ManifestFault(self.name, found.problems)
        targets, excluded = tuple(found.targets), tuple(found.excluded)
        return replace(self, targets=targets, awaited=(), excluded=excluded, answers=tuple(answers))


class ManifestFault(InvalidFault):
    """problems: every mistake, in the order of the file; `lines` renders them for a terminal."""

    def __init__(self, name: str, problems: Sequence[Problem], *, hint: str = "") -> None:
        count = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
        super().__init__(f"{name} has {count}", hint=hint)
        self.name = name
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.file, problem.line, problem.column)))

    def lines(self) -> list[str]:
        """`file:line:col code path message (hint)`, one each; without place when it was written as options."""
        return [
            ("" if self.name == COMMAND_LINE else f"{self.file_of(problem)}:{problem.line}:{problem.column} ")
            + f"{problem.code} {problem.where or '(document)'} {problem.message}"
            + (f" ({problem.hint})" if problem.hint else "")
            for problem in self.problems
        ]

    def file_of(self, problem: Problem) -> str:
        """The manifest, or the file beside it that the problem is in."""
        return str(Path(self.name).parent / problem.file) if problem.file else self.name


def load(path: Path, defaults: Limits, tools: Sequence[OwnTool] = ()) -> Loaded:
    """Read and validate a manifest file. Raises ManifestFault with every mistake, InvalidFault when unreadable."""
    return parse(text_file(path, "a manifest in YAML", pipe=True), str(path), path.resolve().parent, defaults, tools)


def load_tools(path: Path | None) -> tuple[OwnTool, ...]:
    """The deployment's tools: a YAML list, as `tools` of a manifest. Raises like load."""
    if path is None:
        return ()
    document = read(text_file(path, "a list of tools in YAML"))
    problems = list(document.problems)
    try:
        tools = TypeAdapter(OwnTools).validate_python(document.data)
    except ValidationError as error:
        problems += complaints(document, error, OwnTools)
    if problems:
        raise ManifestFault(str(path), problems)
    return tools


def parse(text: str, name: str, folder: Path, defaults: Limits, tools: Sequence[OwnTool] = ()) -> Loaded:
    """Validate a manifest's text; limits it does not give come from defaults, and tools are beside its own. Raises
    ManifestFault."""
    document = read(text)
    if not isinstance(document.data, dict):
        told = "must be a mapping with version, name, targets and task"
        raise ManifestFault(name, document.problems or [document.problem((), told, code="type")])
    problems = list(document.problems)
    data = _with_limits(_with_tools(document.data, tools), defaults)
    try:
        manifest = Manifest.model_validate(data)
        entries, sound = _entries(document, enumerate(manifest.targets)), True
    except ValidationError as error:
        problems += complaints(document, error, Manifest)
        manifest = _sound(data, {details["loc"][0] for details in error.errors() if details["loc"]})
        entries, sound = _entries(document, _sound_targets(data.get("targets"))), False
    for limit, most in beyond(manifest.limits):
        problems.append(document.problem(("limits", limit), f"must be at most {most:.0f}"))
    script: str | None = None
    try:
        script = script_of(manifest.task.model, folder)
    except InvalidFault as fault:
        problems.append(document.problem(("task", "model"), str(fault), code="file"))
    environment = _environment(document, manifest.environment, folder, problems)
    texts = tuple(_texts(document, manifest.task, folder, problems))
    found = resolve(manifest, entries, document.place(("targets",)), Reach(folder), texts, sound=sound)
    problems += found.problems
    if problems:
        raise ManifestFault(name, problems)
    if manifest.task.prompt_file is not None:
        task = manifest.task.model_copy(update={"prompt": texts[0].text, "prompt_file": None})
        manifest = manifest.model_copy(update={"task": task})
    awaited = tuple(found.awaited)
    kept, excluded = tuple(found.targets), tuple(found.excluded)
    return Loaded(manifest, text, name, folder, script, environment, document, texts, kept, awaited, excluded)


def _sound(data: Mapping[str, Any], wrong: Collection[str | int]) -> Manifest:
    """Of a manifest that is wrong elsewhere, what can be judged all the same."""
    kept: dict[str, Any] = {"version": 1, "name": "", "targets": (), "task": Work.model_construct()}
    for name, field in Manifest.model_fields.items():
        if name in data and name not in {*wrong, "targets"}:
            form: Any = Annotated[field.annotation, field]
            kept[name] = TypeAdapter(form).validate_python(data[name])
    return Manifest.model_construct(**kept)


def _sound_targets(written: Any) -> Iterator[tuple[int, Source]]:
    """Those that can be judged, with their numbers, of targets of which some cannot."""
    form: TypeAdapter[Source] = TypeAdapter(Source)
    for number, entry in enumerate(written if isinstance(written, list) else [written]):
        try:
            yield number, form.validate_python(entry)
        except ValidationError:  # told before
            continue


def _entries(document: Document, sources: Iterable[tuple[int, Source]]) -> list[tuple[Source, At]]:
    """Numbered sources of targets, each with the places of its keys."""

    def at(number: int) -> At:
        return lambda key: document.place(("targets", number, *([key] if key else [])))

    return [(entry, at(number)) for number, entry in sources]


def _environment(document: Document, asked: Workplace, folder: Path, problems: list[Problem]) -> Environment:
    """As a task has it; problems grows by what is wrong with a Dockerfile, each at its line."""
    rest = asked.model_dump(exclude={"image"})
    if not isinstance(asked.image, FromDockerfile):
        return Environment(image=asked.image, **rest)
    name, at = asked.image.dockerfile, ("environment", "image", "dockerfile")
    try:
        text = text_file(folder / name, "a Dockerfile")
        if len(text) > DOCKERFILE_CHARS_MAX:
            raise InvalidFault(f"{name} is longer than {DOCKERFILE_CHARS_MAX >> 10} KiB", hint="move work into setup")
    except InvalidFault as fault:
        problems.append(document.problem(at, fault.message, code="file", hint=fault.hint))
        return Environment(**rest)
    problems += [
        Place(one.line, one.column, file=name).problem("value", one.message, one.hint)
        for one in dockerfile.read(text).mistakes
    ]
    return Environment(image=name, dockerfile=text, **rest)


def _texts(document: Document, task: Work, folder: Path, problems: list[Problem]) -> Iterator[Text]:
    """The prompt, then each command, where places may be filled."""

    def within(path: tuple[str | int, ...], text: str, *, command: bool) -> Text:
        return Text(text, lambda offset: document.inside(path, MARK, text[:offset].count(MARK)), command=command)

    name = task.prompt_file
    if name is None:
        yield within(("task", "prompt"), task.prompt, command=False)
    else:
        try:
            text = text_file(folder / name, "a prompt")
            if not text.strip():
                raise InvalidFault(f"{name} is empty")
        except InvalidFault as fault:
            problems.append(document.problem(("task", "prompt_file"), fault.message, code="file", hint=fault.hint))
            text = ""
        yield Text(text, lambda offset: _place(text, offset, name), command=False)
    for number, command in enumerate(task.commands):
        yield within(("task", "commands", number), command, command=True)


def _place(text: str, offset: int, file: str) -> Place:
    before = text[:offset]
    return Place(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1, file=file)


def script_of(model: str, folder: Path) -> str | None:
    """The text of `scripted:FILE` (relative to folder), None for every other model.

    Raises InvalidFault when the model's name has no known form, or its script is missing or does not parse.
    """
    from worker.contract.script import parse_script

    name = parse_model_name(model)
    if name.provider != "scripted":
        return None
    try:
        text = text_file(folder / name.name, "a script")
    except InvalidFault as fault:
        raise InvalidFault(f"cannot read the script {name.name}: {fault.message}") from fault
    parse_script(text, name.name)
    return text


def _with_limits(data: Mapping[str, Any], defaults: Limits) -> dict[str, Any]:
    given = data.get("limits", {})
    limits = {**defaults.model_dump(), **given} if isinstance(given, dict) else given
    return {**data, "limits": limits}


def _with_tools(data: Mapping[str, Any], tools: Sequence[OwnTool]) -> dict[str, Any]:
    """The manifest's own first, so that a complaint about one finds its place."""
    given = data.get("tools", [])
    return {**data, "tools": [*given, *tools] if isinstance(given, list) else given}
