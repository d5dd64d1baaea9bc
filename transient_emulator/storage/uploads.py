"""The three ways in: contents alone, contents with metadata in one body, and in pieces that can be resumed.

A resumable upload is a session with a file of its own, which grows as bytes arrive and survives a broken connection
and the emulator's death; the client asks how far it got and goes on from there.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from transient_magics import places
from transient_magics.files import write_atomically

from ..rest import wire
from . import digests
from .conditions import Conditions
from .digests import Digest
from .incoming import Incoming
from .multipart import Related
from .shelf import Resource, Shelf, shown

_DEFAULT_TYPE = "application/octet-stream"
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+|\*)|\*)/(\d+|\*)")
_KEEP_SECONDS = 7 * 86_400.0
_KEEP_FINISHED = 200  # sessions whose answer may be asked for again
_MOST_JSON = 1 << 20


@dataclass
class Session:
    """One resumable upload. `digest` is that of the bytes in its file; None if nobody knows it yet."""

    identity: str
    bucket: str
    name: str
    fields: dict[str, Any]
    query: dict[str, str]
    total: int | None
    path: Path
    made: Resource | None = None
    digest: Digest | None = None
    writer: asyncio.Task[Any] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def received(self) -> int:
        """How many bytes have arrived."""
        return self.path.stat().st_size if self.path.exists() else 0


class Uploads:
    """Everything below /upload/storage/v1."""

    def __init__(self, shelf: Shelf, folder: Path) -> None:
        self._shelf, self._folder = shelf, folder / "uploads"
        places.private(self._folder)
        self._sessions: dict[str, Session] = {}
        self._load()

    async def answer(self, request: web.BaseRequest, path: list[str], base: str) -> web.Response:
        """`path` is b, BUCKET, o. ApiError where it is refused."""
        if len(path) != 3 or path[0] != "b" or path[2] != "o":
            raise wire.ApiError(404, "notFound", "Not Found")
        if identity := request.query.get("upload_id"):
            session = self._session(identity)
            if request.method == "DELETE":
                self._forget(session)
                return web.json_response({}, status=499)
            if request.method not in ("PUT", "POST"):
                raise wire.ApiError(405, "httpMethodNotAllowed", "Method Not Allowed")
            return await self._continue(request, session, base)
        if request.method not in ("PUT", "POST"):
            raise wire.ApiError(405, "httpMethodNotAllowed", "Method Not Allowed")
        kind = request.query.get("uploadType") or request.headers.get("X-Goog-Upload-Protocol") or "media"
        if kind == "media":
            return await self._media(request, path[1], base)
        if kind == "multipart":
            return await self._multipart(request, path[1], base)
        if kind == "resumable":
            return await self._begin(request, path[1], base)
        raise wire.ApiError(400, "invalid", f"Invalid upload type: '{kind}'.")

    # At once.

    async def _media(self, request: web.BaseRequest, bucket: str, base: str) -> web.Response:
        fields = {"contentType": request.headers.get("Content-Type", _DEFAULT_TYPE)}
        fields |= {"contentEncoding": request.query["contentEncoding"]} if "contentEncoding" in request.query else {}
        stream = request.content.iter_any()
        return await self._store(request, bucket, request.query.get("name", ""), fields, stream, base)

    async def _multipart(self, request: web.BaseRequest, bucket: str, base: str) -> web.Response:
        body = Related(request.headers.get("Content-Type", ""), aiter(request.content.iter_any()))
        fields, kind = await body.head()
        fields.setdefault("contentType", kind or _DEFAULT_TYPE)
        name = fields.get("name") or request.query.get("name", "")
        return await self._store(request, bucket, name, fields, body.contents(), base)

    async def _store(
        self, request: web.BaseRequest, bucket: str, name: str, fields: dict[str, Any], stream: AsyncIterator[bytes],
        base: str,
    ) -> web.Response:  # fmt: skip
        conditions = Conditions.of(request.query)
        self._shelf.check(bucket, name, conditions)
        incoming = Incoming(self._shelf.scratch())
        try:
            await incoming.take(stream)
            check_digest(incoming.digest, fields, request.headers)
            await incoming.close()
            made = await self._shelf.put(bucket, name, fields, incoming.path, incoming.digest, conditions)
        finally:
            incoming.discard()
        return web.json_response(shown(made, base), headers={"ETag": made["etag"]})

    # In pieces.

    async def _begin(self, request: web.BaseRequest, bucket: str, base: str) -> web.Response:
        body = bytearray()
        async for data in request.content.iter_any():
            body += data
            if len(body) > _MOST_JSON:
                raise wire.ApiError(400, "invalid", "The metadata is too long.")
        fields = json.loads(body) if body.strip() else {}
        name = fields.get("name") or request.query.get("name", "")
        fields.setdefault("contentType", request.headers.get("X-Upload-Content-Type", _DEFAULT_TYPE))
        self._shelf.check(bucket, name, Conditions.of(request.query))
        length = request.headers.get("X-Upload-Content-Length", "")
        identity = secrets.token_urlsafe(32)
        query = {key: value for key, value in request.query.items() if key.startswith("if")}
        session = Session(
            identity, bucket, name, fields, query, int(length) if length.isdigit() else None, self._path(identity),
            digest=Digest(),
        )  # fmt: skip
        self._write(session)
        self._sessions[identity] = session
        finished = [each for each in self._sessions.values() if each.made]
        for each in finished[:-_KEEP_FINISHED]:
            self._forget(each)
        # The name stays in the URL only where the client put it.
        named = {key: request.query[key] for key in ("name",) if key in request.query}
        place = request.url.with_query({"uploadType": "resumable", **named, "upload_id": identity})
        headers = {"Location": f"{base}{place.raw_path_qs}", "X-GUploader-UploadID": identity}
        return web.Response(headers=headers)

    async def _continue(self, request: web.BaseRequest, session: Session, base: str) -> web.Response:
        first, total = _range(request)
        if session.made:
            return web.json_response(shown(session.made, base))
        if total is not None and session.total not in (None, total):
            raise wire.ApiError(400, "invalid", f"The upload was declared to have {session.total} bytes.")
        if first is not None:
            # A client that comes again has given up the connection on which it came before.
            if session.writer and not session.writer.done():
                session.writer.cancel()
            async with session.lock:
                session.writer = asyncio.current_task()
                try:
                    await self._receive(request, session, first)
                finally:
                    session.writer = None
            if "Content-Range" not in request.headers:
                total = session.received
        if total is not None and session.received > total:
            self._forget(session)
            raise wire.ApiError(400, "invalid", f"More than the declared {total} bytes have arrived.")
        if total is None or session.received < total:
            arrived = session.received
            return web.Response(status=308, headers={"Range": f"bytes=0-{arrived - 1}"} if arrived else {})
        async with session.lock:
            return await self._finish(request, session, base)

    async def _receive(self, request: web.BaseRequest, session: Session, first: int) -> None:
        present = session.received
        if first > present:
            why = (
                f"Invalid request.  According to the Content-Range header, the upload offset is {first} byte(s), "
                f"which exceeds already uploaded size of {present} byte(s)."
            )
            raise wire.ApiError(503, "backendError", why)
        if session.digest is None or session.digest.size != present:
            session.digest = await asyncio.to_thread(digests.of_file, session.path) if present else Digest()
        incoming = Incoming(session.path, session.digest)
        try:
            await incoming.take(request.content.iter_any(), present - first)
        finally:
            await incoming.close()

    async def _finish(self, request: web.BaseRequest, session: Session, base: str) -> web.Response:
        if session.made is None:
            if session.digest is None or session.digest.size != session.received:
                session.digest = await asyncio.to_thread(digests.of_file, session.path)
            try:
                check_digest(session.digest, session.fields, request.headers)
            except wire.ApiError:
                self._forget(session)
                raise
            if not session.path.exists():
                session.path.touch(mode=0o600)
            conditions = Conditions.of(session.query)
            session.made = await self._shelf.put(
                session.bucket, session.name, session.fields, session.path, session.digest, conditions
            )
            # Whoever lost the answer may ask again.
            self._write(session)
        return web.json_response(shown(session.made, base), headers={"ETag": session.made["etag"]})

    # Sessions.

    def _session(self, identity: str) -> Session:
        try:
            return self._sessions[identity]
        except KeyError:
            raise wire.ApiError(404, "notFound", "No such upload session.") from None

    def _path(self, identity: str) -> Path:
        return self._folder / f"{identity}.part"

    def _write(self, session: Session) -> None:
        saved = {
            "identity": session.identity, "bucket": session.bucket, "name": session.name, "fields": session.fields,
            "query": session.query, "total": session.total, "made": session.made,
        }  # fmt: skip
        write_atomically(self._folder / f"{session.identity}.json", json.dumps(saved), durable=False)

    def _forget(self, session: Session) -> None:
        if session.writer and session.writer is not asyncio.current_task():
            session.writer.cancel()
        self._sessions.pop(session.identity, None)
        (self._folder / f"{session.identity}.json").unlink(missing_ok=True)
        session.path.unlink(missing_ok=True)

    def _load(self) -> None:
        for path in self._folder.glob("*.json"):
            if path.stat().st_mtime < time.time() - _KEEP_SECONDS:
                path.unlink()
            else:
                saved = json.loads(path.read_text(encoding="utf-8"))
                self._sessions[saved["identity"]] = Session(**saved, path=self._path(saved["identity"]))
        for path in self._folder.glob("*.part"):
            if path.stem not in self._sessions:
                path.unlink()


def check_digest(digest: Digest, fields: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """ApiError 400 if contents are not what the client says they are, in its metadata or its headers."""
    claimed = {"crc32c": fields.get("crc32c"), "md5": fields.get("md5Hash") or headers.get("Content-MD5")}
    for each in headers.get("X-Goog-Hash", "").split(","):
        kind, _, value = each.strip().partition("=")
        claimed[kind] = value or None
    for kind, found in (("crc32c", digest.crc32c), ("md5", digest.md5)):
        if claimed.get(kind) and claimed[kind] != found:
            name = {"crc32c": "CRC32C", "md5": "MD5 hash"}[kind]
            why = f'Provided {name} "{claimed[kind]}" doesn\'t match calculated {name} "{found}".'
            raise wire.ApiError(400, "invalid", why)


def _range(request: web.BaseRequest) -> tuple[int | None, int | None]:
    """Which byte a piece begins with (None: it only asks), and how many there are in all (None: not known yet)."""
    text = request.headers.get("Content-Range")
    if text is None:
        return 0, None
    match = _RANGE.fullmatch(text.strip())
    if not match:
        raise wire.ApiError(400, "invalid", f"Invalid Content-Range: '{text}'.")
    total = None if match[3] == "*" else int(match[3])
    return (None if match[1] is None else int(match[1])), total
