"""Owns what goes when a conversation has no room: old outputs first, then all but its last part, of which the model
makes a summary. Pure; refuses to part a call from its result, and to change what a reply said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from worker.models.protocol import AssistantMessage, Message, ToolResult, ToolResults, UserMessage
from worker.prompts import text

BYTES_PER_TOKEN = 3.5
"""A cautious average: English and code have about 4 bytes a token, other scripts fewer."""

KEEP_TOKENS = 20_000
"""The last part of a conversation, which stays as it is (plan, section 6)."""

PRUNED_BYTES_MIN = 1_000
"""A shorter result is hardly longer than the pointer that would stand for it."""

SHOWN_CHARS = 2_000
"""Of one text in what a summary is made from: what was done and found stands at its beginning or its end."""


def size_bytes(message: Message) -> int:
    """About how much a message adds to a request, in bytes of its texts."""
    match message:
        case UserMessage(text=words):
            return len(words.encode())
        case ToolResults(results=results):
            return sum(len(result.content.encode()) for result in results)
        case AssistantMessage(reply=reply):
            calls = sum(len(call.name) + len(call.arguments.encode()) for call in reply.calls)
            return calls + len(reply.text.encode()) + len(reply.reasoning.encode())


def pruned(messages: Sequence[Message], keep_bytes: int) -> list[Message]:
    """The messages with a pointer in the place of each result but those among the last keep_bytes, and small ones."""
    found: list[Message] = []
    for message in reversed(messages):
        if isinstance(message, ToolResults):
            results: list[ToolResult] = []
            for result in reversed(message.results):
                size = len(result.content.encode())
                keep_bytes -= size
                results.insert(0, result if keep_bytes >= 0 or size < PRUNED_BYTES_MIN else _pointer(result))
            message = ToolResults(tuple(results))
        else:
            keep_bytes -= size_bytes(message)
        found.append(message)
    return found[::-1]


def _pointer(result: ToolResult) -> ToolResult:
    observation = json.loads(result.content)
    observation["output"] = text("pruned", bytes=f"{len(observation['output'].encode()):,}")
    return replace(result, content=json.dumps(observation, ensure_ascii=False))


def first_kept(messages: Sequence[Message], starts: Mapping[int, int], keep_bytes: int) -> int | None:
    """The step that begins what stays beside a summary: the last keep_bytes, or the last step where that is longer.
    None before the first step. starts: step -> index of its reply."""
    chosen, end = None, len(messages)
    for step in sorted(starts, reverse=True):
        keep_bytes -= sum(size_bytes(message) for message in messages[starts[step] : end])
        if keep_bytes < 0 and chosen is not None:
            break
        chosen, end = step, starts[step]
    return chosen


def told(messages: Sequence[Message], most_bytes: int) -> str:
    """The messages as one text for whoever makes a summary, each cut in its middle, and so is all of it."""
    whole = "\n\n".join(part for message in messages for part in _parts(message))
    return clipped(whole, round(most_bytes * len(whole) / max(1, len(whole.encode()))))


def _parts(message: Message) -> list[str]:
    match message:
        case UserMessage(text=words):
            return [f"TOLD: {clipped(words)}"]
        case ToolResults(results=results):
            return [f"RESULT: {clipped(result.content)}" for result in results]
        case AssistantMessage(reply=reply):
            said = [f"AGENT: {clipped(reply.text)}"] if reply.text.strip() else []
            return said + [f"CALL {call.id}: {call.name} {clipped(call.arguments)}" for call in reply.calls]


def clipped(words: str, most_chars: int = SHOWN_CHARS) -> str:
    """The text, or its beginning and end around a note of how much is missing."""
    if len(words) <= most_chars:
        return words
    half = most_chars // 2
    return f"{words[:half]}\n[... {len(words) - 2 * half:,} characters ...]\n{words[len(words) - half :]}"
