"""Downloads: an object's contents, or a range of them, as a stream."""

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
# Headers that repeat fields of the object.
_HEADERS = {
    "Cache-Control": "cacheControl",
    "Content-Disposition": "contentDisposition",
    "Content-Encoding": "contentEncoding",
    "Content-Language": "contentLanguage",
}


async def answer(
    request: web.BaseRequest, shelf: Shelf, bucket: str, name: str
) -> web.StreamResponse:
    """Answer a request for the contents of an object.

    Raises
    ------
    ApiError
        If the object does not exist, or a precondition does not hold.
    """
    found = shelf.find(bucket, name, number(request.query, "generation"))
    try:
        Conditions.from_query(request.query).check(found, reading=True)
    except NotModified:
        return web.Response(status=304, headers={"ETag": found["etag"]})
    # Opened before anything else can happen: contents that are replaced or deleted from now on are
    # still read to their end.
    file = shelf.contents(found).open("rb")
    try:
        return await _send(request, found, file)
    finally:
        file.close()


async def _send(request: web.BaseRequest, found: Resource, file: BinaryIO) -> web.StreamResponse:
    size = int(found["size"])
    status = 200
    headers = _headers(found)
    begin = 0
    end = size
    span = _span(request, size)
    if span:
        begin, end = span
        if begin >= end:
            return web.Response(
                status=416,
                text="The requested range cannot be satisfied.",
                headers={"Content-Range": f"bytes */{size}"},
            )
        status = 206
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = end - begin
    await response.prepare(request)
    if request.method != "HEAD":
        file.seek(begin)
        while begin < end:
            data = await asyncio.to_thread(file.read, min(CHUNK, end - begin))
            if not data:
                # It is too late for another answer. A connection that ends too early shows the
                # client that the contents are incomplete.
                _LOG.error("the contents of %s are shorter than they should be", found["id"])
                if request.transport:
                    request.transport.abort()
                return response
            await response.write(data)
            begin += len(data)
    await response.write_eof()
    return response


def _span(request: web.BaseRequest, size: int) -> tuple[int, int] | None:
    """Return the requested range, from its first byte to behind its last; None for all contents."""
    match = _RANGE.fullmatch(request.headers.get("Range", "").strip())
    if not match:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        # The last bytes of the object.
        return max(size - int(suffix), 0), size
    if not last:
        return int(first), size
    return int(first), min(int(last) + 1, size)


def _headers(found: Resource) -> dict[str, str]:
    hashes = f"crc32c={found['crc32c']}"
    # Composed objects have no MD5.
    if "md5Hash" in found:
        hashes += f",md5={found['md5Hash']}"
    headers = {
        "Content-Type": found.get("contentType") or "application/octet-stream",
        "ETag": found["etag"],
        "Accept-Ranges": "bytes",
        "X-Goog-Hash": hashes,
        "X-Goog-Generation": found["generation"],
        "X-Goog-Metageneration": found["metageneration"],
        "X-Goog-Storage-Class": found["storageClass"],
        "X-Goog-Stored-Content-Length": found["size"],
        "X-Goog-Stored-Content-Encoding": found.get("contentEncoding", "identity"),
    }
    for header, name in _HEADERS.items():
        if found.get(name):
            headers[header] = found[name]
    return headers
