"""The door of Cloud Storage: which request goes where, and how refusals look there.

It takes requests of any server of aiohttp, because VMs reach the same buckets at their metadata server's address.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from aiohttp import web

from ..project import policies
from ..project.state import Project
from ..rest import batches, wire
from . import downloads, in_parts, rights, tokens
from .in_parts import PartUploads
from .rights import Rights
from .service import Call, Reply, Service
from .shelf import Shelf
from .tokens import Tokens
from .uploads import Uploads

_LOG = logging.getLogger(__name__)
_JSON, _DOWNLOAD, _BATCH = "/storage/v1/", "/download/storage/v1/", "/batch/storage/v1"
_UPLOADS = ("/upload/storage/v1/", "/resumable/upload/storage/v1/")
_CLIENT_LEFT = 499
_MOST_CALLS = 100
_MOST = 8 << 20  # bytes of JSON


class Endpoint:
    """Cloud Storage with its files in `folder`."""

    def __init__(self, folder: Path, project: Project) -> None:
        self._shelf = Shelf(folder)
        self._service = Service(self._shelf, lambda location: policies.check_bucket(project, location))
        self._uploads = Uploads(self._shelf, folder)
        self._parts = PartUploads(self._shelf, folder)
        self._tokens = Tokens(folder)

    def serves(self, request: web.BaseRequest) -> bool:
        """Whether a request is meant for Cloud Storage."""
        path = request.rel_url.raw_path
        return path.startswith((_JSON, _DOWNLOAD, _BATCH, *_UPLOADS)) or _in_parts(request)

    async def answer(self, request: web.BaseRequest, own: Rights = rights.ALL) -> web.StreamResponse:
        """Serve it; refusals are answers, too. `own` are the rights of a request that brings no token."""
        try:
            rights.have(self._rights(request, own))
            return await self._answer(request)
        except wire.ApiError as error:
            return self._refusal(request, error)
        except ConnectionError:
            # The client has left in the middle; what it sent of a resumable upload is kept.
            return web.Response(status=_CLIENT_LEFT)
        except OSError as error:
            _LOG.exception("%s %s failed", request.method, request.path)
            why = f"The emulator could not do it: {error.strerror or error}"
            return self._refusal(request, wire.ApiError(503, "backendError", why))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            # Parts of the wrong type: the client's mistake, not ours, but worth a line in the log.
            _LOG.warning("%s %s was not understood", request.method, request.path, exc_info=error)
            return self._refusal(request, wire.ApiError(400, "invalid", f"It cannot be understood: {error!r}"))

    async def exchange(self, request: web.BaseRequest, own: Rights = rights.ALL) -> web.Response:
        """Serve the Security Token Service: a token with a boundary, for who has all `own` rights."""
        if own != rights.ALL:
            return tokens.refusal("invalid_grant", "The subject token lacks the scope cloud-platform.")
        return await self._tokens.answer(request)

    def _rights(self, request: web.BaseRequest, own: Rights) -> Rights:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if not kind:
            return own
        found = self._tokens.rights(token) if kind.lower() == "bearer" else None
        if found is None:
            raise wire.ApiError(401, "authError", "Invalid Credentials")
        return found

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, base = request.rel_url.raw_path, f"{request.scheme}://{request.host}"
        if path.startswith(_UPLOADS):
            return await self._uploads.answer(request, _names(path.partition("/storage/v1/")[2]), base)
        if path.startswith(_BATCH):
            return await self._batch(request, base)
        if path.startswith((_JSON, _DOWNLOAD)):
            names = _names(path.partition("/storage/v1/")[2])
            media = path.startswith(_DOWNLOAD) or request.query.get("alt") == "media"
            if request.method in ("GET", "HEAD") and media and len(names) == 4 and names[2] == "o":
                return await downloads.answer(request, self._shelf, names[1], names[3])
            call = Call(request.method, names, request.query, await _body(request), base)
            return _response(await self._service.answer(call))
        _, bucket, name = path.split("/", 2)
        return await self._parts.answer(request, unquote(bucket), unquote(name))

    async def _batch(self, request: web.BaseRequest, base: str) -> web.Response:
        answers: list[batches.Answer] = []
        for part in batches.split(request.headers.get("Content-Type", ""), await _read(request), _MOST_CALLS):
            url = urlsplit(part.target)
            names, query = _names(url.path.removeprefix(_JSON)), dict(parse_qsl(url.query, keep_blank_values=True))
            try:
                status, content = await self._service.answer(Call(part.method, names, query, _parsed(part.body), base))
            except wire.ApiError as error:
                status, content = error.status, error.body()
            text = b"" if content is None else json.dumps(content).encode()
            answers.append(batches.Answer(part.identity, status, text))
        kind, body = batches.join(answers)
        return web.Response(body=body, headers={"Content-Type": kind})

    def _refusal(self, request: web.BaseRequest, error: wire.ApiError) -> web.Response:
        if _in_parts(request):
            return in_parts.failure(error)
        if request.rel_url.raw_path.startswith(_DOWNLOAD) or request.query.get("alt") == "media":
            return web.Response(status=error.status, text=error.message)
        return web.json_response(error.body(), status=error.status)


def _in_parts(request: web.BaseRequest) -> bool:
    return bool({"uploads", "uploadId"} & request.query.keys()) and request.rel_url.raw_path.count("/") >= 2


def _names(path: str) -> list[str]:
    return [unquote(part) for part in path.split("/")]


def _response(reply: Reply) -> web.Response:
    status, content = reply
    return web.Response(status=status) if content is None else web.json_response(content, status=status)


async def _read(request: web.BaseRequest) -> bytes:
    body = bytearray()
    async for data in request.content.iter_any():
        body += data
        if len(body) > _MOST:
            raise wire.ApiError(413, "uploadTooLarge", "The request is too large.")
    return bytes(body)


async def _body(request: web.BaseRequest) -> dict[str, Any]:
    return _parsed(await _read(request))


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise wire.ApiError(400, "parseError", f"The body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise wire.ApiError(400, "parseError", "The body is not a JSON object")
    return content
