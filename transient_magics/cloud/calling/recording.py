"""What is asked of Google's services and what they answer, in shapes, for a report that may be shown to others.

Off unless the environment variable `places.RECORD_VARIABLE` names a file; only the doctor sets it, for itself and the
programs that it starts. Of an answer are kept which fields there are, their types, and the few values that tell how it
went; of a request its body with long and secret values left out. Of headers the kind of content is looked at, and no
token. What is kept still has names of projects and VMs in it: whoever shows it to others takes them out first.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from ... import places

_LONGEST_VALUE, _MOST_ELEMENTS = 200, 50
_SECRET = ("token", "secret", "password", "private", "credential", "assertion")
TELLING = frozenset(
    (
        "kind", "status", "operationType", "code", "reason", "message", "domain", "statusMessage", "error",
        "error_description", "httpErrorStatusCode", "httpErrorMessage", "provisioningModel", "automaticRestart",
        "instanceTerminationAction", "onHostMaintenance", "preemptible", "metric", "publicAccessPrevention",
        "retentionDurationSeconds", "permissions",
    )
)  # fmt: skip
"""The fields whose values are kept."""
_NAMING = {"compute#operation": ("name", "targetId"), "compute#instance": ("id",)}
"""By kind, the fields whose values later requests name."""
Value: TypeAlias = "Mapping[str, Value] | list[Value] | str | float | bool | None"
"""A JSON value."""


def watched(session: Any) -> Any:
    """The session, which notes what it is answered where that is wanted."""
    if place := os.environ.get(places.RECORD_VARIABLE):
        path = Path(place)

        def note(response: Any, *_: Any, **options: Any) -> None:
            _note(path, response, whole=not options.get("stream"))

        session.hooks["response"].append(note)
    return session


def shape(value: Value) -> Value:
    """Which fields a JSON value has, as the same value with types in the place of what does not tell anything."""
    if isinstance(value, Mapping):
        if any("/" in key for key in value):  # by zone or region
            return {"*": _merged([shape(each) for each in value.values()])}
        kept = _NAMING.get(str(value.get("kind")), ())
        return {key: _field(key, each, naming=key in kept) for key, each in value.items()}
    if isinstance(value, list):
        return [_merged([shape(each) for each in value[:_MOST_ELEMENTS]])] if value else []
    return _type(value)


def sketch(value: Value, key: str = "") -> Value:
    """A request's JSON without what is long or secret."""
    if isinstance(value, Mapping):
        return {name: sketch(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [sketch(each, key) for each in value]
    if any(word in key.lower() for word in _SECRET):
        return "<secret>"
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        return f"<{len(value)} characters>"
    return value


def _field(key: str, value: Value, *, naming: bool) -> Value:
    if key in ("labels", "resourceManagerTags") and isinstance(value, Mapping):
        return {"*": "<string>"} if value else {}
    if (key in TELLING or naming) and not isinstance(value, (Mapping, list)):
        return value if not isinstance(value, str) else value[: 2 * _LONGEST_VALUE]
    if key == "permissions":
        return value
    return shape(value)


def _merged(shapes: list[Value]) -> Value:
    """One shape with the fields of all."""
    objects = [each for each in shapes if isinstance(each, Mapping)]
    if len(objects) < len(shapes):
        return shapes[0]
    merged: dict[str, Value] = {}
    for each in objects:
        for key, value in each.items():
            known = merged.setdefault(key, value)
            if isinstance(known, Mapping) and isinstance(value, Mapping):
                merged[key] = _merged([known, value])
    return merged


def _type(value: Value) -> str:
    if value is None:
        return "<null>"
    names: dict[type[object], str] = {bool: "<boolean>", int: "<number>", float: "<number>", str: "<string>"}
    return names.get(type(value), "<unknown>")


def _note(place: Path, response: Any, *, whole: bool) -> None:
    """Append one exchange as a line. `whole`: the answer is here, and not read piece by piece by somebody else."""
    request, url = response.request, urlsplit(str(response.request.url))
    line: dict[str, Value] = {
        "at": time.time(),
        "host": url.hostname or "",
        "method": request.method,
        "path": unquote(url.path),
        "query": {key: sketch(value, key) for key, value in parse_qsl(url.query)},
        "asked": _asked(request),
        "status": response.status_code,
        "answered": shape(_parsed(response.content)) if whole and _is_json(response.headers) else None,
    }
    handle = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, json.dumps(line).encode() + b"\n")  # at once: several threads and programs write here
    finally:
        os.close(handle)


def _asked(request: Any) -> Value:
    body, kind = request.body, str(request.headers.get("Content-Type", ""))
    if isinstance(body, str):
        body = body.encode()
    if not isinstance(body, bytes) or not body:
        return None
    if "form-urlencoded" in kind:
        return {key: "<form>" for key, _ in parse_qsl(body.decode(errors="replace"))}
    return sketch(_parsed(body)) if "json" in kind else f"<{len(body)} bytes>"


def _is_json(headers: Mapping[str, str]) -> bool:
    return "json" in headers.get("Content-Type", "")


def _parsed(content: bytes) -> Value:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
