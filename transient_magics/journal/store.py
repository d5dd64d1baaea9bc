"""Appending to a journal: one writer, whole lines, and what to do with a line that a crash tore apart.

A line is written by one `write` on a file opened for appending, so that readers see whole lines or a torn last one. A
torn last line of an earlier writer is closed with a newline and passed over by every reader. When the disk is full, a
part that was written is cut off again and the error goes to the caller, who keeps the event.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Self

from .. import files
from ..errors import JournalError
from .events import Event, encode
from .folding import MOST_LOST
from .follow import read
from .steady import now


class Journal:
    """The one writer of a journal. Use as a context manager, and only while holding the cluster's lock."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending, made with mode 0600 if it is not there. Raises JournalError."""
        self.path = path
        self._latest = 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._close_torn_line()
        except OSError as error:
            raise JournalError(f"The journal cannot be opened: {error.strerror}", where=str(path)) from error
        self.seq = 0
        for event in read(path):
            if event.seq <= self.seq + MOST_LOST:
                self.seq = max(self.seq, event.seq)

    def append(self, event: Event) -> Event:
        """Write one event and return it with its `seq` and `time` (its own `time` where it carries one).

        Raises JournalError (with the OSError as cause) when it could not be written; nothing of it is left then.
        """
        stamped = self.stamped(event)
        line = encode(stamped)
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise JournalError(f"The journal cannot be written: {error.strerror}", where=str(self.path)) from error
        if written != len(line):
            os.ftruncate(self._file, size)
            raise JournalError("The journal cannot be written: no space left on device", where=str(self.path))
        self.seq += 1
        return stamped

    def stamped(self, event: Event) -> Event:
        """The event as it would be appended now: with its `seq` and `time`."""
        self._latest = max(self._latest, int(now() * 1e9))
        return replace(event, seq=self.seq + 1, time=event.time or self._latest)

    def extend(self, events: Iterable[Event]) -> list[Event]:
        """Append several."""
        return [self.append(event) for event in events]

    def rewrite(self, events: Iterable[Event]) -> None:
        """Make the journal consist of these events, which keep their numbers and times: all of it or nothing.

        Readers find another file under its name, and begin at its first line. Raises JournalError.
        """
        try:
            files.write_atomically(self.path, b"".join(map(encode, events)))
            fresh = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(f"The journal cannot be written: {error.strerror}", where=str(self.path)) from error
        os.close(self._file)
        self._file = fresh

    def sync(self) -> None:
        """Make what was appended survive a power cut. Blocks for some milliseconds: call it in a thread."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _close_torn_line(self) -> None:
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")
