"""Uploads in parts that arrive in any order and at the same time: the multipart upload of the XML API.

Clients use it to send a large file over several connections. Only this part of the XML API is there.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from aiohttp import web

from transient_magics import places
from transient_magics.files import write_atomically

from ..rest import wire
from .conditions import Conditions
from .digests import of_file
from .incoming import Incoming
from .service import concatenated
from .shelf import Shelf
from .uploads import check_digest

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_IDENTITY = re.compile(r"[0-9a-f]{32}")
_MOST_PARTS = 10_000
_MOST_XML = 4 << 20
_KEEP_SECONDS = 7 * 86_400.0
_FIELDS = {
    "Cache-Control": "cacheControl", "Content-Encoding": "contentEncoding", "Content-Language": "contentLanguage",
    "Content-Disposition": "contentDisposition", "X-Goog-Storage-Class": "storageClass",
    "X-Goog-Custom-Time": "customTime",
}  # fmt: skip
_CODES = {404: "NoSuchUpload", 412: "PreconditionFailed", 503: "ServiceUnavailable", 405: "MethodNotAllowed"}


class PartUploads:
    """`/BUCKET/OBJECT` with `uploads` or `uploadId` in the query. Each upload is a folder with a file per part."""

    def __init__(self, shelf: Shelf, folder: Path) -> None:
        self._shelf, self._folder = shelf, folder / "parts"
        places.private(self._folder)
        for each in self._folder.iterdir():
            if each.stat().st_mtime < time.time() - _KEEP_SECONDS:
                shutil.rmtree(each, ignore_errors=True)

    async def answer(self, request: web.BaseRequest, bucket: str, name: str) -> web.Response:
        """ApiError where it is refused."""
        query = request.query
        if request.method == "POST" and "uploads" in query:
            return self._begin(request, bucket, name)
        folder = self._find(query.get("uploadId", ""), bucket, name)
        if request.method == "PUT":
            return await self._part(request, folder, query.get("partNumber", ""))
        if request.method == "POST":
            return await self._complete(request, folder, bucket, name)
        if request.method == "DELETE":
            await asyncio.to_thread(shutil.rmtree, folder)
            return web.Response(status=204)
        raise wire.ApiError(405, "httpMethodNotAllowed", "The specified method is not allowed against this resource.")

    def _begin(self, request: web.BaseRequest, bucket: str, name: str) -> web.Response:
        self._shelf.check(bucket, name, Conditions())
        identity = secrets.token_hex(16)
        headers = request.headers
        fields: dict[str, Any] = {"contentType": headers.get("Content-Type", "application/octet-stream")}
        fields |= {field: headers[header] for header, field in _FIELDS.items() if header in headers}
        prefix = "x-goog-meta-"
        metadata = {key[len(prefix) :].lower(): value for key, value in headers.items() if
                    key.lower().startswith(prefix)}  # fmt: skip
        fields |= {"metadata": metadata} if metadata else {}
        folder = self._folder / identity
        folder.mkdir(mode=0o700)
        write_atomically(
            folder / "upload.json", json.dumps({"bucket": bucket, "name": name, "fields": fields}), durable=False
        )
        return _xml("InitiateMultipartUploadResult", Bucket=bucket, Key=name, UploadId=identity)

    async def _part(self, request: web.BaseRequest, folder: Path, number: str) -> web.Response:
        if not number.isdigit() or not 1 <= int(number) <= _MOST_PARTS:
            raise wire.ApiError(400, "InvalidArgument", f"The part number must be between 1 and {_MOST_PARTS}.")
        incoming = Incoming(folder / f".{secrets.token_hex(8)}")
        try:
            await incoming.take(request.content.iter_any())
            try:
                check_digest(incoming.digest, {}, request.headers)
            except wire.ApiError as error:
                raise wire.ApiError(400, "BadDigest", error.message) from None
            await incoming.close()
            incoming.path.replace(folder / f"{int(number)}.part")
        finally:
            incoming.discard()
        digest = incoming.digest
        hashes = f"crc32c={digest.crc32c},md5={digest.md5}"
        return web.Response(headers={"ETag": f'"{digest.md5_hex}"', "X-Goog-Hash": hashes})

    async def _complete(self, request: web.BaseRequest, folder: Path, bucket: str, name: str) -> web.Response:
        body = bytearray()
        async for data in request.content.iter_any():
            body += data
            if len(body) > _MOST_XML:
                raise wire.ApiError(400, "MalformedXML", "The list of parts is too long.")
        listed = _listed(bytes(body))
        paths = [folder / f"{number}.part" for number, _ in listed]
        for path, (number, tag) in zip(paths, listed, strict=True):
            if not path.exists() or tag.strip('"') != (await asyncio.to_thread(of_file, path)).md5_hex:
                raise wire.ApiError(400, "InvalidPart", f"Part {number} has not been uploaded, or not as listed.")
        fields = json.loads((folder / "upload.json").read_text(encoding="utf-8"))["fields"]
        scratch = self._shelf.scratch()
        try:
            digest = await asyncio.to_thread(concatenated, paths, scratch)
            made = await self._shelf.put(bucket, name, fields, scratch, digest, Conditions(), components=len(paths))
        finally:
            scratch.unlink(missing_ok=True)
        await asyncio.to_thread(shutil.rmtree, folder)
        return _xml("CompleteMultipartUploadResult", Bucket=bucket, Key=name, ETag=f'"{made["etag"]}"')

    def _find(self, identity: str, bucket: str, name: str) -> Path:
        folder = self._folder / identity
        if _IDENTITY.fullmatch(identity) and folder.is_dir():
            upload = json.loads((folder / "upload.json").read_text(encoding="utf-8"))
            if (upload["bucket"], upload["name"]) == (bucket, name):
                return folder
        raise wire.ApiError(404, "NoSuchUpload", "The requested upload was not found.")


def failure(error: wire.ApiError) -> web.Response:
    """A refusal as the XML API writes it."""
    code = error.reason if error.reason[:1].isupper() else _CODES.get(error.status, "InvalidArgument")
    text = f"<Code>{code}</Code><Message>{escape(error.message)}</Message><Details>{escape(error.message)}</Details>"
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error>{text}</Error>"
    return web.Response(status=error.status, text=body, content_type="application/xml")


def _listed(body: bytes) -> list[tuple[int, str]]:
    """Number and entity tag of the parts that a list in XML names, in their order."""
    # Internal entities could make a short text very long; lists of parts have none.
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise wire.ApiError(400, "MalformedXML", "The list of parts has declarations of its own.")
    try:
        root = ElementTree.fromstring(body)
        found = [
            (int(each.findtext("{*}PartNumber") or ""), each.findtext("{*}ETag") or "")
            for each in root.findall("{*}Part")
        ]
    except (ElementTree.ParseError, ValueError):
        raise wire.ApiError(400, "MalformedXML", "The list of parts cannot be understood.") from None
    if not found or [number for number, _ in found] != sorted({number for number, _ in found}):
        raise wire.ApiError(400, "InvalidPartOrder", "The parts must be listed once each and in order.")
    return found


def _xml(kind: str, **fields: str) -> web.Response:
    inside = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
    body = f"<?xml version='1.0' encoding='UTF-8'?><{kind} xmlns='{_NAMESPACE}'>{inside}</{kind}>"
    return web.Response(text=body, content_type="application/xml")
