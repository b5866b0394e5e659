"""Owns the JSON Schema of a manifest, for editors and other programs. Refuses to say anything that the models do not:
what each key means is read out of their docstrings.
"""

from __future__ import annotations

import re
from typing import Any

from scheduler.manifests.manifest import Manifest


def manifest_schema() -> dict[str, Any]:
    """JSON Schema (2020-12). It knows every key, type and bound; what two values say together, only `dawn validate`
    judges."""
    schema = Manifest.model_json_schema()
    for noun in (schema, *schema.get("$defs", {}).values()):
        _describe(noun)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Dawnfleet manifest"}


def _describe(noun: dict[str, Any]) -> None:
    """Give each property what its model's docstring says behind the property's name: `name: what it is.`"""
    properties: dict[str, dict[str, Any]] = noun.get("properties", {})
    text = " ".join(noun.get("description", "").split())
    if not properties or not text:
        return
    name = "|".join(sorted(properties, key=len, reverse=True))
    head, *parts = re.split(rf"(?:^|(?<=\. ))((?:{name})(?:, (?:{name}))*)(?: \([^()]*\))?: ", text)
    for names, told in zip(parts[::2], parts[1::2], strict=True):
        for one in names.split(", "):
            properties[one].setdefault("description", told.strip())
    noun["description"] = head.strip() or text
