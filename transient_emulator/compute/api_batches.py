"""`/batch/compute/v1`: many requests of Compute Engine's API in one, served at the same time."""

from __future__ import annotations

import asyncio

from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from ..rest import batches

_MOST = 1000


def add_to(application: web.Application) -> None:
    """Register the route."""

    async def answer(request: web.Request) -> web.Response:
        # Only what has not been read can be cloned.
        blank = request.clone()
        parts = batches.split(request.headers.get("Content-Type", ""), await request.read(), _MOST)
        answers = await asyncio.gather(*(_one(application, blank, part) for part in parts))
        kind, body = batches.join(answers)
        return web.Response(body=body, headers={"Content-Type": kind})

    application.router.add_post("/batch/compute/v1", answer)


async def _one(application: web.Application, blank: web.Request, part: batches.Part) -> batches.Answer:
    headers = CIMultiDict({"Host": blank.host, "Content-Type": part.headers.get("Content-Type", "application/json")})
    inner = blank.clone(method=part.method, rel_url=URL(part.target, encoded=True), headers=headers)
    # aiohttp has no public way to serve a request that did not come alone over a connection.
    inner._read_bytes = part.body
    response = await application._handle(inner)
    text = response.body if isinstance(response, web.Response) and isinstance(response.body, bytes) else b""
    return batches.Answer(part.identity, response.status, text)
