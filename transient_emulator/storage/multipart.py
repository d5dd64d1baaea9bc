"""multipart/related bodies of uploads, read as a stream.

The first part is JSON, the second is contents of any length.

Lines should end with CR and LF. Some clients send LF alone. The first line shows which: the
contents may end with either.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from email.message import Message
from email.parser import HeaderParser
from typing import Any

from ..rest import wire

_BOUNDARY = re.compile(r"""boundary=("[^"]*"|'[^']*'|[^;\s]+)""", re.IGNORECASE)
# Bytes of headers and JSON.
_LARGEST_HEAD = 1 << 20


class Related:
    """The two parts of a body. Await `head` first, then read `contents`.

    Parameters
    ----------
    content_type
        The header of the request, which names the boundary.
    stream
        The body.

    Raises
    ------
    ApiError
        400 if there is no boundary.
    """

    def __init__(self, content_type: str, stream: AsyncIterator[bytes]) -> None:
        found = _BOUNDARY.search(content_type)
        if not found:
            raise _invalid("it has no boundary")
        self._boundary = b"--" + found[1].strip("\"'").encode()
        self._end = b"\r\n"
        self._stream = stream
        self._buffer = b""

    async def head(self) -> tuple[dict[str, Any], str]:
        """Return the JSON of the first part, and the type of the contents. Raises ApiError 400."""
        await self._until(self._boundary)
        if not (await self._until(b"\n")).endswith(b"\r"):
            self._end = b"\n"
        await self._headers()
        text = await self._until(self._end + self._boundary)
        await self._until(self._end)
        headers = await self._headers()
        fields: Any = {}
        if text.strip():
            try:
                fields = json.loads(text)
            except ValueError as error:
                raise _invalid(f"its first part is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise _invalid("its first part is not a JSON object")
        return fields, str(headers.get("Content-Type", ""))

    async def contents(self) -> AsyncIterator[bytes]:
        """Yield the second part. Raises ApiError 400 if it ends too early."""
        mark = self._end + self._boundary
        # The end of the buffer may be the beginning of the mark.
        keep = len(mark) - 1
        while (end := self._buffer.find(mark)) < 0:
            if len(self._buffer) > keep:
                yield self._buffer[:-keep]
                self._buffer = self._buffer[-keep:]
            await self._more()
        yield self._buffer[:end]

    async def _headers(self) -> Message:
        lines: list[bytes] = []
        while line := await self._until(self._end):
            lines.append(line)
        return HeaderParser().parsestr(b"\n".join(lines).decode(errors="replace"))

    async def _until(self, mark: bytes) -> bytes:
        """Read up to `mark` and return what precedes it."""
        while (end := self._buffer.find(mark)) < 0:
            if len(self._buffer) > _LARGEST_HEAD:
                raise _invalid("its first part is too long")
            await self._more()
        found = self._buffer[:end]
        self._buffer = self._buffer[end + len(mark) :]
        return found

    async def _more(self) -> None:
        try:
            self._buffer += await anext(self._stream)
        except StopAsyncIteration:
            raise _invalid("it ends too early") from None


def _invalid(why: str) -> wire.ApiError:
    return wire.ApiError(400, "badContent", f"The multipart body cannot be understood: {why}.")
