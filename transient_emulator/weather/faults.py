"""An API that fails now and then, and answers late: refused for its rate, broken inside, or cut off.

Of the requests to Compute Engine (not of those under /emulator/) a share fails, each in one of ten ways, all equally
likely: six before the request took any effect (403 `rateLimitExceeded`, 429, 500, 502, 503, connection dropped) and
four after it has taken its full effect, so that only the answer is lost (500, 502, 503, connection dropped). Which
requests fail and how follows from the seed and the request's number. While credentials count as expired, every one is
refused with 401 instead.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from ..rest import wire
from . import chance
from .settings import Latency, Settings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BEFORE = ("rate", "429", "500", "502", "503", "drop")
_AFTER = ("500", "502", "503", "drop")
WAYS = (*((way, False) for way in _BEFORE), *((way, True) for way in _AFTER))
_NINETY_FIFTH = 1.6449  # of a standard normal distribution
_BAD_GATEWAY = """<!DOCTYPE html>
<html lang=en>
<title>Error 502 (Server Error)!!1</title>
<p><b>502.</b> <ins>That's an error.</ins>
<p>The server encountered a temporary error and could not complete your request.<p>Please try again in 30 seconds.
"""


class Faults:
    """The middleware. `settings()` is the present weather."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._numbers = itertools.count()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """For aiohttp."""
        weather = self._settings()
        if not request.path.startswith("/compute/"):
            return await handler(request)
        if weather.credentials and weather.credentials.holds(time.time()):
            return web.json_response(_unauthenticated(), status=401)
        if not (weather.api_errors or weather.api_latency):
            return await handler(request)
        number = next(self._numbers)
        if weather.api_latency:
            await asyncio.sleep(_delay(weather.api_latency, weather.seed, number))
        if chance.uniform(weather.seed, "api", number) >= weather.api_errors:
            return await handler(request)
        way, afterwards = chance.pick(WAYS, weather.seed, "way", number)
        if afterwards:
            await handler(request)
        return _fail(request, way)


def _delay(latency: Latency, seed: int, number: int) -> float:
    middle, spread = (math.log(latency.low * latency.high) / 2, math.log(latency.high / latency.low) / 2)
    return math.exp(chance.normal(middle, spread / _NINETY_FIFTH, seed, "latency", number))


def _fail(request: web.Request, way: str) -> web.Response:
    if way == "drop":
        if request.transport:
            request.transport.abort()
        return web.Response(status=503)  # Nobody receives it: the connection is gone.
    if way == "502":
        return web.Response(status=502, text=_BAD_GATEWAY, content_type="text/html")
    status, content = body(way, request)
    return web.json_response(content, status=status)


def _unauthenticated() -> dict[str, Any]:
    message = (
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid "
        "authentication credential."
    )
    error = wire.ApiError(401, "authError", message).body()
    error["error"]["errors"][0] |= {"message": "Invalid Credentials", "location": "Authorization"}
    error["error"]["errors"][0] |= {"locationType": "header"}
    error["error"]["status"] = "UNAUTHENTICATED"
    return error


def body(way: str, request: web.BaseRequest) -> tuple[int, dict[str, Any]]:
    """Status and JSON of a failure as Compute Engine writes it (of 429: as Google's newer services do)."""
    project = request.path.partition("/projects/")[2].partition("/")[0]
    consumer = wire.fixed_id("projects", project)
    kind = "Read requests" if request.method == "GET" else "Mutate requests"
    limit = f"{kind} per minute per region"
    exceeded = (
        f"Quota exceeded for quota metric '{kind}' and limit '{limit}' of service 'compute.googleapis.com' "
        f"for consumer 'project_number:{consumer}'."
    )
    match way:
        case "rate":
            return 403, wire.ApiError(403, "rateLimitExceeded", exceeded).body()
        case "429":
            error = wire.ApiError(429, "rateLimitExceeded", exceeded).body()
            metadata = {
                "service": "compute.googleapis.com", "consumer": f"projects/{consumer}", "quota_limit": limit,
                "quota_metric": f"compute.googleapis.com/{kind.lower().replace(' ', '_')}",
            }  # fmt: skip
            error["error"] |= {"status": "RESOURCE_EXHAUSTED", "details": [{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED",
                "domain": "googleapis.com", "metadata": metadata}]}  # fmt: skip
            return 429, error
        case "500":
            message = "Internal error. Please try again or contact Google Support."
            return 500, wire.ApiError(500, "internalError", message).body()
        case _:
            message = "The service is currently unavailable. Please try again in 30 seconds."
            return 503, wire.ApiError(503, "backendError", message).body()
