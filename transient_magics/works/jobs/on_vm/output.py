"""What a command says, in a file that has a bound: the first of it as it comes, the last of it at
the end.
"""

from __future__ import annotations

import os
from pathlib import Path

MOST_BYTES = 8 * 2**20
LAST_BYTES = 64 * 2**10
_LONGEST_LINE = 32 * 2**10


class Output:
    """The file of one attempt. What is beyond `most` bytes is left out, but for the last ones,
    which `close` writes.

    A carriage return counts as the end of a line, and a line that is too long is cut into several.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES, last: int = LAST_BYTES) -> None:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        self._left = most - os.fstat(self._handle).st_size
        self._most_last = last
        self._last = b""
        self._open = 0
        self._left_out = 0
        self.failed = ""

    def write(self, block: bytes) -> None:
        """Take what was said. What a full disk does not take is left out."""
        block = self._lined(block.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        now = block[: max(self._left, 0)]
        later = block[max(self._left, 0) :]
        self._put(now)
        self._left -= len(now)
        self._left_out += len(later)
        self._last = (self._last + block)[-self._most_last :]

    def tail(self, most: int) -> str:
        """The end of it, whole lines where there are any."""
        end = self._last[-most:]
        if len(self._last) > most:
            whole = end.partition(b"\n")[2]
        else:
            whole = end
        return (whole or end).decode(errors="replace").strip("\n")

    def close(self) -> None:
        """Write the last of what was left out, and end the last line."""
        if self._left_out > 0:
            kept = min(self._left_out, len(self._last))
            told = f"\n[transient] {self._left_out - kept:,} bytes were left out here\n".encode()
            self._put(told + self._last[-kept:])
            self._open = 0 if self._last.endswith(b"\n") else 1
        if self._open:
            self._put(b"\n")
        os.close(self._handle)

    def _lined(self, block: bytes) -> bytes:
        parts = block.split(b"\n")
        for place, part in enumerate(parts):
            before = self._open if place == 0 else 0
            if before + len(part) > _LONGEST_LINE:
                first = _LONGEST_LINE - before
                cut = [
                    part[:first],
                    *(
                        part[at : at + _LONGEST_LINE]
                        for at in range(first, len(part), _LONGEST_LINE)
                    ),
                ]
                parts[place] = b"\n".join(cut)
            if place == len(parts) - 1:
                line = parts[place].rpartition(b"\n")
                self._open = len(line[2]) + (before if not line[1] else 0)
        return b"\n".join(parts)

    def _put(self, block: bytes) -> None:
        try:
            while block:
                block = block[os.write(self._handle, block) :]
        except OSError as error:
            self.failed = error.strerror or str(error)
