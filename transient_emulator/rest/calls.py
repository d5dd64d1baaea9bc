"""The shared parts of all routes: how a request is read and how its answer is written."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from . import partial, tables, wire

Answer = dict[str, Any] | None
"""The JSON of an answer; None for an answer without a body."""
Handler = Callable[[web.Request], Answer | Awaitable[Answer]]
Route = tuple[str, str, Handler]
"""Method, path and handler."""

BASE = "/compute/v1/projects/{project}"
# A thousand VMs with a little metadata each fit in.
LARGEST_BODY = 32 << 20
"""The largest body of a request, in bytes."""


def answering(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the handler in the form that aiohttp calls.

    The answer becomes JSON, limited to the fields that the parameter `fields` names, or 204 without
    a body.
    """

    async def answer(request: web.Request) -> web.Response:
        # An invalid selection is refused before the handler changes anything.
        selection = request.query.get("fields")
        mask = partial.parse(selection) if selection else {}
        result = handler(request)
        if isinstance(result, Awaitable):
            result = await result
        if result is None:
            return web.Response(status=204)
        return web.json_response(partial.select(result, mask))

    return answer


async def body(request: web.Request) -> dict[str, Any]:
    """Return the JSON object in the request's body; an empty one if there is no body.

    Raises
    ------
    ApiError
        400 if the body is not a JSON object.
    """
    text = await request.text()
    if not text.strip():
        return {}
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise wire.ApiError(400, "parseError", f"The body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise wire.ApiError(400, "parseError", "The body is not a JSON object")
    return content


def project(request: web.Request) -> str:
    """Return the project in the request's path."""
    return request.match_info["project"]


def scope(request: web.Request) -> str:
    """Return the scope in the request's path: `zones/Z`, `regions/R` or `global`.

    Raises
    ------
    ApiError
        404 for an unknown zone or region.
    """
    parts = request.match_info
    if "zone" in parts:
        tables.zone(parts["project"], parts["zone"])
        return f"zones/{parts['zone']}"
    if "region" in parts:
        check_region(parts["project"], parts["region"])
        return f"regions/{parts['region']}"
    return "global"


def check_region(project: str, region: str) -> None:
    """Raise ApiError 404 for an unknown region."""
    if region not in tables.REGIONS:
        raise wire.not_found(f"projects/{project}/regions/{region}")


def request_id(request: web.Request) -> str | None:
    """Return the identity that the client gave its request; None if it gave none."""
    return wire.check_request_id(request.query.get("requestId"))


def check_fingerprint(given: object, present: str, what: str = "metadata") -> None:
    """Raise ApiError 412 if `given` is the fingerprint of an earlier state.

    Parameters
    ----------
    given
        The fingerprint in the request. Without one, the change is made unconditionally.
    present
        The fingerprint of the present state.
    what
        The name of the changed part, for the message.
    """
    if given and given != present:
        message = f"Supplied fingerprint does not match current {what} fingerprint."
        raise wire.ApiError(412, "conditionNotMet", message)


def all_zones() -> list[str]:
    """Return all zones, as scopes."""
    return [f"zones/{zone}" for zone in tables.ZONES]


def all_regions() -> list[str]:
    """Return all regions, as scopes."""
    return [f"regions/{region}" for region in tables.REGIONS]
