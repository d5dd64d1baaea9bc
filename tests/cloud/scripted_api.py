"""A Compute Engine that says what a test tells it to: the real client talks to it over loopback.

It stands for refusals that no emulator produces on demand. A route is a method and a path below the project; its
answers are given one after the other, the last one for ever.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any

from aiohttp import web

PROJECT = "a-project"
ZONE = "us-central1-c"
Answer = dict[str, Any] | tuple[int, dict[str, Any]] | Callable[[], Any]


def refusal(status: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    """A refusal as Compute Engine words it."""
    errors = [{"message": message, "domain": "usageLimits", "reason": reason}]
    return status, {"error": {"code": status, "message": message, "errors": errors}}


def instance(name: str, **fields: Any) -> dict[str, Any]:
    """A VM as Compute Engine describes it."""
    described = {
        "kind": "compute#instance",
        "id": "4711",
        "name": name,
        "zone": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}",
        "status": "RUNNING",
        "creationTimestamp": "2026-01-02T03:04:05.678-08:00",
        "labels": {"cluster": "c1"},
        "machineType": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}/machineTypes/n1-standard-4",
        "metadata": {"items": [{"key": "ssh-keys", "value": "transient:ssh-ed25519 AAAA transient"}]},
        "scheduling": {"preemptible": True, "provisioningModel": "SPOT"},
        "networkInterfaces": [{"networkIP": "10.128.0.5", "accessConfigs": [{"natIP": "34.1.2.3"}]}],
    }
    return described | fields


def operation(name: str = "operation-1", **fields: Any) -> dict[str, Any]:
    """An operation that is done, unless `fields` say otherwise."""
    return {"kind": "compute#operation", "name": name, "status": "DONE", "progress": 100} | fields


class Api:
    """The scripted server, and everything that it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.routes: dict[tuple[str, str], list[Answer]] = {}
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.news = asyncio.Event()
        self.ahead = 0.0
        """By how many seconds its clock is ahead of this machine's."""

    def on(self, method: str, path: str, *answers: Answer) -> None:
        """Answer `method` on `path` (a regular expression, below the project) with `answers`, in turn."""
        self.routes[method, path] = list(answers)

    def asked(self, method: str, path: str) -> list[tuple[dict[str, str], Any]]:
        """Query and body of every request on `path`."""
        return [
            (query, body) for how, where, query, body in self.requests if how == method and re.fullmatch(path, where)
        ]

    async def until_asked(self, method: str, path: str) -> None:
        """Return as soon as `method` has been asked for on `path`."""
        while not self.asked(method, path):
            self.news.clear()
            await self.news.wait()

    async def handle(self, request: web.Request) -> web.Response:
        answer = await self._answer(request)
        answer.headers["Date"] = formatdate(time.time() + self.ahead, usegmt=True)
        return answer

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix(f"/compute/v1/projects/{PROJECT}").lstrip("/")
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.method, path, dict(request.query), body))
        self.news.set()
        for (method, pattern), answers in self.routes.items():
            if method == request.method and re.fullmatch(pattern, path):
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                if callable(answer):
                    answer = await answer()
                status, content = answer if isinstance(answer, tuple) else (200, answer)
                return web.json_response(content, status=status)
        status, content = refusal(404, "notFound", f"The resource '{path}' was not found")
        return web.json_response(content, status=status)


@asynccontextmanager
async def serving() -> AsyncIterator[Api]:
    """Serve an Api on a free port of this machine."""
    api = Api()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", api.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        api.url = f"http://{host}:{port}"
        yield api
    finally:
        await runner.cleanup()


async def forever() -> None:
    """An answer that never comes."""
    await asyncio.Event().wait()


def succeed(api: Api) -> None:
    """Let the insert of the usual VM succeed."""
    api.on("POST", f"zones/{ZONE}/instances", operation())
    api.on("POST", f"zones/{ZONE}/operations/operation-1/wait", operation())
    api.on("GET", f"zones/{ZONE}/instances/c1-worker-1", instance("c1-worker-1"))
