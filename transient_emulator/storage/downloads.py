"""The way out: an object's contents, or a range of them, as a stream."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import BinaryIO

from aiohttp import web

from .conditions import Conditions, NotModified, number
from .digests import CHUNK
from .shelf import Resource, Shelf

_LOG = logging.getLogger(__name__)
_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")
_HEADERS = {
    "Cache-Control": "cacheControl", "Content-Disposition": "contentDisposition",
    "Content-Encoding": "contentEncoding", "Content-Language": "contentLanguage",
}  # fmt: skip


async def answer(request: web.BaseRequest, shelf: Shelf, bucket: str, name: str) -> web.StreamResponse:
    """The contents of an object. ApiError where there is none."""
    found = shelf.find(bucket, name, number(request.query, "generation"))
    try:
        Conditions.of(request.query).check(found, reading=True)
    except NotModified:
        return web.Response(status=304, headers={"ETag": found["etag"]})
    # Opened before anything else can happen: what is replaced or deleted from now on is still read to its end.
    file = shelf.contents(found).open("rb")
    try:
        return await _send(request, found, file)
    finally:
        file.close()


async def _send(request: web.BaseRequest, found: Resource, file: BinaryIO) -> web.StreamResponse:
    size = int(found["size"])
    headers = _headers(found)
    begin, end, status = 0, size, 200
    if match := _RANGE.fullmatch(request.headers.get("Range", "").strip()):
        if match[3] is not None:
            begin = max(size - int(match[3]), 0)
        else:
            begin, end = int(match[1]), min(int(match[2]) + 1 if match[2] else size, size)
        if begin >= end:
            headers = {"Content-Range": f"bytes */{size}"}
            return web.Response(status=416, text="The requested range cannot be satisfied.", headers=headers)
        status, headers["Content-Range"] = 206, f"bytes {begin}-{end - 1}/{size}"
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = end - begin
    await response.prepare(request)
    if request.method != "HEAD":
        file.seek(begin)
        while begin < end:
            data = await asyncio.to_thread(file.read, min(CHUNK, end - begin))
            if not data:
                # Too late for another answer: a connection that ends too early tells the client that this is not all.
                _LOG.error("the contents of %s are shorter than they should be", found["id"])
                if request.transport:
                    request.transport.abort()
                return response
            await response.write(data)
            begin += len(data)
    await response.write_eof()
    return response


def _headers(found: Resource) -> dict[str, str]:
    hashes = f"crc32c={found['crc32c']}" + (f",md5={found['md5Hash']}" if "md5Hash" in found else "")
    encoding = found.get("contentEncoding", "identity")
    headers = {
        "Content-Type": found.get("contentType") or "application/octet-stream",
        "ETag": found["etag"], "Accept-Ranges": "bytes", "X-Goog-Hash": hashes,
        "X-Goog-Generation": found["generation"], "X-Goog-Metageneration": found["metageneration"],
        "X-Goog-Storage-Class": found["storageClass"], "X-Goog-Stored-Content-Length": found["size"],
        "X-Goog-Stored-Content-Encoding": encoding,
    }  # fmt: skip
    return headers | {header: found[name] for header, name in _HEADERS.items() if found.get(name)}
