"""Owns what both providers' adapters need to send a conversation: pairs, ids and clean text.
Refuses to know either provider's shapes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from worker.contract.errors import InvalidFault
from worker.contract.events import Reply, ToolCall
from worker.models.protocol import AssistantMessage, Message, ToolResult, ToolResults, UserMessage

_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NAME_CHARS_MAX: Final = 64
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
LEVELS_MAX: Final = 200
"""How deep a value may be nested that is stored or sent on as JSON: where pydantic's reader stops, which the tools'
arguments go through. Its writer stops at 255."""


@dataclass(frozen=True)
class Turn:
    """An earlier reply and the calls of it that were answered: ToolCall.id -> the id it is sent under.

    A call nobody answered is not sent: those of a cut reply never ran.
    """

    reply: Reply
    sent: dict[str, str]


@dataclass(frozen=True)
class Answers:
    """The results that follow a turn, each with the id its call was sent under."""

    results: tuple[tuple[str, ToolResult], ...]


def paired(messages: tuple[Message, ...], ids: re.Pattern[str] = _ID) -> Iterator[UserMessage | Turn | Answers]:
    """The conversation with every call paired to its result.

    A call is sent under its provider's own id, so that the content stays as it came, unless that is missing, is none
    of the ids that this provider takes, or was used before; then under ours. Raises InvalidFault for a result without
    its call.
    """
    used: set[str] = set()
    sent: dict[str, str] = {}
    for index, message in enumerate(messages):
        match message:
            case AssistantMessage(reply=reply):
                following = messages[index + 1] if index + 1 < len(messages) else None
                answered = {r.call_id for r in following.results} if isinstance(following, ToolResults) else set()
                sent = {call.id: _unused_id(call, used, ids) for call in reply.calls if call.id in answered}
                yield Turn(reply, sent)
            case ToolResults(results=results):
                orphans = [result.call_id for result in results if result.call_id not in sent]
                if orphans:
                    raise InvalidFault(f"results without their calls: {', '.join(orphans)}")
                yield Answers(tuple((sent[result.call_id], result) for result in results))
            case UserMessage():
                yield message


def _unused_id(call: ToolCall, used: set[str], ids: re.Pattern[str]) -> str:
    chosen = call.original_id if ids.fullmatch(call.original_id) and call.original_id not in used else call.id
    while chosen in used:
        chosen += "x"  # a provider made up an id that looks like ours
    used.add(chosen)
    return chosen


def sendable_name(name: str) -> str:
    """The name of a call as every server takes it back: one that a model made up may hold anything, and then each
    later request would be refused."""
    return _NO_NAME.sub("_", name)[:_NAME_CHARS_MAX] or "_"


def arguments_object(arguments: str) -> dict[str, Any]:
    """The arguments as the JSON object every server can read; text that is none is carried inside one."""
    with suppress(ValueError, RecursionError):
        value: Any = clean(json.loads(arguments))
        if isinstance(value, dict) and not _deep(value):
            return value
    return {"malformed_arguments": clean(arguments)}


def sendable_arguments(arguments: str) -> str:
    """The arguments as text: untouched when every server can read them, else as arguments_object carries them."""
    carried = arguments_object(arguments)
    with suppress(ValueError, RecursionError):
        if json.loads(arguments) == carried:
            return arguments
    return json.dumps(carried)


def native(provider: str, key: str, content: Any) -> dict[str, Any] | None:
    """The native form of a provider's reply, None where it is nested so deep that no journal could keep it. Then the
    reply goes back as its text and its calls say, and the tools answer calls with such arguments."""
    return None if _deep(content) else {"provider": provider, key: content}


def _deep(value: Any) -> bool:
    """Whether it has more than LEVELS_MAX levels of objects and lists."""
    level = [value]
    for _ in range(LEVELS_MAX + 1):
        level = [item for one in level for item in _items(one)]
    return bool(level)


def _items(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()


def clean(value: Any) -> Any:
    """A JSON-like value that has valid UTF-8: lone surrogates become U+FFFD, numbers without JSON form text.

    Equal to what was given when nothing had to change.
    """
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value)
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {clean(key): clean(item) for key, item in value.items()}
        case list():
            return [clean(item) for item in value]
        case _:
            return value
