"""Uploads in parts, in any order and simultaneously: the multipart upload of the XML API.

Clients use it to send a large file over several connections. No other part of the XML API is
emulated.
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
from .service import concatenate
from .shelf import Shelf
from .uploads import check_digest

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_IDENTITY = re.compile(r"[0-9a-f]{32}")
# Cloud Storage's limit of one upload.
_MOST_PARTS = 10_000
_LARGEST_XML = 4 << 20
# Unfinished uploads are dropped after a week.
_KEEP_SECONDS = 7 * 86_400.0
_FIELDS = {
    "Cache-Control": "cacheControl",
    "Content-Encoding": "contentEncoding",
    "Content-Language": "contentLanguage",
    "Content-Disposition": "contentDisposition",
    "X-Goog-Storage-Class": "storageClass",
    "X-Goog-Custom-Time": "customTime",
}
_METADATA = "x-goog-meta-"
_CODES = {
    404: "NoSuchUpload",
    405: "MethodNotAllowed",
    412: "PreconditionFailed",
    503: "ServiceUnavailable",
}


class PartUploads:
    """`/BUCKET/OBJECT` with `uploads` or `uploadId` in the query.

    Each upload is a folder with a file per part.
    """

    def __init__(self, shelf: Shelf, folder: Path) -> None:
        self._shelf = shelf
        self._folder = folder / "parts"
        places.private(self._folder)
        oldest = time.time() - _KEEP_SECONDS
        for upload in self._folder.iterdir():
            if upload.stat().st_mtime < oldest:
                shutil.rmtree(upload, ignore_errors=True)

    async def answer(self, request: web.BaseRequest, bucket: str, name: str) -> web.Response:
        """Answer a request. Raises ApiError if it is refused."""
        query = request.query
        if request.method == "POST" and "uploads" in query:
            return self._begin(request, bucket, name)
        folder = self._find(query.get("uploadId", ""), bucket, name)
        match request.method:
            case "PUT":
                return await self._receive(request, folder, query.get("partNumber", ""))
            case "POST":
                return await self._complete(request, folder, bucket, name)
            case "DELETE":
                await asyncio.to_thread(shutil.rmtree, folder)
                return web.Response(status=204)
        why = "The specified method is not allowed against this resource."
        raise wire.ApiError(405, "httpMethodNotAllowed", why)

    def _begin(self, request: web.BaseRequest, bucket: str, name: str) -> web.Response:
        self._shelf.check(bucket, name, Conditions())
        headers = request.headers
        fields: dict[str, Any] = {
            "contentType": headers.get("Content-Type", "application/octet-stream")
        }
        for header, field in _FIELDS.items():
            if header in headers:
                fields[field] = headers[header]
        metadata: dict[str, str] = {}
        for header, value in headers.items():
            lower = header.lower()
            if lower.startswith(_METADATA):
                metadata[lower.removeprefix(_METADATA)] = value
        if metadata:
            fields["metadata"] = metadata
        identity = secrets.token_hex(16)
        folder = self._folder / identity
        folder.mkdir(mode=0o700)
        upload = {"bucket": bucket, "name": name, "fields": fields}
        write_atomically(folder / "upload.json", json.dumps(upload), durable=False)
        return _xml("InitiateMultipartUploadResult", Bucket=bucket, Key=name, UploadId=identity)

    async def _receive(self, request: web.BaseRequest, folder: Path, number: str) -> web.Response:
        """Receive one part."""
        if not number.isdigit() or not 1 <= int(number) <= _MOST_PARTS:
            why = f"The part number must be between 1 and {_MOST_PARTS}."
            raise wire.ApiError(400, "InvalidArgument", why)
        # A part gets its name only when it is complete, so a broken connection leaves an earlier
        # version of it.
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

    async def _complete(
        self, request: web.BaseRequest, folder: Path, bucket: str, name: str
    ) -> web.Response:
        """Make the parts that the client lists an object."""
        body = bytearray()
        async for data in request.content.iter_any():
            body += data
            if len(body) > _LARGEST_XML:
                raise wire.ApiError(400, "MalformedXML", "The list of parts is too long.")
        paths: list[Path] = []
        for number, tag in _listed(bytes(body)):
            path = folder / f"{number}.part"
            # The client's tag shows that the part is the one that it sent.
            if not path.exists() or tag.strip('"') != (await _md5_of(path)):
                why = f"Part {number} has not been uploaded, or not as listed."
                raise wire.ApiError(400, "InvalidPart", why)
            paths.append(path)
        upload = json.loads((folder / "upload.json").read_text(encoding="utf-8"))
        scratch = self._shelf.scratch()
        try:
            digest = await asyncio.to_thread(concatenate, paths, scratch)
            created = await self._shelf.put(
                bucket,
                name,
                upload["fields"],
                scratch,
                digest,
                Conditions(),
                components=len(paths),
            )
        finally:
            scratch.unlink(missing_ok=True)
        await asyncio.to_thread(shutil.rmtree, folder)
        tag = f'"{created["etag"]}"'
        return _xml("CompleteMultipartUploadResult", Bucket=bucket, Key=name, ETag=tag)

    def _find(self, identity: str, bucket: str, name: str) -> Path:
        folder = self._folder / identity
        # The pattern keeps a client from naming another folder of this machine.
        if _IDENTITY.fullmatch(identity) and folder.is_dir():
            upload = json.loads((folder / "upload.json").read_text(encoding="utf-8"))
            if (upload["bucket"], upload["name"]) == (bucket, name):
                return folder
        raise wire.ApiError(404, "NoSuchUpload", "The requested upload was not found.")


async def _md5_of(path: Path) -> str:
    return (await asyncio.to_thread(of_file, path)).md5_hex


def failure(error: wire.ApiError) -> web.Response:
    """Return a refusal in the XML API's form."""
    if error.reason[:1].isupper():
        # A code of the XML API.
        code = error.reason
    else:
        code = _CODES.get(error.status, "InvalidArgument")
    message = escape(error.message)
    text = f"<Code>{code}</Code><Message>{message}</Message><Details>{message}</Details>"
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error>{text}</Error>"
    return web.Response(status=error.status, text=body, content_type="application/xml")


def _listed(body: bytes) -> list[tuple[int, str]]:
    """Return number and entity tag of the parts in an XML list, in its order."""
    # Internal entities could make a short text very long. Lists of parts have none.
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise wire.ApiError(400, "MalformedXML", "The list of parts has declarations of its own.")
    found: list[tuple[int, str]] = []
    try:
        for part in ElementTree.fromstring(body).findall("{*}Part"):
            number = int(part.findtext("{*}PartNumber") or "")
            found.append((number, part.findtext("{*}ETag") or ""))
    except (ElementTree.ParseError, ValueError):
        why = "The list of parts cannot be understood."
        raise wire.ApiError(400, "MalformedXML", why) from None
    numbers = [number for number, _ in found]
    if not found or numbers != sorted(set(numbers)):
        why = "The parts must be listed once each and in order."
        raise wire.ApiError(400, "InvalidPartOrder", why)
    return found


def _xml(kind: str, **fields: str) -> web.Response:
    content = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
    body = f"<?xml version='1.0' encoding='UTF-8'?><{kind} xmlns='{_NAMESPACE}'>{content}</{kind}>"
    return web.Response(text=body, content_type="application/xml")
