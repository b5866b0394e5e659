"""Owns the list of targets that a manifest comes to: every source read, ids given, excluded ones left out, prompt and
commands filled. Refuses to fetch: a repository's commit is asked for by whoever plans or prepares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from scheduler.manifests import template
from scheduler.manifests.complaints import nearest
from scheduler.manifests.manifest import Manifest
from scheduler.manifests.sources import (
    ID_CHARS_MAX,
    Asked,
    At,
    FromGitHub,
    FromGitLab,
    FromOutside,
    Listed,
    Reach,
    Source,
    Target,
)
from scheduler.manifests.targets import Origin, locate
from worker.contract.errors import InvalidFault
from worker.contract.places import Place, Problem

OWN_NAMES: Final = ("batch.name", "target.id", "repo.label", "repo.ref", "repo.path")
"""What every target has a value of, beside its vars."""


@dataclass(frozen=True)
class Text:
    """One that may hold places to fill. at: the place of an offset in it. command: it is one of a shell."""

    text: str
    at: Callable[[int], Place]
    command: bool


@dataclass(frozen=True)
class Resolved:
    """A target of a batch. id: unique in it. origin: where its code is. prompt, commands: filled with its own values.
    at: the place where its key of that name was written."""

    id: str
    target: Target
    origin: Origin
    prompt: str
    commands: tuple[str, ...]
    at: At


@dataclass
class Resolution:
    """targets: in the manifest's order. problems: all that is wrong. awaited: what archive and forges must say, where
    they were not asked. excluded: ids, or repositories, of those that the manifest leaves out."""

    targets: list[Resolved] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    awaited: list[Asked] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)


def resolve(
    manifest: Manifest,
    entries: Sequence[tuple[Source, At]],
    whole: Place,
    reach: Reach,
    texts: Sequence[Text],
    *,
    sound: bool = True,
) -> Resolution:
    """What the entries come to. entries: the manifest's targets, or when it is not `sound`, those of them that are.
    whole: the place of all of them. texts: the prompt, then each command. What a search finds and an entry before it
    lists is not listed again. Raises StoreFault and the like as whoever is asked does."""
    found = Resolution()
    listed: list[Listed] = []
    for entry, at in entries:
        if isinstance(entry, FromOutside) and reach.outside is None:
            found.awaited.append(entry.asked)
        searched = isinstance(entry, FromGitHub | FromGitLab)
        before = {_address(one.target.repo) for one in listed} if searched else set()
        for one in entry.expand(reach, at):
            if isinstance(one, Problem):
                found.problems.append(one)
            elif _address(one.target.repo) not in before:  # what a search finds beside is no second target
                listed.append(one)
    wanted: list[Listed] = []
    for one in listed:
        if _matches(manifest.exclude, one.target.repo, one.target.id or ""):
            found.excluded.append(one.target.id or one.target.repo)
        else:
            wanted.append(one)
    found.problems += _duplicates(wanted)
    located: list[tuple[Listed, Origin]] = []
    for one in wanted:
        try:
            located.append((one, one.origin or locate(one.target.repo, reach.folder)))
        except InvalidFault as fault:
            found.problems.append(one.at("repo").problem("target", fault.message, fault.hint))
    kept: list[tuple[str, Listed, Origin]] = []
    for name, one, origin in _named(located, found.problems):
        if _matches(manifest.exclude, name):
            found.excluded.append(name)
        else:
            kept.append((name, one, origin))
    if manifest.deliver is not None and manifest.deliver.kind != "patch":
        told = "is a local repository, and there is nowhere to deliver to"
        local = [one for _, one, origin in kept if origin.url is None]
        found.problems += [one.at("repo").problem("target", told, "give its URL, or `kind: patch`") for one in local]
    if sound and not kept and not found.problems and not found.awaited:
        found.problems.append(whole.problem("target", "comes to no target at all"))
    if len(kept) > manifest.max_targets:
        told = f"comes to {len(kept):,} targets, more than max_targets, which is {manifest.max_targets:,}"
        found.problems.append(whole.problem("too-many", told, "raise max_targets, or exclude some"))
        return found
    values = [_values(manifest, *it) for it in kept]
    some_missing = bool(found.awaited or found.problems or not sound)
    found.problems += _template_problems(texts, values, some_missing=some_missing)
    if not found.problems:
        found.targets += [
            Resolved(
                *(name, one.target, origin),
                template.render(texts[0].text, own),
                tuple(template.render_command(command.text, own) for command in texts[1:]),
                one.at,
            )
            for (name, one, origin), own in zip(kept, values, strict=True)
        ]
    return found


def _address(repo: str) -> str:
    """The same for the ways in which one repository is written."""
    return repo.rstrip("/").removesuffix(".git").casefold()


def _matches(globs: Sequence[str], *names: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs for name in names)


def _duplicates(listed: Sequence[Listed]) -> Iterator[Problem]:
    """Ids that are given twice, with both places."""
    given: dict[str, Place] = {}
    for one in listed:
        if (name := one.target.id) is None:
            continue
        place = one.at("id")
        if first := given.get(name):
            told = f"{name!r} is the id of two targets, the first is on line {first.line} column {first.column}"
            of = f" of {first.file}" if first.file != place.file else ""
            yield place.problem("duplicate-id", told + of, "give one of them another id")
        given.setdefault(name, place)


def _named(located: Sequence[tuple[Listed, Origin]], problems: list[Problem]) -> Iterator[tuple[str, Listed, Origin]]:
    """Each with its id; problems grows by those that are too long."""
    taken = {one.target.id for one, _ in located if one.target.id}
    numbers: Counter[str] = Counter()
    for one, origin in located:
        name = one.target.id or _free_name(one.target, origin, taken, numbers)
        taken.add(name)
        if len(name) > ID_CHARS_MAX:
            told = f"makes an id of {len(name)} characters, more than {ID_CHARS_MAX}"
            problems.append(one.at("repo").problem("value", told, "give it an id"))
        yield name, one, origin


def _free_name(target: Target, origin: Origin, taken: Set[str], numbers: Counter[str]) -> str:
    """Label and path, and a number where another target has both. numbers: the last that was tried of each."""
    name = f"{origin.label}/{target.path}" if target.path else origin.label
    while True:
        numbers[name] += 1
        made = name if numbers[name] == 1 else f"{name}#{numbers[name]}"
        if made not in taken:
            return made


def _values(manifest: Manifest, name: str, one: Listed, origin: Origin) -> dict[str, str]:
    """What may stand in {{ }}: known before anything is fetched."""
    target = one.target
    own = (manifest.name, name, origin.label, target.ref or "", target.path)
    return {
        **dict(zip(OWN_NAMES, own, strict=True)),
        **{f"vars.{var}": text for var, text in target.vars.items()},
    }


def _template_problems(
    texts: Sequence[Text], values: Sequence[Mapping[str, str]], *, some_missing: bool
) -> Iterator[Problem]:
    """some_missing: there are targets whose values are not known yet."""
    known = [*OWN_NAMES, *sorted({name for own in values for name in own} - {*OWN_NAMES})]
    for text in texts:
        for offset, told, hint in template.faults(text.text, command=text.command):
            yield text.at(offset).problem("template", told, hint)
        for offset, name in template.names(text.text):
            without = sum(name not in own for own in values)
            if name not in known and not (some_missing and name.startswith("vars.")):
                yield text.at(offset).problem("template", f"nothing is called {name}", nearest(name, known))
            elif without:
                told = f"{without} of {len(values)} targets have no {name}"
                yield text.at(offset).problem("template", told, "give it to all of them")
            elif text.command and any("\n" in own[name] for own in values if name in own):
                told = f"{name} has several lines, and a value in a command is one"
                yield text.at(offset).problem("template", told, "a prompt may take it")
