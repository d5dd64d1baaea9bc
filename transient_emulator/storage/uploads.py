"""Uploads: contents alone, contents with metadata in one body, and resumable pieces.

A resumable upload is a session with a file of its own, which grows as bytes arrive and survives a
broken connection and the emulator's death. The client asks how much has arrived and continues from
there.
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
from .shelf import Resource, Shelf, public

_DEFAULT_TYPE = "application/octet-stream"
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+|\*)|\*)/(\d+|\*)")
# Cloud Storage drops unfinished sessions after a week.
_KEEP_SECONDS = 7 * 86_400.0
# Finished sessions whose answer a client may request again.
_KEEP_FINISHED = 200
_LARGEST_JSON = 1 << 20
# Cloud Storage's status for a cancelled upload.
_CANCELLED = 499


@dataclass
class Session:
    """One resumable upload.

    Attributes
    ----------
    identity
        Its id in URLs.
    bucket, name, fields
        The object that it will be, with its metadata.
    query
        The preconditions in the parameters of its first request.
    total
        Its declared size in bytes; None if the client did not declare it.
    path
        The file of the bytes that have arrived.
    made
        The object, once the upload is finished.
    digest
        The checksums of the file; None if they are not computed.
    writer
        The task of the request that is sending bytes.
    lock
        Held while a request writes or finishes.
    """

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
        """The number of bytes that have arrived."""
        if not self.path.exists():
            return 0
        return self.path.stat().st_size


class Uploads:
    """Everything below /upload/storage/v1."""

    def __init__(self, shelf: Shelf, folder: Path) -> None:
        self._shelf = shelf
        self._folder = folder / "uploads"
        places.private(self._folder)
        self._sessions: dict[str, Session] = {}
        self._load()

    async def answer(self, request: web.BaseRequest, path: list[str], base: str) -> web.Response:
        """Answer a request.

        Parameters
        ----------
        request
            The request.
        path
            The decoded parts of its path: b, BUCKET, o.
        base
            The URL at which the client reached this emulator.

        Raises
        ------
        ApiError
            If the request is refused.
        """
        if len(path) != 3 or path[0] != "b" or path[2] != "o":
            raise wire.ApiError(404, "notFound", "Not Found")
        bucket = path[1]
        identity = request.query.get("upload_id")
        if identity:
            return await self._answer_session(request, self._session(identity), base)
        _check_method(request)
        protocol = request.headers.get("X-Goog-Upload-Protocol")
        kind = request.query.get("uploadType") or protocol or "media"
        match kind:
            case "media":
                return await self._media(request, bucket, base)
            case "multipart":
                return await self._multipart(request, bucket, base)
            case "resumable":
                return await self._begin(request, bucket, base)
        raise wire.ApiError(400, "invalid", f"Invalid upload type: '{kind}'.")

    # -------------------- uploads in one request

    async def _media(self, request: web.BaseRequest, bucket: str, base: str) -> web.Response:
        fields = {"contentType": request.headers.get("Content-Type", _DEFAULT_TYPE)}
        if "contentEncoding" in request.query:
            fields["contentEncoding"] = request.query["contentEncoding"]
        name = request.query.get("name", "")
        stream = request.content.iter_any()
        return await self._store(request, bucket, name, fields, stream, base)

    async def _multipart(self, request: web.BaseRequest, bucket: str, base: str) -> web.Response:
        content_type = request.headers.get("Content-Type", "")
        body = Related(content_type, aiter(request.content.iter_any()))
        fields, kind = await body.head()
        fields.setdefault("contentType", kind or _DEFAULT_TYPE)
        name = fields.get("name") or request.query.get("name", "")
        return await self._store(request, bucket, name, fields, body.contents(), base)

    async def _store(
        self,
        request: web.BaseRequest,
        bucket: str,
        name: str,
        fields: dict[str, Any],
        stream: AsyncIterator[bytes],
        base: str,
    ) -> web.Response:
        conditions = Conditions.from_query(request.query)
        # Checked before the contents are received, and by `put` again.
        self._shelf.check(bucket, name, conditions)
        incoming = Incoming(self._shelf.scratch())
        try:
            await incoming.take(stream)
            check_digest(incoming.digest, fields, request.headers)
            await incoming.close()
            created = await self._shelf.put(
                bucket, name, fields, incoming.path, incoming.digest, conditions
            )
        finally:
            incoming.discard()
        return web.json_response(public(created, base), headers={"ETag": created["etag"]})

    # -------------------- resumable uploads

    async def _begin(self, request: web.BaseRequest, bucket: str, base: str) -> web.Response:
        body = bytearray()
        async for data in request.content.iter_any():
            body += data
            if len(body) > _LARGEST_JSON:
                raise wire.ApiError(400, "invalid", "The metadata is too long.")
        fields = json.loads(body) if body.strip() else {}
        name = fields.get("name") or request.query.get("name", "")
        content_type = request.headers.get("X-Upload-Content-Type", _DEFAULT_TYPE)
        fields.setdefault("contentType", content_type)
        self._shelf.check(bucket, name, Conditions.from_query(request.query))
        length = request.headers.get("X-Upload-Content-Length", "")
        identity = secrets.token_urlsafe(32)
        session = Session(
            identity,
            bucket,
            name,
            fields,
            query={key: value for key, value in request.query.items() if key.startswith("if")},
            total=int(length) if length.isdigit() else None,
            path=self._path(identity),
            digest=Digest(),
        )
        self._save(session)
        self._sessions[identity] = session
        finished = [other for other in self._sessions.values() if other.made]
        for old in finished[:-_KEEP_FINISHED]:
            self._forget(old)
        query = {"uploadType": "resumable", "upload_id": identity}
        # The name is in the URL only if the client put it there.
        if "name" in request.query:
            query["name"] = request.query["name"]
        location = request.url.with_query(query).raw_path_qs
        headers = {"Location": f"{base}{location}", "X-GUploader-UploadID": identity}
        return web.Response(headers=headers)

    async def _answer_session(
        self, request: web.BaseRequest, session: Session, base: str
    ) -> web.Response:
        if request.method == "DELETE":
            self._forget(session)
            return web.json_response({}, status=_CANCELLED)
        _check_method(request)
        first, total = _range(request)
        if session.made:
            return web.json_response(public(session.made, base))
        if total is not None and session.total not in (None, total):
            why = f"The upload was declared to have {session.total} bytes."
            raise wire.ApiError(400, "invalid", why)
        if first is not None:
            # A client that sends another request has given up the connection of the earlier one.
            if session.writer and not session.writer.done():
                session.writer.cancel()
            async with session.lock:
                session.writer = asyncio.current_task()
                try:
                    await self._receive(request, session, first)
                finally:
                    session.writer = None
            if "Content-Range" not in request.headers:
                # The request had all of it.
                total = session.received
        received = session.received
        if total is not None and received > total:
            self._forget(session)
            why = f"More than the declared {total} bytes have arrived."
            raise wire.ApiError(400, "invalid", why)
        if total is None or received < total:
            headers = {"Range": f"bytes=0-{received - 1}"} if received else {}
            return web.Response(status=308, headers=headers)
        async with session.lock:
            return await self._finish(request, session, base)

    async def _receive(self, request: web.BaseRequest, session: Session, first: int) -> None:
        """Append the bytes of a request, which start at `first`, to the session's file."""
        present = session.received
        if first > present:
            why = (
                "Invalid request.  According to the Content-Range header, the upload offset is "
                f"{first} byte(s), which exceeds already uploaded size of {present} byte(s)."
            )
            raise wire.ApiError(503, "backendError", why)
        if session.digest is None or session.digest.size != present:
            # The session comes from an earlier emulator.
            session.digest = Digest()
            if present:
                session.digest = await asyncio.to_thread(digests.of_file, session.path)
        incoming = Incoming(session.path, session.digest)
        try:
            # Clients may send bytes again that have arrived already.
            await incoming.take(request.content.iter_any(), present - first)
        finally:
            await incoming.close()

    async def _finish(self, request: web.BaseRequest, session: Session, base: str) -> web.Response:
        # Another request may have finished it while this one waited for the lock.
        if session.made is None:
            if session.digest is None or session.digest.size != session.received:
                session.digest = await asyncio.to_thread(digests.of_file, session.path)
            try:
                check_digest(session.digest, session.fields, request.headers)
            except wire.ApiError:
                self._forget(session)
                raise
            if not session.path.exists():
                # An empty object.
                session.path.touch(mode=0o600)
            session.made = await self._shelf.put(
                session.bucket,
                session.name,
                session.fields,
                session.path,
                session.digest,
                Conditions.from_query(session.query),
            )
            # A client that lost the answer may ask again.
            self._save(session)
        headers = {"ETag": session.made["etag"]}
        return web.json_response(public(session.made, base), headers=headers)

    # -------------------- sessions

    def _session(self, identity: str) -> Session:
        try:
            return self._sessions[identity]
        except KeyError:
            raise wire.ApiError(404, "notFound", "No such upload session.") from None

    def _path(self, identity: str) -> Path:
        return self._folder / f"{identity}.part"

    def _save(self, session: Session) -> None:
        saved = {
            "identity": session.identity,
            "bucket": session.bucket,
            "name": session.name,
            "fields": session.fields,
            "query": session.query,
            "total": session.total,
            "made": session.made,
        }
        path = self._folder / f"{session.identity}.json"
        write_atomically(path, json.dumps(saved), durable=False)

    def _forget(self, session: Session) -> None:
        if session.writer and session.writer is not asyncio.current_task():
            session.writer.cancel()
        self._sessions.pop(session.identity, None)
        (self._folder / f"{session.identity}.json").unlink(missing_ok=True)
        session.path.unlink(missing_ok=True)

    def _load(self) -> None:
        oldest = time.time() - _KEEP_SECONDS
        for path in self._folder.glob("*.json"):
            if path.stat().st_mtime < oldest:
                path.unlink()
                continue
            saved = json.loads(path.read_text(encoding="utf-8"))
            identity = saved["identity"]
            self._sessions[identity] = Session(**saved, path=self._path(identity))
        for path in self._folder.glob("*.part"):
            if path.stem not in self._sessions:
                path.unlink()


def _check_method(request: web.BaseRequest) -> None:
    if request.method not in ("PUT", "POST"):
        raise wire.ApiError(405, "httpMethodNotAllowed", "Method Not Allowed")


def check_digest(digest: Digest, fields: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Check contents against the checksums that the client declares.

    Parameters
    ----------
    digest
        The checksums of the contents.
    fields, headers
        The object's metadata and the headers of the request, both of which may declare checksums.

    Raises
    ------
    ApiError
        400 if they differ.
    """
    declared = {
        "crc32c": fields.get("crc32c"),
        "md5": fields.get("md5Hash") or headers.get("Content-MD5"),
    }
    for entry in headers.get("X-Goog-Hash", "").split(","):
        kind, _, value = entry.strip().partition("=")
        declared[kind] = value or None
    computed = (("crc32c", "CRC32C", digest.crc32c), ("md5", "MD5 hash", digest.md5))
    for kind, name, found in computed:
        value = declared.get(kind)
        if value and value != found:
            why = f'Provided {name} "{value}" doesn\'t match calculated {name} "{found}".'
            raise wire.ApiError(400, "invalid", why)


def _range(request: web.BaseRequest) -> tuple[int | None, int | None]:
    """Return the first byte of a piece, and the size of all.

    The first is None for a request without bytes, the second while the size is unknown.
    """
    text = request.headers.get("Content-Range")
    if text is None:
        return 0, None
    match = _RANGE.fullmatch(text.strip())
    if not match:
        raise wire.ApiError(400, "invalid", f"Invalid Content-Range: '{text}'.")
    first, _, total = match.groups()
    return (
        None if first is None else int(first),
        None if total == "*" else int(total),
    )
