"""A worker's blocks straight from the bucket in which their files lie, by ranged reads: the chief's link is spared.

The chief has looked through the files, and says in which of them a block is, where, and with which checksum; and it
hands out the token that opens them, for reading alone. It has a copy. So whatever is wrong with the bucket costs the
way around it, and no more: a block that the bucket refuses, or sends damaged or too slowly, comes from the chief, and
for a while, longer each time, all others do (a circuit breaker). So do the first ones, until Google's client is there.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import TrainingError
from ...protocol import checks
from ...protocol.chief_messages import Grant, LeasedBlock
from ...protocol.names import is_path
from ..files.data_files import ask
from ..programs import shared_records
from ..protocol import host_and_port
from ..role import log

if TYPE_CHECKING:
    from ..files.bucket import Bucket

_SLOWER = 4.0
"""A block may take so many times as long as one from the chief does, ..."""
_LEAST, _MOST, _UNKNOWN = 2.0, 60.0, 10.0
"""... between so many seconds; these many where none has come from the chief yet."""
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
_CHIEF_SECONDS = 10.0


class BucketBlocks:
    """The blocks of a run whose records are in `place`; `token` is the run's, for its `chief`."""

    def __init__(self, place: str, problem: str | None, chief: str, token: str) -> None:
        self._place, self._problem, self._chief, self._token = place, problem or "", chief, token
        self._lock = threading.Lock()
        self._bucket: Bucket | None = None
        self._folder = ""
        self._usual: float | None = None
        """Seconds a byte from the chief, lately."""
        self._failed_at, self._again_at, self._pause = 0.0, 0.0, _FIRST_PAUSE
        self._tried = False
        """After a failure one block tries the way for all."""
        self._ended = threading.Event()
        self.detour = ""
        """Why the last one went around the bucket; empty: none had to."""

    def open(self) -> None:
        """Get ready, on a thread: Google's client takes a second to import, and nobody waits for it."""
        threading.Thread(target=self._open, daemon=True, name="bucket").start()

    def close(self) -> None:
        """Nothing more is read."""
        self._ended.set()

    def compare(self, size: int, seconds: float) -> None:
        """So long a block of so many bytes took from the chief."""
        with self._lock:
            now = seconds / max(1, size)
            self._usual = now if self._usual is None else 0.8 * self._usual + 0.2 * now

    def read(self, block: LeasedBlock, moved: Callable[[], object]) -> bytes | None:
        """The block's bytes, checked; None: it is to come from the chief. `moved` is called as they arrive."""
        import google_crc32c

        with self._lock:
            bucket, began, usual = self._bucket, time.monotonic(), self._usual
            if bucket is None or began < self._again_at or self._tried:
                return None
            self._tried = self._again_at > 0
        patience = _UNKNOWN if usual is None else min(max(_SLOWER * usual * block.size, _LEAST), _MOST)
        try:
            if not is_path(block.file):
                raise ValueError(f"{block.file!r:.80} is no file of the records")
            arriving = _Arriving(patience, moved)
            bucket.read_range(f"{self._folder}{block.file}", block.offset, block.size, arriving, patience)
            content = bytes(arriving.content)
            if len(content) != block.size or google_crc32c.value(content) != block.crc32c:
                raise ValueError("what lies there is not what ps-0 has a copy of, or it arrived damaged")
        except (TrainingError, OSError, ValueError) as error:
            self._failed(began, error)
            return None
        with self._lock:
            self._tried, self._again_at, self._pause = False, 0.0, _FIRST_PAUSE
        return content

    def _open(self) -> None:
        from ..files.bucket import Bucket

        while not self._ended.is_set():
            began = time.monotonic()
            try:
                bucket = Bucket(self._place, self._granted)
                self._folder = shared_records.folder(bucket, self._problem)
            except TrainingError as error:
                self._failed(began, error)
                self._ended.wait(self._again_at - time.monotonic())
            else:
                with self._lock:
                    self._bucket = bucket
                return

    def _granted(self) -> dict[str, Any]:
        connection = socket.create_connection(host_and_port(self._chief), timeout=_CHIEF_SECONDS)
        with connection, connection.makefile("rwb") as stream:
            told = ask(stream, Grant(token=self._token))
        return {"token": told["access"], "expires": told["expires"]}

    def _failed(self, began: float, error: Exception) -> None:
        """Leave the bucket alone for a while. What was under way when another failed is no second failure."""
        with self._lock:
            if began < self._failed_at:
                return
            self._tried, self._failed_at = False, time.monotonic()
            self._again_at = self._failed_at + self._pause * random.uniform(0.8, 1.2)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self.detour = checks.clipped(error.what if isinstance(error, TrainingError) else str(error))
            log(f"blocks come from the chief, not from {self._place}: {error}")


class _Arriving:
    """What has arrived of a block within `patience` seconds."""

    def __init__(self, patience: float, moved: Callable[[], object]) -> None:
        self.content = bytearray()
        self._patience, self._moved = patience, moved
        self._until = time.monotonic() + patience

    def write(self, piece: bytes) -> int:
        if time.monotonic() > self._until:
            raise TimeoutError(f"the bucket has not sent it within {self._patience:.0f} s")
        self.content += piece
        self._moved()
        return len(piece)
