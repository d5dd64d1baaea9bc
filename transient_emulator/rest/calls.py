"""What all routes of the API share: how a request is read and how its answer is written."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from . import partial, tables, wire

Answer = dict[str, Any] | None
Handler = Callable[[web.Request], Answer | Awaitable[Answer]]
Route = tuple[str, str, Handler]
"""Method, path, handler."""

BASE = "/compute/v1/projects/{project}"
LARGEST_BODY = 32 << 20  # bytes; a thousand VMs with a little metadata each fit in


def answering(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler as aiohttp wants it: its answer (the part that `fields` names) as JSON, or 204 for none."""

    async def answer(request: web.Request) -> web.Response:
        selected = request.query.get("fields")
        mask = partial.parse(selected) if selected else {}
        result = handler(request)
        content = await result if isinstance(result, Awaitable) else result
        return web.Response(status=204) if content is None else web.json_response(partial.select(content, mask))

    return answer


async def body(request: web.Request) -> dict[str, Any]:
    """The JSON object in the request's body; empty if there is none."""
    text = await request.text()
    try:
        content = json.loads(text) if text.strip() else {}
    except json.JSONDecodeError as error:
        raise wire.ApiError(400, "parseError", f"The body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise wire.ApiError(400, "parseError", "The body is not a JSON object")
    return content


def project(request: web.Request) -> str:
    """The project in the request's path."""
    return request.match_info["project"]


def scope(request: web.Request) -> str:
    """`zones/Z`, `regions/R` or `global`, as the request's path says. ApiError 404 for a zone or region unheard of."""
    parts = request.match_info
    if "zone" in parts:
        tables.zone(parts["project"], parts["zone"])
        return f"zones/{parts['zone']}"
    if "region" in parts:
        check_region(parts["project"], parts["region"])
        return f"regions/{parts['region']}"
    return "global"


def check_region(project: str, region: str) -> None:
    """ApiError 404 for a region unheard of."""
    if region not in tables.REGIONS:
        raise wire.not_found(f"projects/{project}/regions/{region}")


def request_id(request: web.Request) -> str | None:
    """The identity that the client gave its request, if it did."""
    return wire.check_request_id(request.query.get("requestId"))


def check_fingerprint(given: object, present: str, what: str = "metadata") -> None:
    """ApiError 412 if `given` is the fingerprint of an earlier state."""
    if given and given != present:
        raise wire.ApiError(412, "conditionNotMet", f"Supplied fingerprint does not match current {what} fingerprint.")


def all_zones() -> list[str]:
    """The zones, as scopes."""
    return [f"zones/{zone}" for zone in tables.ZONES]


def all_regions() -> list[str]:
    """The regions, as scopes."""
    return [f"regions/{region}" for region in tables.REGIONS]
