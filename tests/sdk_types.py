"""Owns what the vendors' SDKs say a request must be. Refuses unknown keys, which their types alone let through."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import SchemaSerializer, SchemaValidator


def conforms(provider: str, body: dict[str, Any]) -> None:
    """Fails unless every part of a request's body is of the SDK's type for it, with no key that the type does not
    name, and encodes as UTF-8."""
    validator, serializer = _shape(provider)
    serializer.to_json(validator.validate_python(body), warnings="error")
    json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


@cache
def _shape(provider: str) -> tuple[SchemaValidator, SchemaSerializer]:
    schema: Any = _closed(_params(provider).core_schema)
    return SchemaValidator(schema), SchemaSerializer(schema)


def _params(provider: str) -> TypeAdapter[Any]:
    if provider == "anthropic":
        from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

        return TypeAdapter(MessageCreateParamsNonStreaming)
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

    return TypeAdapter(CompletionCreateParamsNonStreaming)


def _closed(schema: Any) -> Any:
    """The schema with no room for unknown keys in any of its typed dictionaries; without the SDK's models, which it
    takes in their place and which let everything through; and with lists for what it would only read when asked."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_closed, schema))
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "model":
        return {key: schema[key] for key in ("cls", "ref") if key in schema} | {"type": "is-instance"}
    if schema.get("type") == "generator":
        schema = schema | {"type": "list"}
    kept = {key: value if key == "metadata" else _closed(value) for key, value in schema.items()}
    return kept | {"extra_behavior": "forbid"} if schema.get("type") == "typed-dict" else kept
