"""The metadata server of a VM: what its programs learn about it, and about its preemption.

It serves a tree of values under /computeMetadata/v1/, created from the VM's record for every
answer. `wait_for_change` delays an answer until the value differs from the one that the client has
(`last_etag`); `changed` wakes all that wait.

At the same address, programs in the VM reach Google's services: `Beside` is everything else that is
served there.
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
_GUEST_ATTRIBUTES = ["instance", "guest-attributes"]


class Beside(Protocol):
    """Another service at the same address."""

    @property
    def requests(self) -> RequestFactory | None:
        """The factory of the requests that it can answer; None if it answers any."""
        ...

    def serves(self, request: web.BaseRequest) -> bool:
        """Return whether a request is for it."""
        ...

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request for it."""
        ...


class MetadataServer:
    """The metadata server of one VM.

    Parameters
    ----------
    tree
        Returns the metadata.
    put
        Stores a guest attribute: namespace, key, value (None deletes it).
    allowed
        The check whether a request may be served.
    beside
        Another service at the same address.
    """

    def __init__(
        self,
        tree: Callable[[], Tree],
        put: Callable[[str, str, str | None], None],
        allowed: Callable[[web.BaseRequest], bool] = lambda request: True,
        beside: Beside | None = None,
    ) -> None:
        self._tree = tree
        self._put = put
        self._allowed = allowed
        self._beside = beside
        # A new event after each change: every waiting request waits for the next one.
        self._change = asyncio.Event()
        requests = beside.requests if beside else None
        self._web = web.Server(self._answer, request_factory=requests, access_log=None)
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        """Serve on a listening socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._web, sock=listening)

    async def stop(self) -> None:
        """Drop all connections immediately."""
        if self._server:
            self._server.close()
        # A timeout of 0 would wait for the long polls to end.
        await self._web.shutdown(0.01)

    def changed(self) -> None:
        """Wake all requests that wait for a change."""
        self._change.set()
        self._change = asyncio.Event()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._beside and self._beside.serves(request):
            # Its clients send no header that a web page could not send as well.
            if not self._allowed(request) or guard.from_a_page(request):
                return _failure(403, "This VM belongs to another user.")
            if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
                # aiohttp does that for applications, but not for a plain server.
                request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return await self._beside.answer(request)
        is_root = request.path == "/"
        headers = request.headers
        # Requests that a proxy or a web page forwards are refused, as Google's server does.
        if headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in headers:
            if is_root and request.method == "GET":
                # Clients find out by this answer whether they run on Compute Engine.
                return web.Response(text="computeMetadata/\n", headers=_HEADERS)
            return _failure(403, "Missing Metadata-Flavor:Google header.")
        if not self._allowed(request):
            return _failure(403, "This VM belongs to another user.")
        if is_root:
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
        if path[:2] != _GUEST_ATTRIBUTES or len(path) != 4:
            allowed = "instance/guest-attributes/NAMESPACE/KEY"
            return _failure(405, f"Only guest attributes ({allowed}) can be written.")
        value = await request.text() if request.method == "PUT" else None
        self._put(path[2], path[3], value)
        return web.Response(headers=_HEADERS)

    async def _read(self, request: web.BaseRequest, path: list[str]) -> web.Response:
        query = request.query
        try:
            limit = float(query["timeout_sec"]) if "timeout_sec" in query else None
        except ValueError:
            return _failure(400, "timeout_sec must be a number.")
        if query.get("wait_for_change", "").lower() == "true":
            value = await self._wait_for_change(path, query.get("last_etag"), limit)
        else:
            value = _find(self._tree(), path)
        if value is None:
            return _failure(404, "Not found.")
        return _present(value, request)

    async def _wait_for_change(
        self, path: list[str], last_etag: str | None, limit: float | None
    ) -> Any:
        """Return a value once its etag is not `last_etag`, or after a limit.

        None waits for the next change.
        """
        try:
            async with asyncio.timeout(limit):
                while True:
                    # Before the value is read: a change in between is noticed.
                    change = self._change
                    value = _find(self._tree(), path)
                    etag = _etag(value)
                    if last_etag not in (None, etag):
                        return value
                    last_etag = etag
                    await change.wait()
        except TimeoutError:
            return _find(self._tree(), path)


def _find(tree: Tree, path: list[str]) -> Any:
    """Return the value at `path`; None if there is none."""
    value: Any = tree
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def _etag(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _present(value: Any, request: web.BaseRequest) -> web.Response:
    """Return the answer with a value: a list of names, JSON, or text."""
    headers = {**_HEADERS, "ETag": _etag(value)}
    recursive = request.query.get("recursive", "").lower() == "true"
    if isinstance(value, dict) and not recursive:
        if not request.path.endswith("/"):
            return web.Response(status=301, headers={**_HEADERS, "Location": request.path + "/"})
        text = ""
        for key, inner in value.items():
            text += f"{key}/\n" if isinstance(inner, dict) else f"{key}\n"
    elif request.query.get("alt", "json" if recursive else "text") == "json":
        return web.json_response(_camel(value), headers=headers)
    elif isinstance(value, dict):
        text = _lines(value)
    else:
        text = str(value)
    return web.Response(text=text, headers={**headers, "Content-Type": "application/text"})


def _lines(tree: Tree, prefix: str = "") -> str:
    """Return a line with path and value for each value of a tree."""
    text = ""
    for key, value in tree.items():
        if isinstance(value, dict):
            text += _lines(value, f"{prefix}{key}/")
        else:
            text += f"{prefix}{key} {value}\n"
    return text


def _camel(value: Any, free: bool = False) -> Any:
    """Return a value in the form of JSON.

    Fixed names are in camel case there (`machineType`) and numbered folders are lists. With `free`,
    the names are those of attributes, which stay as they are.
    """
    if not isinstance(value, dict):
        return value
    if value and not free and all(key.isdigit() for key in value):
        return [_camel(inner) for inner in value.values()]
    converted: dict[str, Any] = {}
    for key, inner in value.items():
        name = key if free else _camel_name(key)
        converted[name] = _camel(inner, free or key in ("attributes", "guest-attributes"))
    return converted


def _camel_name(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(part.capitalize() for part in rest)


def _failure(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers=_HEADERS)
