"""A worker's blocks of the records: leased from the chief, copied by several connections at once,
read chunk by chunk.

A chunk is what the pipeline of examples reads at a time, from its first record to its last: the
first is one block, so that the first step waits for no more; later ones are some, whose records are
mixed. Once steps have had all examples of a chunk its blocks are told as done. What is leased and
not done is what a death costs; it is bounded.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import TrainingError
from ...protocol import checks
from ...protocol.checks import is_path
from ...protocol.chief_messages import Fetch, Files, Grant, Lease, LeasedBlock
from ...protocol.run import Cache
from ..files.blocks import BlockCache, Content
from ..files.data_files import ask
from ..programs import shared_records
from ..role import host_and_port, log

if TYPE_CHECKING:
    from ..files.bucket import Bucket

CONNECTIONS = 4
"""On which blocks are copied at once."""
CHUNK = 8
"""Blocks that are read together, from the fourth time on; before, 1, 2 and 4."""
BOUND = 3 * CHUNK
"""Blocks that a worker holds at least: those that are read, those that come next, those whose
examples wait.
"""
MOST_BOUND = 512
_LARGEST = 64 << 20
"""Bytes of a block, of which the chief makes none so large."""
_PIECE = 1 << 18
_SILENT = 60.0
_PAUSE = 5.0
_TRIES = 5
_PATIENCE = 900.0
"""Seconds for which the chief may be away, as where its VM starts anew."""
_ASK_AGAIN = 0.5
_STARVED = 5.0
_MOST_TOLD = 256
"""Of the blocks in a cache, in one message."""

_SLOWER = 4.0
"""A block may take so many times as long as one from the chief does, ..."""
_LEAST = 2.0
_MOST = 60.0
_UNKNOWN = 10.0
"""... between so many seconds; these many where none has come from the chief yet."""
_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 300.0
_CHIEF_SECONDS = 10.0


@dataclass(frozen=True)
class Chunk:
    """Blocks that are read together, and the files in which they are."""

    numbers: tuple[int, ...]
    paths: tuple[str, ...]


class Blocks:
    """The blocks of one worker. `say` sends a Lease to the chief, whose answer comes in by
    `leased`.
    """

    def __init__(
        self,
        chief: str,
        token: str,
        run: Path,
        cache: str,
        say: Callable[[Lease], None],
        bucket: BucketBlocks | None = None,
    ) -> None:
        """`bucket`: where the records lie, too. Raises DeclarationError for a cache that this VM
        has no room for.
        """
        self._chief = chief
        self._token = token
        self._say = say
        self._bucket = bucket
        self._cache = BlockCache(Cache.parse(cache) if cache else None, run)
        self._changed = threading.Condition()
        self._coming: deque[LeasedBlock] = deque()
        self._ready: deque[tuple[int, str]] = deque()
        self._held: dict[int, int] = {}
        """Blocks under lease that are not done, and their records."""
        self._out: list[Chunk] = []
        self._again: deque[Chunk] = deque()
        self._done: list[int] = []
        self._telling: list[int] = []
        """Of those, what the chief was told in the message that it has not answered yet, of this
        serial number.
        """
        self._serial = 1
        self._copying = 0
        self._untold = sorted(self._cache.numbers)
        self._asked_at = 0.0
        """When the chief was asked and has not answered; 0: it owes nothing."""
        self._refused_at = 0.0
        self._size = 1
        self._bound = BOUND
        self._hits = self._misses = self._saved = self._fetched = self._straight = 0
        self._waited = 0.0
        self._moved_at = time.monotonic()
        self._ended = False
        self._failure: BaseException | None = None
        self.moved: Callable[[], object] = lambda: None
        """Called when something has arrived: a slow source is no standstill."""

    def start(self) -> None:
        """Lease and copy, on threads of their own."""
        if self._bucket is not None:
            self._bucket.open()
        for _ in range(CONNECTIONS):
            threading.Thread(target=self._copy, daemon=True, name="blocks").start()
        self._ask()

    def close(self, *, leaving: bool) -> None:
        """No more is read; with `leaving`, no other process of this VM goes on with what the cache
        has.
        """
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            if self._bucket is not None:
                self._bucket.close()
            if leaving:
                self._cache.close()

    # --- read by the pipeline ----------------------------------------------------------------------------------------
    def expect(self, examples: int) -> None:
        """A step takes so many examples: so many records are held at least, besides what is being
        read.
        """
        with self._changed:
            records = sum(self._held.values()) / max(1, len(self._held))
            if records:
                more = -(-examples // max(1, int(records)))
            else:
                more = 0
            self._bound = min(MOST_BOUND, max(self._bound, BOUND + more))

    def next(self, wait: float, ended: threading.Event) -> Chunk | None:
        """The next chunk, or None if none is there within `wait` seconds, or who asks has `ended`.

        Raises TrainingError where the records cannot be copied.
        """
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(self._has_chunk, wait)
            self._waited += time.monotonic() - began
            if self._failure is not None:
                raise self._failure
            if self._ended or ended.is_set():
                return None
            if not self._has_chunk():
                starved = (
                    time.monotonic() - self._moved_at > _STARVED
                    and not self._coming
                    and not self._copying
                )
                if starved and len(self._held) >= self._bound < MOST_BOUND:
                    self._bound = min(2 * self._bound, MOST_BOUND)
                    self._moved_at = time.monotonic()
                    log(
                        f"a step takes more records than {len(self._held)} blocks: up to {self._bound} are held now"
                    )
            else:
                return self._take()
        self._ask()
        return None

    def used(self, chunk: Chunk) -> None:
        """Steps have had all examples of this chunk."""
        with self._changed:
            if chunk not in self._out:  # it comes again, for another session
                return
            self._out.remove(chunk)
            for number in chunk.numbers:
                self._cache.release(number)
                self._held.pop(number, None)
                self._done.append(number)
            self._moved_at = time.monotonic()
        self._ask()

    def rewind(self) -> None:
        """The session is lost: chunks that are not used come again."""
        with self._changed:
            self._again.extendleft(reversed(self._out))
            self._out.clear()
            self._changed.notify_all()

    def _has_chunk(self) -> bool:
        if self._failure is not None or self._ended or self._again:
            return True
        if not self._ready:
            return False
        underway = self._coming or self._copying or (self._asked_at and not self._refused_at)
        return len(self._ready) >= self._size or not underway

    def _take(self) -> Chunk:
        if self._again:
            chunk = self._again.popleft()
        else:
            taken = [self._ready.popleft() for _ in range(min(self._size, len(self._ready)))]
            chunk = Chunk(tuple(number for number, _ in taken), tuple(path for _, path in taken))
            self._size = min(2 * self._size, CHUNK)
        self._out.append(chunk)
        return chunk

    # --- leased from the chief ---------------------------------------------------------------------------------------
    def leased(self, blocks: Sequence[LeasedBlock]) -> None:
        """The chief's answer."""
        with self._changed:
            self._asked_at = 0.0
            if blocks:
                self._refused_at = 0.0
            else:
                self._refused_at = time.monotonic()
            self._telling = []
            self._serial = self._serial + 1
            for block in blocks:
                if block.number in self._held:
                    continue
                if not 0 < block.size <= _LARGEST:
                    self._failure = TrainingError(
                        f"the chief leases a block of {block.size} bytes", where=self._chief
                    )
                    break
                self._held[block.number] = block.records
                self._coming.append(block)
            self._moved_at = time.monotonic()
            self._changed.notify_all()
        self._ask()

    def joined(self) -> None:
        """This worker's line to the chief is a new one: what was asked for on the last is not
        answered any more.

        The chief may be a new one too, which knows of no cache.
        """
        with self._changed:
            self._asked_at, self._untold = 0.0, sorted(self._cache.numbers)
        self._ask()

    def _ask(self) -> None:
        """Say what is held and done, and ask for as many blocks as are missing to the bound, unless
        it was asked.
        """
        with self._changed:
            now = time.monotonic()
            wanted = max(0, self._bound - len(self._held))
            few = wanted < CHUNK // 2 and not self._untold
            refused = self._refused_at and now - self._refused_at < _ASK_AGAIN and not self._done
            if self._ended or self._asked_at or few or refused:
                return
            self._asked_at = now
            if not self._telling:
                self._telling = self._done
                self._done = []
            told = self._untold[:_MOST_TOLD]
            self._untold = self._untold[_MOST_TOLD:]
            said = Lease(
                serial=self._serial,
                held=tuple(self._held),
                done=tuple(self._telling),
                cached=tuple(told),
                wanted=wanted,
                bound=self._bound,
                hits=self._hits,
                misses=self._misses,
                saved=self._saved,
                fetched=self._fetched,
                straight=self._straight,
                waited=round(self._waited, 3),
                detour=self._bucket.detour if self._bucket else "",
            )
        self._say(said)

    # --- copied ------------------------------------------------------------------------------------------------------
    def _copy(self) -> None:
        stream: Any = None
        while (block := self._next_leased()) is not None:
            wanted = Content(block.number, block.size, block.crc32c)
            tries = 0
            began = time.monotonic()
            while not self._ended:
                try:
                    with self._changed:
                        path = self._cache.get(wanted)
                    if path is None:
                        if self._bucket:
                            content = self._bucket.read(block, self.moved)
                        else:
                            content = None
                        straight = content is not None
                        if content is None:
                            stream = stream or self._connected()
                            content = self._from_chief(stream, wanted)
                        path = self._taken(wanted, content, straight=straight)
                    else:
                        self._hits = self._hits + 1
                        self._saved = self._saved + block.size
                    self._arrived(block.number, path)
                    break
                except (OSError, ValueError) as error:
                    stream = None
                    tries = tries + 1
                    away = isinstance(error, OSError) and time.monotonic() - began < _PATIENCE
                    if tries > _TRIES and not away:
                        why = f"block {block.number} of the records could not be copied from the chief: {error}"
                        self._fail(TrainingError(why, where=self._chief))
                        return
                    time.sleep(
                        _PAUSE * min(tries, _TRIES) / _TRIES
                    )  # the chief may be starting again

    def _next_leased(self) -> LeasedBlock | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._coming)
            if self._ended:
                return None
            self._copying += 1
            return self._coming.popleft()

    def _arrived(self, number: int, path: str) -> None:
        with self._changed:
            self._copying -= 1
            self._ready.append((number, path))
            self._moved_at = time.monotonic()
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _connected(self) -> Any:
        connection = socket.create_connection(host_and_port(self._chief), timeout=10)
        connection.settimeout(_SILENT)
        stream = connection.makefile("rwb")
        connection.close()  # the stream has it
        ask(stream, Files(token=self._token, what="blocks"))
        return stream

    def _from_chief(self, stream: Any, wanted: Content) -> bytes:
        import google_crc32c

        began = time.monotonic()
        said = ask(stream, Fetch(name=str(wanted.number)))
        if said.get("size") != wanted.size:
            raise ValueError(f"it has {said.get('size')} bytes and not {wanted.size}")
        content = bytearray(wanted.size)
        place = 0
        view = memoryview(content)
        while place < wanted.size:
            read = stream.readinto(view[place : place + _PIECE])
            if not read:
                raise ConnectionError(f"it ended {wanted.size - place} bytes too early")
            place += read
            self.moved()
        view.release()
        whole = bytes(content)
        if google_crc32c.value(whole) != wanted.crc32c:
            raise ValueError("it arrived damaged")
        if self._bucket is not None:
            self._bucket.compare(wanted.size, time.monotonic() - began)
        return whole

    def _taken(self, wanted: Content, content: bytes, *, straight: bool) -> str:
        with self._changed:
            self._misses = self._misses + 1
            self._fetched = self._fetched + wanted.size
            self._straight += wanted.size * straight
            before = self._cache.bytes
            path = self._cache.put(wanted, content)
            if self._cache.bytes > before:
                self._untold.append(wanted.number)
        return path


# A worker's blocks straight from the bucket in which their files lie, by ranged reads: the chief's
# link is spared.
#
# The chief has looked through the files, and says in which of them a block is, where, and with
# which checksum; and it hands out the token that opens them, for reading alone. It has a copy. So
# whatever is wrong with the bucket costs the way around it, and no more: a block that the bucket
# refuses, or sends damaged or too slowly, comes from the chief, and for a while, longer each time,
# all others do (a circuit breaker). So do the first ones, until Google's client is there.


class BucketBlocks:
    """The blocks of a run whose records are in `place`; `token` is the run's, for its `chief`."""

    def __init__(self, place: str, problem: str | None, chief: str, token: str) -> None:
        self._place = place
        self._problem = problem or ""
        self._chief = chief
        self._token = token
        self._lock = threading.Lock()
        self._bucket: Bucket | None = None
        self._folder = ""
        self._usual: float | None = None
        """Seconds a byte from the chief, lately."""
        self._failed_at = 0.0
        self._again_at = 0.0
        self._pause = _FIRST_PAUSE
        self._tried = False
        """After a failure one block tries the way for all."""
        self._ended = threading.Event()
        self.detour = ""
        """Why the last one went around the bucket; empty: none had to."""

    def open(self) -> None:
        """Get ready, on a thread: Google's client takes a second to import, and nobody waits for
        it.
        """
        threading.Thread(target=self._open, daemon=True, name="bucket").start()

    def close(self) -> None:
        """Nothing more is read."""
        self._ended.set()

    def compare(self, size: int, seconds: float) -> None:
        """So long a block of so many bytes took from the chief."""
        with self._lock:
            now = seconds / max(1, size)
            if self._usual is None:
                self._usual = now
            else:
                self._usual = 0.8 * self._usual + 0.2 * now

    def read(self, block: LeasedBlock, moved: Callable[[], object]) -> bytes | None:
        """The block's bytes, checked; None: it is to come from the chief. `moved` is called as they
        arrive.
        """
        import google_crc32c

        with self._lock:
            bucket = self._bucket
            began = time.monotonic()
            usual = self._usual
            if bucket is None or began < self._again_at or self._tried:
                return None
            self._tried = self._again_at > 0
        if usual is None:
            patience = _UNKNOWN
        else:
            patience = min(max(_SLOWER * usual * block.size, _LEAST), _MOST)
        try:
            if not is_path(block.file):
                raise ValueError(f"{block.file!r:.80} is no file of the records")
            arriving = _Arriving(patience, moved)
            bucket.read_range(
                f"{self._folder}{block.file}", block.offset, block.size, arriving, patience
            )
            content = bytes(arriving.content)
            if len(content) != block.size or google_crc32c.value(content) != block.crc32c:
                raise ValueError(
                    "what lies there is not what ps-0 has a copy of, or it arrived damaged"
                )
        except (TrainingError, OSError, ValueError) as error:
            self._failed(began, error)
            return None
        with self._lock:
            self._tried = False
            self._again_at = 0.0
            self._pause = _FIRST_PAUSE
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
        """Leave the bucket alone for a while. What was under way when another failed is no second
        failure.
        """
        with self._lock:
            if began < self._failed_at:
                return
            self._tried = False
            self._failed_at = time.monotonic()
            self._again_at = self._failed_at + self._pause * random.uniform(0.8, 1.2)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self.detour = checks.clipped(
                error.what if isinstance(error, TrainingError) else str(error)
            )
            log(f"blocks come from the chief, not from {self._place}: {error}")


class _Arriving:
    """What has arrived of a block within `patience` seconds."""

    def __init__(self, patience: float, moved: Callable[[], object]) -> None:
        self.content = bytearray()
        self._patience = patience
        self._moved = moved
        self._until = time.monotonic() + patience

    def write(self, piece: bytes) -> int:
        if time.monotonic() > self._until:
            raise TimeoutError(f"the bucket has not sent it within {self._patience:.0f} s")
        self.content += piece
        self._moved()
        return len(piece)
