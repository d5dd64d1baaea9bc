"""The writer of a journal: one process, whole lines (`protocol/jsonl.py`).

If the disk is full, a partly written line is removed and the error is raised to the caller, which
keeps the event.

A journal has a second name beside it, a hard link. A journal that was removed is restored from it,
with its whole history and bill, when a controller or a client next opens it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Self

from .. import files
from ..clock import now
from ..errors import JournalError, reason_of
from ..protocol import jsonl
from .events import Event, encode
from .folding import MOST_LOST
from .reading import read

_MISSED = 3
"""Number of checks in a row without the file, before it is written again."""


def name_twice(path: Path) -> None:
    """Give the journal at `path` its second name, if the file system has hard links."""
    other = _second_name(path)
    with contextlib.suppress(OSError):
        other.unlink(missing_ok=True)
        os.link(path, other)


def restore(path: Path) -> bool:
    """Restore a journal that was removed from its second name; return whether it exists now."""
    if not path.exists():
        with contextlib.suppress(OSError):  # It has no second name, or another process was faster.
            os.link(_second_name(path), path)
    return path.exists()


def _second_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.kept")


class Journal:
    """The only writer of a journal.

    Use it as a context manager, and only while holding the cluster's lock.
    """

    def __init__(self, path: Path) -> None:
        """Open or create (with mode 0600) `path` for appending. Raises JournalError."""
        self.path = path
        self._latest = 0
        self._missed = 0
        try:
            restore(path)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._folder = os.stat(path.parent)
            if jsonl.is_torn(self._file):
                os.write(self._file, b"\n")
        except OSError as error:
            raise JournalError(
                f"The journal cannot be opened: {reason_of(error)}", where=str(path)
            ) from error
        name_twice(path)
        self.seq = 0
        for event in read(path):
            if event.seq <= self.seq + MOST_LOST:
                self.seq = max(self.seq, event.seq)

    def append(self, event: Event) -> Event:
        """Write one event and return it with its `seq` and `time`.

        An event that already has a `time` keeps it. Raises JournalError (with the OSError as cause)
        if it could not be written; then no part of it remains.
        """
        stamped = self.stamped(event)
        line = encode(stamped)
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise JournalError(
                f"The journal cannot be written: {reason_of(error)}", where=str(self.path)
            ) from error
        if written != len(line):
            os.ftruncate(self._file, size)
            raise JournalError(
                "The journal cannot be written: no space left on device", where=str(self.path)
            )
        self.seq += 1
        return stamped

    def stamped(self, event: Event) -> Event:
        """Return the event as it would be appended now: with its `seq` and `time`."""
        self._latest = max(self._latest, int(now() * 1e9))
        return replace(event, seq=self.seq + 1, time=event.time or self._latest)

    def extend(self, events: Iterable[Event]) -> list[Event]:
        """Append several events."""
        return [self.append(event) for event in events]

    def rewrite(self, events: Iterable[Event]) -> None:
        """Replace all events of the journal atomically; they keep their numbers and times.

        Readers see a replaced file and begin at its first line. Raises JournalError.
        """
        self._replace(b"".join(map(encode, events)))

    def hold_name(self) -> bool:
        """Write the journal again if its file was removed or replaced; return whether it was.

        The file must be missing several times in a row, because the whole folder may be being
        removed. Another folder that has the name of this one keeps its own journal.
        """
        if self._has_name() or not self._has_folder():
            self._missed = 0
            return False
        self._missed += 1
        if self._missed < _MISSED:
            return False
        self._replace(os.pread(self._file, os.fstat(self._file).st_size, 0))
        return True

    def _has_folder(self) -> bool:
        try:
            return os.path.samestat(self._folder, os.stat(self.path.parent))
        except FileNotFoundError:
            return False

    def _has_name(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _replace(self, content: bytes) -> None:
        try:
            files.write_atomically(self.path, content)
            fresh = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(
                f"The journal cannot be written: {reason_of(error)}", where=str(self.path)
            ) from error
        os.close(self._file)
        self._file = fresh
        self._missed = 0
        name_twice(self.path)

    def sync(self) -> None:
        """Flush appended events to disk, so that they survive a power cut.

        It blocks for some milliseconds: call it in a thread.
        """
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
