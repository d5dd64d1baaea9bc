"""A validator for the JSON of Google's APIs, from the discovery documents that google-api-python-client carries."""

from __future__ import annotations

import base64
import binascii
import json
import re
from functools import cache
from importlib import resources
from typing import Any

REFUSAL = {"code": int, "message": str, "errors": list}
"""What the `error` of every refusal has; the discovery documents say nothing about it."""


@cache
def document(api: str = "compute") -> dict[str, Any]:
    """The discovery document of an API, `storage`, or `orgpolicy.v2` where it is not version 1."""
    folder = resources.files("googleapiclient.discovery_cache") / "documents"
    return json.loads((folder / f"{api if '.' in api else f'{api}.v1'}.json").read_text(encoding="utf-8"))


def faults(name: str, value: Any, api: str = "compute") -> list[str]:
    """What is wrong with `value` as an instance of the schema called `name`."""
    return list(_faults(api, {"$ref": name}, value, name))


def refusal_faults(status: int, value: Any) -> list[str]:
    """What is wrong with the body of an answer with this status of 400 and more."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or set(value) != {"error"}:
        return [f"{value!r} is no refusal"]
    wrong = [
        f"error.{key}: {error.get(key)!r}" for key, kind in REFUSAL.items() if not isinstance(error.get(key), kind)
    ]
    wrong += [f"error.code: {error.get('code')} with status {status}"] if error.get("code") != status else []
    for each in error.get("errors") or [{}]:
        wrong += [f"error.errors: no {key}" for key in ("message", "domain", "reason") if not each.get(key)]
    return wrong


def _faults(api: str, schema: dict[str, Any], value: Any, where: str) -> Any:
    if "$ref" in schema:
        schema = document(api)["schemas"][schema["$ref"]]
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
                yield from _faults(api, rule, part, f"{where}.{key}")
    elif kind == "array":
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no list"
            return
        for index, part in enumerate(value):
            yield from _faults(api, schema["items"], part, f"{where}[{index}]")
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
        try:
            return base64.urlsafe_b64encode(base64.urlsafe_b64decode(value)).decode() == value
        except binascii.Error:
            return False
    return "pattern" not in schema or re.fullmatch(schema["pattern"], value) is not None
