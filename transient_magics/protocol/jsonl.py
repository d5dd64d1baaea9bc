"""Files of JSON lines: one process appends to them, and others read them while they grow.

A line is written by one `write` on a file opened for appending. Readers therefore see whole lines,
or a torn last line after a crash or on a full disk. The next writer ends a torn line with a
newline, and every reader skips it: no process acted on what it reports.

On Linux the kernel's file notifications (inotify) wake a follower, so it sees a line within a
millisecond, and an idle file costs nothing. Elsewhere, and if the user's programs have used up the
kernel's watches, it polls the file four times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from . import checks

_HEAD_BYTES = 512
_POLL_SECONDS = 0.25
_CHECK_SECONDS = 5.0
_CANNOT_WATCH = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM, errno.ENOENT)
"""Errors of inotify after which files are polled instead.

The user's programs have used up the watchers (128 by default, editors take some) or the watches. Or
the folder does not exist at this moment, for example while a new cluster replaces the folder of a
deleted one with the same name.
"""


def append(path: Path, values: Mapping[str, Any]) -> None:
    """Append an object as one line with one write, after the end of a torn line.

    Raises
    ------
    OSError
        The file cannot be written, or the disk is full.
    ValueError
        A value cannot be written as JSON.
    """
    line = json.dumps(values, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if is_torn(file):
            line = b"\n" + line
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


def append_lines(path: Path, lines: bytes) -> None:
    """Append whole lines as a VM sent them. Raises OSError, also for a link at `path`."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "ab") as file:
        file.write(lines)


def is_torn(file: int) -> bool:
    """Return whether the last line of an open file has no end."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def cut_torn_line(path: Path) -> None:
    """Cut off a last line that has no end, so that it can be fetched again. Raises OSError."""
    with path.open("rb+") as file:
        begin = max(0, file.seek(0, os.SEEK_END) - checks.LONGEST_LINE)
        file.seek(begin)
        file.truncate(begin + file.read().rfind(b"\n") + 1)


def read(path: Path) -> Iterator[dict[str, object]]:
    """Yield the objects of a file in order; none if there is no file.

    Unreadable lines are skipped.
    """
    with contextlib.suppress(FileNotFoundError):
        yield from objects(path.read_bytes())


def objects(lines: bytes) -> Iterator[dict[str, object]]:
    """Yield the objects of lines; unreadable lines are skipped."""
    for line in lines.splitlines():
        with contextlib.suppress(ValueError):
            yield checks.parsed_object(line)


class Position:
    """The position of a reader in a file that grows.

    Parameters
    ----------
    offset
        The bytes to skip.
    restarts
        Whether a replaced or shortened file is read from its start.
    """

    def __init__(self, path: Path, offset: int = 0, *, restarts: bool = True) -> None:
        self._path = path
        self._restarts = restarts
        self._file = 0
        self._head = b""
        self.offset = offset
        """The end of the last whole line that was read."""

    def read(self) -> tuple[bytes, bool]:
        """Return the whole lines since the last call, and whether they start a replaced file."""
        try:
            with self._path.open("rb") as file:
                restarted = self._restarts and self._is_other(file.fileno())
                if restarted:
                    self.offset = 0
                file.seek(self.offset)
                block = file.read()
        except FileNotFoundError:
            return b"", False
        lines = block[: block.rfind(b"\n") + 1]
        self.offset += len(lines)
        return lines, restarted

    def _is_other(self, file: int) -> bool:
        status = os.fstat(file)
        head = os.pread(file, _HEAD_BYTES, 0)
        inode = self._file or status.st_ino
        other = (
            inode != status.st_ino
            or status.st_size < self.offset
            or not head.startswith(self._head)
        )
        self._file = status.st_ino
        self._head = head if len(head) == _HEAD_BYTES else b""
        return other


async def follow(
    path: Path, offset: int = 0, restarted: Callable[[], None] | None = None
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (end offset, block of whole lines) as the file at `path` grows.

    Waits for a file that does not exist yet. If `restarted` is given, a replaced or shortened file
    is read from its start, after a call of `restarted`.
    """
    position = Position(path, offset, restarts=restarted is not None)
    async with _changes(path) as changes:
        while True:
            lines, is_other = position.read()
            if is_other and restarted:
                restarted()
            if lines:
                yield position.offset, lines
            else:
                await changes.wait()


class _Changes(Protocol):
    async def wait(self) -> None: ...


class _Polled:
    async def wait(self) -> None:
        await asyncio.sleep(_POLL_SECONDS)


@asynccontextmanager
async def _changes(path: Path) -> AsyncGenerator[_Changes]:
    if not sys.platform.startswith("linux"):
        yield _Polled()
        return
    from asyncinotify import Inotify, Mask

    class _Notified:
        async def wait(self) -> None:
            # The kernel wakes this; the timeout covers file systems without notifications, such as
            # some network file systems.
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await inotify.get()
            except TimeoutError:
                return

    with contextlib.ExitStack() as watching:
        changes: _Changes = _Notified()
        try:
            inotify = watching.enter_context(Inotify())
            # Watch the folder and not the file: the folder exists before the file does, and reports
            # its replacement.
            inotify.add_watch(path.parent, Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO)  # pyright: ignore[reportUnknownMemberType]
        except OSError as error:
            if error.errno not in _CANNOT_WATCH:
                raise
            changes = _Polled()
        yield changes
