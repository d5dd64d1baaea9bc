"""The metadata server of a VM: what programs in it learn about it, and how they hear at once that it is taken away.

A tree of values under /computeMetadata/v1/, made anew from the VM's record for every answer. `wait_for_change` holds an
answer until the value differs from the one that the client knows (`last_etag`); `changed` wakes all who wait.

At the same address programs in the VM find Google's services: `Beside` is whatever else is served there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import web

from ..network import guard

Tree = dict[str, Any]
RequestFactory = Callable[..., web.BaseRequest]
_ROOT = "/computeMetadata/v1"
_HEADERS = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}


class Beside(Protocol):
    """Something else that is served at the same address."""

    @property
    def requests(self) -> RequestFactory | None:
        """What makes the requests that it is to answer, if they have to be of its own kind."""
        ...

    def serves(self, request: web.BaseRequest) -> bool:
        """Whether a request is meant for it."""
        ...

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve it."""
        ...


class MetadataServer:
    """Serves `tree()` on a socket; `put` takes guest attributes (namespace, key, value; None deletes)."""

    def __init__(
        self,
        tree: Callable[[], Tree],
        put: Callable[[str, str, str | None], None],
        allowed: Callable[[web.BaseRequest], bool] = lambda request: True,
        beside: Beside | None = None,
    ) -> None:
        self._tree, self._put, self._allowed, self._beside = tree, put, allowed, beside
        self._change = asyncio.Event()
        requests = beside.requests if beside else None
        self._web = web.Server(self._answer, request_factory=requests, access_log=None)
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        """Serve."""
        self._server = await asyncio.get_running_loop().create_server(self._web, sock=listening)

    async def stop(self) -> None:
        """Drop all connections at once."""
        if self._server:
            self._server.close()
        await self._web.shutdown(0.01)  # 0 would mean: wait for the long polls to end

    def changed(self) -> None:
        """Something in the tree has a new value."""
        self._change.set()
        self._change = asyncio.Event()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._beside and self._beside.serves(request):
            # Its clients send no header that a web page could not send as well.
            if not self._allowed(request) or guard.from_a_page(request):
                return _failure(403, "This VM belongs to somebody else.")
            if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
                request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return await self._beside.answer(request)
        if request.headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in request.headers:
            if request.path == "/" and request.method == "GET":
                return web.Response(text="computeMetadata/\n", headers=_HEADERS)
            return _failure(403, "Missing Metadata-Flavor:Google header.")
        if not self._allowed(request):
            return _failure(403, "This VM belongs to somebody else.")
        if request.path == "/":
            return web.Response(text="computeMetadata/\n", headers=_HEADERS)
        if not request.path.startswith(_ROOT):
            return _failure(404, "Not found.")
        path = [part for part in request.path.removeprefix(_ROOT).split("/") if part]
        if request.method in ("PUT", "DELETE"):
            return await self._write(request, path)
        if request.method != "GET":
            return _failure(405, "Only GET, PUT and DELETE.")
        return await self._read(request, path)

    async def _write(self, request: web.BaseRequest, path: list[str]) -> web.Response:
        if path[:2] != ["instance", "guest-attributes"] or len(path) != 4:
            return _failure(405, "Only guest attributes (instance/guest-attributes/NAMESPACE/KEY) can be written.")
        self._put(path[2], path[3], await request.text() if request.method == "PUT" else None)
        return web.Response(headers=_HEADERS)

    async def _read(self, request: web.BaseRequest, path: list[str]) -> web.Response:
        query = request.query
        try:
            limit = float(query["timeout_sec"]) if "timeout_sec" in query else None
        except ValueError:
            return _failure(400, "timeout_sec must be a number.")
        waits = query.get("wait_for_change", "").lower() == "true"
        known: str | None = query.get("last_etag")
        try:
            async with asyncio.timeout(limit):
                while True:
                    change, value = self._change, _find(self._tree(), path)
                    etag = _etag(value)
                    if not waits or known not in (None, etag):
                        break
                    known = etag
                    await change.wait()
        except TimeoutError:
            value = _find(self._tree(), path)
        if value is None:
            return _failure(404, "Not found.")
        return _write_out(value, request)


def _find(tree: Tree, path: list[str]) -> Any:
    value: Any = tree
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def _etag(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _write_out(value: Any, request: web.BaseRequest) -> web.Response:
    headers = {**_HEADERS, "ETag": _etag(value)}
    recursive = request.query.get("recursive", "").lower() == "true"
    as_json = request.query.get("alt", "json" if recursive else "text") == "json"
    if isinstance(value, dict) and not recursive:
        if not request.path.endswith("/"):
            return web.Response(status=301, headers={**_HEADERS, "Location": request.path + "/"})
        names = [f"{key}/" if isinstance(each, dict) else key for key, each in value.items()]
        return web.Response(
            text="".join(f"{name}\n" for name in names), headers={**headers, "Content-Type": "application/text"}
        )
    if as_json:
        return web.json_response(_camel(value), headers=headers)
    lines = _lines(value) if isinstance(value, dict) else str(value)
    return web.Response(text=lines, headers={**headers, "Content-Type": "application/text"})


def _lines(tree: Tree, prefix: str = "") -> str:
    return "".join(
        _lines(value, f"{prefix}{key}/") if isinstance(value, dict) else f"{prefix}{key} {value}\n"
        for key, value in tree.items()
    )


def _camel(value: Any, free: bool = False) -> Any:
    """JSON writes fixed names in camel case (`machineType`), numbered folders as lists; attributes keep their names."""
    if not isinstance(value, dict):
        return value
    if value and not free and all(key.isdigit() for key in value):
        return [_camel(each) for each in value.values()]
    return {
        key if free else _joined(key): _camel(each, free or key in ("attributes", "guest-attributes"))
        for key, each in value.items()
    }


def _joined(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(part.capitalize() for part in rest)


def _failure(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers=_HEADERS)
