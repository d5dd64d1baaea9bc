"""multipart/related as uploads have it: a part of JSON, then a part of contents of any length, read as a stream.

Lines end with CR and LF, as they should, or with LF alone, as some clients have it; which of the two, the first line
tells, since the contents may well end with either.
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
_MOST = 1 << 20  # bytes of headers and JSON


class Related:
    """The two parts of a body. `head` first, then `contents`."""

    def __init__(self, content_type: str, stream: AsyncIterator[bytes]) -> None:
        found = _BOUNDARY.search(content_type)
        if not found:
            raise _broken("it has no boundary")
        self._boundary = b"--" + found[1].strip("\"'").encode()
        self._end = b"\r\n"
        self._stream, self._buffer = stream, b""

    async def head(self) -> tuple[dict[str, Any], str]:
        """The JSON of the first part, and the type of the contents."""
        await self._until(self._boundary)
        if not (await self._until(b"\n")).endswith(b"\r"):
            self._end = b"\n"
        await self._headers()
        text = await self._until(self._end + self._boundary)
        await self._until(self._end)
        headers = await self._headers()
        try:
            fields = json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise _broken(f"its first part is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise _broken("its first part is no JSON object")
        return fields, str(headers.get("Content-Type", ""))

    async def contents(self) -> AsyncIterator[bytes]:
        """The second part."""
        mark = self._end + self._boundary
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
        """What comes before `mark`, which is read, too."""
        while (end := self._buffer.find(mark)) < 0:
            if len(self._buffer) > _MOST:
                raise _broken("its first part is too long")
            await self._more()
        found, self._buffer = self._buffer[:end], self._buffer[end + len(mark) :]
        return found

    async def _more(self) -> None:
        try:
            self._buffer += await anext(self._stream)
        except StopAsyncIteration:
            raise _broken("it ends too early") from None


def _broken(why: str) -> wire.ApiError:
    return wire.ApiError(400, "badContent", f"The multipart body cannot be understood: {why}.")
