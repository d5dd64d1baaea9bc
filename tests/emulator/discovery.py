"""A validator for the JSON of Compute Engine, from the discovery document that google-api-python-client carries."""

from __future__ import annotations

import base64
import json
import re
from functools import cache
from importlib import resources
from typing import Any


@cache
def document() -> dict[str, Any]:
    """The discovery document of Compute Engine v1."""
    folder = resources.files("googleapiclient.discovery_cache") / "documents"
    return json.loads((folder / "compute.v1.json").read_text())


def faults(name: str, value: Any) -> list[str]:
    """What is wrong with `value` as an instance of the schema called `name`."""
    return list(_faults({"$ref": name}, value, name))


def _faults(schema: dict[str, Any], value: Any, where: str) -> Any:
    if "$ref" in schema:
        schema = document()["schemas"][schema["$ref"]]
    kind = schema.get("type")
    if kind == "object":
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no object"
            return
        known = schema.get("properties", {})
        for key, part in value.items():
            rule = known.get(key) or schema.get("additionalProperties")
            if rule is None:
                yield f"{where}.{key}: unknown"
            else:
                yield from _faults(rule, part, f"{where}.{key}")
    elif kind == "array":
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no list"
            return
        for index, part in enumerate(value):
            yield from _faults(schema["items"], part, f"{where}[{index}]")
    elif not _fits(schema, value):
        yield f"{where}: {value!r} is no {schema.get('format') or kind} {schema.get('enum', '')}"


def _fits(schema: dict[str, Any], value: Any) -> bool:
    kind, form = schema.get("type"), schema.get("format")
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind != "string":
        return True
    if not isinstance(value, str) or ("enum" in schema and value not in schema["enum"]):
        return False
    if form in ("int64", "uint64"):
        return re.fullmatch(r"-?\d+", value) is not None
    if form == "byte":
        return base64.urlsafe_b64encode(base64.urlsafe_b64decode(value)).decode() == value
    return "pattern" not in schema or re.fullmatch(schema["pattern"], value) is not None
