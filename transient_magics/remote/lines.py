"""Bytes as they come into whole lines, in linear time and bounded memory, from any sender."""

from __future__ import annotations

from collections.abc import Iterator

from ..protocol.checks import LONGEST_LINE


class Splitter:
    """Cuts blocks of bytes into lines. A line longer than `longest` bytes is passed over up to its end."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self.passed_over = 0
        """How many lines were too long."""
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """How many bytes of a line without an end have come."""
        return self._size

    def feed(self, block: bytes) -> Iterator[tuple[int, bytes | None]]:
        """The lines that `block` completes: how many bytes with their newlines, and what they say (None: too much)."""
        begin = 0
        while (end := block.find(b"\n", begin)) >= 0:
            self._keep(block[begin:end])
            size, line = self._size + 1, b"".join(self._parts) if self._size <= self._longest else None
            self._parts, self._size, begin = [], 0, end + 1
            self.passed_over += line is None
            yield size, line
        self._keep(block[begin:])

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._longest:
            self._parts.append(part)
        else:
            self._parts.clear()
