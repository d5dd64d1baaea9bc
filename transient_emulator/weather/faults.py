"""API faults: requests that fail, answers that are late, credentials that have expired.

A share of the requests to Compute Engine (not of those under /emulator/) fails, each in one of ten
ways with the same probability. Six fail before the request took any effect: 403
`rateLimitExceeded`, 429, 500, 502, 503, and a dropped connection. Four fail after it has taken its
full effect, so that only the answer is lost: 500, 502, 503, and a dropped connection. The seed and
the number of a request decide whether and how it fails. While credentials count as expired, every
request is refused with 401 instead.
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
"""The ways to fail, each with whether the request takes effect."""
# Nine of ten values of a normal distribution are within this many standard deviations.
_NINETY_FIFTH = 1.6449
_BAD_GATEWAY = """<!DOCTYPE html>
<html lang=en>
<title>Error 502 (Server Error)!!1</title>
<p><b>502.</b> <ins>That's an error.</ins>
<p>The server encountered a temporary error and could not complete your request.\
<p>Please try again in 30 seconds.
"""


class Faults:
    """The middleware of API faults. `settings` returns the present weather."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._numbers = itertools.count()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Delay or fail requests to Compute Engine as the weather says."""
        if not request.path.startswith("/compute/"):
            return await handler(request)
        weather = self._settings()
        if weather.credentials and weather.credentials.holds(time.time()):
            return web.json_response(_unauthenticated(), status=401)
        if not (weather.api_errors or weather.api_latency):
            return await handler(request)
        number = next(self._numbers)
        if weather.api_latency:
            await asyncio.sleep(_delay(weather.api_latency, weather.seed, number))
        if chance.uniform(weather.seed, "api", number) >= weather.api_errors:
            return await handler(request)
        way, takes_effect = chance.pick(WAYS, weather.seed, "way", number)
        if takes_effect:
            await handler(request)
        return _fail(request, way)


def _delay(latency: Latency, seed: int, number: int) -> float:
    """Return the seconds by which an answer is late: log-normally distributed."""
    middle = math.log(latency.low * latency.high) / 2
    spread = math.log(latency.high / latency.low) / 2
    deviation = spread / _NINETY_FIFTH
    return math.exp(chance.normal(middle, deviation, seed, "latency", number))


def _fail(request: web.Request, way: str) -> web.Response:
    if way == "drop":
        if request.transport:
            request.transport.abort()
        # No client receives it: the connection is gone.
        return web.Response(status=503)
    if way == "502":
        return web.Response(status=502, text=_BAD_GATEWAY, content_type="text/html")
    status, content = body(way, request)
    return web.json_response(content, status=status)


def _unauthenticated() -> dict[str, Any]:
    message = (
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login "
        "cookie or other valid authentication credential."
    )
    error = wire.ApiError(401, "authError", message).body()
    detail = error["error"]["errors"][0]
    detail["message"] = "Invalid Credentials"
    detail["location"] = "Authorization"
    detail["locationType"] = "header"
    error["error"]["status"] = "UNAUTHENTICATED"
    return error


def body(way: str, request: web.BaseRequest) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of a failure in the form of Google's services.

    Parameters
    ----------
    way
        `rate`, `429`, `500` or `503`.
    request
        The request that fails.
    """
    match way:
        case "rate":
            message = _quota_exceeded(request)
            return 403, wire.ApiError(403, "rateLimitExceeded", message).body()
        case "429":
            return 429, _too_many_requests(request)
        case "500":
            message = "Internal error. Please try again or contact Google Support."
            return 500, wire.ApiError(500, "internalError", message).body()
        case _:
            message = "The service is currently unavailable. Please try again in 30 seconds."
            return 503, wire.ApiError(503, "backendError", message).body()


def _too_many_requests(request: web.BaseRequest) -> dict[str, Any]:
    metric = _metric(request)
    error = wire.ApiError(429, "rateLimitExceeded", _quota_exceeded(request)).body()
    metadata = {
        "service": "compute.googleapis.com",
        "consumer": f"projects/{_consumer(request)}",
        "quota_limit": _limit(metric),
        "quota_metric": f"compute.googleapis.com/{metric.lower().replace(' ', '_')}",
    }
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "RATE_LIMIT_EXCEEDED",
        "domain": "googleapis.com",
        "metadata": metadata,
    }
    error["error"]["status"] = "RESOURCE_EXHAUSTED"
    error["error"]["details"] = [info]
    return error


def _quota_exceeded(request: web.BaseRequest) -> str:
    metric = _metric(request)
    return (
        f"Quota exceeded for quota metric '{metric}' and limit '{_limit(metric)}' of service "
        f"'compute.googleapis.com' for consumer 'project_number:{_consumer(request)}'."
    )


def _metric(request: web.BaseRequest) -> str:
    return "Read requests" if request.method == "GET" else "Mutate requests"


def _limit(metric: str) -> str:
    return f"{metric} per minute per region"


def _consumer(request: web.BaseRequest) -> str:
    project = request.path.partition("/projects/")[2].partition("/")[0]
    return wire.fixed_id("projects", project)
