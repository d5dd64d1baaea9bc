"""The entrance of Cloud Storage: where each request goes, and what refusals look like.

It takes requests of any aiohttp server, because VMs reach the same buckets at their metadata
server's address.
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
from .service import Call, Service
from .shelf import Shelf
from .tokens import Tokens
from .uploads import Uploads

_LOG = logging.getLogger(__name__)
_JSON = "/storage/v1/"
_DOWNLOAD = "/download/storage/v1/"
_BATCH = "/batch/storage/v1"
_UPLOADS = ("/upload/storage/v1/", "/resumable/upload/storage/v1/")
# Nginx's status for a client that closed its connection. No client sees it.
_CLIENT_LEFT = 499
# Cloud Storage's limit of one batch.
_MOST_CALLS = 100
_LARGEST_JSON = 8 << 20


class Endpoint:
    """Cloud Storage with its files in `folder`. The state of `project` limits its buckets."""

    def __init__(self, folder: Path, project: Project) -> None:
        self._shelf = Shelf(folder)
        self._service = Service(
            self._shelf, lambda location: policies.check_bucket(project, location)
        )
        self._uploads = Uploads(self._shelf, folder)
        self._parts = PartUploads(self._shelf, folder)
        self._tokens = Tokens(folder)

    def serves(self, request: web.BaseRequest) -> bool:
        """Return whether a request is for Cloud Storage."""
        path = request.rel_url.raw_path
        return path.startswith((_JSON, _DOWNLOAD, _BATCH, *_UPLOADS)) or _in_parts(request)

    async def answer(
        self, request: web.BaseRequest, own: Rights = rights.ALL
    ) -> web.StreamResponse:
        """Answer a request. Refusals are answers, too.

        Parameters
        ----------
        request
            The request.
        own
            The rights of a request without a token.
        """
        try:
            rights.use(self._rights(request, own))
            return await self._answer(request)
        except wire.ApiError as error:
            return self._refusal(request, error)
        except ConnectionError:
            # The client left before the end. What it sent of a resumable upload is kept.
            return web.Response(status=_CLIENT_LEFT)
        except OSError as error:
            _LOG.exception("%s %s failed", request.method, request.path)
            why = f"The emulator could not do it: {error.strerror or error}"
            return self._refusal(request, wire.ApiError(503, "backendError", why))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            # Parts of the wrong type: the client's mistake, not ours, but worth a line in the log.
            _LOG.warning("%s %s is invalid", request.method, request.path, exc_info=error)
            why = f"It cannot be understood: {error!r}"
            return self._refusal(request, wire.ApiError(400, "invalid", why))

    async def exchange(self, request: web.BaseRequest, own: Rights = rights.ALL) -> web.Response:
        """Answer a request to the Security Token Service: a token with a boundary.

        Parameters
        ----------
        request
            The request.
        own
            The rights of the client. It needs all of them.
        """
        if own != rights.ALL:
            why = "The subject token lacks the scope cloud-platform."
            return tokens.refusal("invalid_grant", why)
        return await self._tokens.answer(request)

    def _rights(self, request: web.BaseRequest, own: Rights) -> Rights:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if not kind:
            return own
        found = None
        if kind.lower() == "bearer":
            found = self._tokens.rights(token)
        if found is None:
            raise wire.ApiError(401, "authError", "Invalid Credentials")
        return found

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        # Links in answers lead to the address at which the client reached this emulator.
        base = f"{request.scheme}://{request.host}"
        if path.startswith(_BATCH):
            return await self._batch(request, base)
        if not path.startswith((_JSON, _DOWNLOAD, *_UPLOADS)):
            _, bucket, name = path.split("/", 2)
            return await self._parts.answer(request, unquote(bucket), unquote(name))
        names = _names(path.partition("/storage/v1/")[2])
        if path.startswith(_UPLOADS):
            return await self._uploads.answer(request, names, base)
        media = path.startswith(_DOWNLOAD) or request.query.get("alt") == "media"
        is_object = len(names) == 4 and names[2] == "o"
        if request.method in ("GET", "HEAD") and media and is_object:
            return await downloads.answer(request, self._shelf, names[1], names[3])
        body = _parse(await _read(request))
        call = Call(request.method, names, request.query, body, base)
        status, content = await self._service.answer(call)
        if content is None:
            return web.Response(status=status)
        return web.json_response(content, status=status)

    async def _batch(self, request: web.BaseRequest, base: str) -> web.Response:
        content_type = request.headers.get("Content-Type", "")
        parts = batches.split(content_type, await _read(request), _MOST_CALLS)
        answers: list[batches.Answer] = []
        for part in parts:
            url = urlsplit(part.target)
            names = _names(url.path.removeprefix(_JSON))
            query = dict(parse_qsl(url.query, keep_blank_values=True))
            try:
                call = Call(part.method, names, query, _parse(part.body), base)
                status, content = await self._service.answer(call)
            except wire.ApiError as error:
                status = error.status
                content = error.body()
            text = b"" if content is None else json.dumps(content).encode()
            answers.append(batches.Answer(part.identity, status, text))
        kind, body = batches.join(answers)
        return web.Response(body=body, headers={"Content-Type": kind})

    def _refusal(self, request: web.BaseRequest, error: wire.ApiError) -> web.Response:
        """Return a refusal in the form of the requested API: XML, text for media, or JSON."""
        if _in_parts(request):
            return in_parts.failure(error)
        is_download = request.rel_url.raw_path.startswith(_DOWNLOAD)
        if is_download or request.query.get("alt") == "media":
            return web.Response(status=error.status, text=error.message)
        return web.json_response(error.body(), status=error.status)


def _in_parts(request: web.BaseRequest) -> bool:
    """Return whether a request belongs to an upload in parts, whose path is /BUCKET/OBJECT."""
    has_query = bool({"uploads", "uploadId"} & request.query.keys())
    return has_query and request.rel_url.raw_path.count("/") >= 2


def _names(path: str) -> list[str]:
    # Object names contain slashes, which clients quote. So the path is split first and unquoted
    # then.
    return [unquote(part) for part in path.split("/")]


async def _read(request: web.BaseRequest) -> bytes:
    body = bytearray()
    async for data in request.content.iter_any():
        body += data
        if len(body) > _LARGEST_JSON:
            raise wire.ApiError(413, "uploadTooLarge", "The request is too large.")
    return bytes(body)


def _parse(text: bytes) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        content = json.loads(text)
    except ValueError as error:
        raise wire.ApiError(400, "parseError", f"The body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise wire.ApiError(400, "parseError", "The body is not a JSON object")
    return content
