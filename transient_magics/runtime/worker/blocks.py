"""A worker's record blocks: leased from the chief, copied by several connections, read in chunks.

A chunk is what the pipeline of examples reads at a time, from its first record to its last. The
first chunk is one block, so that the first step need not wait for more. Later chunks have several
blocks, whose records are mixed. Once steps have had all examples of a chunk, its blocks are
reported as done. A worker that dies costs the blocks that it leases and has not done, whose number
is limited.
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
"""Connections that copy blocks at the same time."""
CHUNK = 8
"""Blocks of a chunk, from the fourth one on; before it, 1, 2 and 4."""
BOUND = 3 * CHUNK
"""Blocks that a worker leases at least: those that are read, those that come next, and those whose
examples wait for a step.
"""
MOST_BOUND = 512
_LARGEST = 64 << 20
"""Limit on the size of a block, in bytes; the chief makes smaller ones."""
_PIECE = 1 << 18
_SILENT = 60.0
_PAUSE = 5.0
_TRIES = 5
_CHIEF_AWAY = 900.0
"""Time that the chief may be away, in seconds: its VM may have to start."""
_ASK_AGAIN = 0.5
_STARVED = 5.0
_MOST_CACHED = 256
"""Most cached blocks that one message reports."""

_SLOWER = 4.0
"""A block from the bucket may take this many times as long as one from the chief, ..."""
_LEAST = 2.0
_MOST = 60.0
_UNKNOWN = 10.0
"""... within these limits, in seconds; the last is the limit before any came from the chief."""
_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 300.0
_CHIEF_SECONDS = 10.0


@dataclass(frozen=True)
class Chunk:
    """Blocks that are read together, and their files."""

    numbers: tuple[int, ...]
    paths: tuple[str, ...]


class Blocks:
    """The record blocks of one worker.

    Parameters
    ----------
    chief, token
        Address of the chief, and the run's token.
    run
        Folder of the run on this VM.
    cache
        Declared cache; "" for none. Raises DeclarationError if this VM has no room for it.
    send
        Sends a Lease to the chief, whose answer is passed to `leased`.
    bucket
        The bucket that has the records too, if any.
    """

    def __init__(
        self,
        chief: str,
        token: str,
        run: Path,
        cache: str,
        send: Callable[[Lease], None],
        bucket: BucketBlocks | None = None,
    ) -> None:
        self._chief = chief
        self._token = token
        self._send = send
        self._bucket = bucket
        self._cache = BlockCache(Cache.parse(cache) if cache else None, run)
        self._changed = threading.Condition()
        # Blocks, from their lease to their last step:
        self._coming: deque[LeasedBlock] = deque()
        """Leased blocks that are not copied yet."""
        self._copying = 0
        self._ready: deque[tuple[int, str]] = deque()
        """Blocks that are copied, with their files."""
        self._out: list[Chunk] = []
        """Chunks that the pipeline reads."""
        self._again: deque[Chunk] = deque()
        """Chunks of a lost session, which are read again."""
        self._done: list[int] = []
        """Blocks that are done and not reported yet."""
        self._leased: dict[int, int] = {}
        """Leased blocks that are not done, with the number of their records."""
        # The request to the chief:
        self._reporting: list[int] = []
        """Blocks that the unanswered request reports as done."""
        self._serial = 1
        """Number of the request. It is sent again under the same number if it is not answered."""
        self._requested_at = 0.0
        """When the request was sent; 0 if it has been answered."""
        self._refused_at = 0.0
        """When the chief last had no block; 0 if it has."""
        self._unreported = sorted(self._cache.numbers)
        """Cached blocks that are not reported yet."""
        self._size = 1
        """Blocks of the next chunk."""
        self._bound = BOUND
        """Most blocks to lease."""
        # Counters for the chief:
        self._hits = 0
        self._misses = 0
        self._saved = 0
        self._fetched = 0
        self._straight = 0
        self._waited = 0.0
        self._moved_at = time.monotonic()
        self._ended = False
        self._failure: BaseException | None = None
        self.moved: Callable[[], object] = lambda: None
        """Called when bytes have arrived: waiting for a slow source is not being stuck."""

    def start(self) -> None:
        """Lease and copy blocks, on other threads."""
        if self._bucket is not None:
            self._bucket.open()
        for _ in range(CONNECTIONS):
            threading.Thread(target=self._copy, daemon=True, name="blocks").start()
        self._request()

    def close(self, *, leaving: bool) -> None:
        """Stop reading; `leaving`: no other process of this VM will use the cache."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            if self._bucket is not None:
                self._bucket.close()
            if leaving:
                self._cache.close()

    # --- read by the pipeline ---------------------------------------------------------------------
    def expect(self, examples: int) -> None:
        """Lease enough blocks for steps of `examples` examples, besides the chunks being read."""
        with self._changed:
            records = sum(self._leased.values()) / max(1, len(self._leased))
            more = 0
            if records:
                more = -(-examples // max(1, int(records)))
            self._bound = min(MOST_BOUND, max(self._bound, BOUND + more))

    def next(self, wait: float, ended: threading.Event) -> Chunk | None:
        """Return the next chunk.

        None if there is none within `wait` seconds, or the reader has `ended`. Raises TrainingError
        if the records cannot be copied.
        """
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(self._has_chunk, wait)
            self._waited += time.monotonic() - began
            if self._failure is not None:
                raise self._failure
            if self._ended or ended.is_set():
                return None
            if self._has_chunk():
                return self._next_chunk()
            self._raise_bound_if_starved()
        self._request()
        return None

    def _raise_bound_if_starved(self) -> None:
        """Lease more blocks if a step needs more records than all leased blocks have."""
        nothing_comes = (
            time.monotonic() - self._moved_at > _STARVED and not self._coming and not self._copying
        )
        if nothing_comes and len(self._leased) >= self._bound < MOST_BOUND:
            self._bound = min(2 * self._bound, MOST_BOUND)
            self._moved_at = time.monotonic()
            log(
                f"a step takes more records than {len(self._leased)} blocks have: "
                f"up to {self._bound} are leased now"
            )

    def used(self, chunk: Chunk) -> None:
        """Mark a chunk as done: steps have had all of its examples."""
        with self._changed:
            if chunk not in self._out:  # it is read again, for another session
                return
            self._out.remove(chunk)
            for number in chunk.numbers:
                self._cache.release(number)
                self._leased.pop(number, None)
                self._done.append(number)
            self._moved_at = time.monotonic()
        self._request()

    def rewind(self) -> None:
        """Read chunks again that are not done: their session is lost."""
        with self._changed:
            self._again.extendleft(reversed(self._out))
            self._out.clear()
            self._changed.notify_all()

    def _has_chunk(self) -> bool:
        if self._failure is not None or self._ended or self._again:
            return True
        if not self._ready:
            return False
        more_comes = self._coming or self._copying or (self._requested_at and not self._refused_at)
        return len(self._ready) >= self._size or not more_comes

    def _next_chunk(self) -> Chunk:
        if self._again:
            chunk = self._again.popleft()
        else:
            count = min(self._size, len(self._ready))
            blocks = [self._ready.popleft() for _ in range(count)]
            chunk = Chunk(tuple(number for number, _ in blocks), tuple(path for _, path in blocks))
            self._size = min(2 * self._size, CHUNK)
        self._out.append(chunk)
        return chunk

    # --- leased from the chief --------------------------------------------------------------------
    def leased(self, blocks: Sequence[LeasedBlock]) -> None:
        """Add the blocks of the chief's answer."""
        with self._changed:
            self._requested_at = 0.0
            self._refused_at = 0.0 if blocks else time.monotonic()
            self._reporting = []
            self._serial += 1
            for block in blocks:
                if block.number in self._leased:
                    continue
                if not 0 < block.size <= _LARGEST:
                    what = f"the chief leases a block of {block.size} bytes"
                    self._failure = TrainingError(what, where=self._chief)
                    break
                self._leased[block.number] = block.records
                self._coming.append(block)
            self._moved_at = time.monotonic()
            self._changed.notify_all()
        self._request()

    def joined(self) -> None:
        """Send the request again: the connection to the chief is a new one.

        The chief may be a new one too, and not know the cache.
        """
        with self._changed:
            self._requested_at = 0.0
            self._unreported = sorted(self._cache.numbers)
        self._request()

    def _request(self) -> None:
        """Report blocks, and request those that are missing to the bound, unless pending."""
        with self._changed:
            now = time.monotonic()
            missing = max(0, self._bound - len(self._leased))
            few = missing < CHUNK // 2 and not self._unreported
            refused = self._refused_at and now - self._refused_at < _ASK_AGAIN and not self._done
            if self._ended or self._requested_at or few or refused:
                return
            self._requested_at = now
            if not self._reporting:
                self._reporting = self._done
                self._done = []
            cached = self._unreported[:_MOST_CACHED]
            self._unreported = self._unreported[_MOST_CACHED:]
            lease = Lease(
                serial=self._serial,
                held=tuple(self._leased),
                done=tuple(self._reporting),
                cached=tuple(cached),
                wanted=missing,
                bound=self._bound,
                hits=self._hits,
                misses=self._misses,
                saved=self._saved,
                fetched=self._fetched,
                straight=self._straight,
                waited=round(self._waited, 3),
                detour=self._bucket.detour if self._bucket else "",
            )
        self._send(lease)

    # --- copied -----------------------------------------------------------------------------------
    def _copy(self) -> None:
        """Copy leased blocks, one after the other, until closed: a thread of each connection."""
        stream: Any = None
        while (block := self._next_leased()) is not None:
            tries = 0
            began = time.monotonic()
            while not self._ended:
                try:
                    path, stream = self._get(block, stream)
                    self._arrived(block.number, path)
                    break
                except (OSError, ValueError) as error:
                    stream = None
                    tries += 1
                    away = isinstance(error, OSError) and time.monotonic() - began < _CHIEF_AWAY
                    if tries > _TRIES and not away:
                        what = (
                            f"block {block.number} of the records could not be copied "
                            f"from the chief: {error}"
                        )
                        self._fail(TrainingError(what, where=self._chief))
                        return
                    # The chief may be restarting.
                    time.sleep(_PAUSE * min(tries, _TRIES) / _TRIES)

    def _get(self, block: LeasedBlock, stream: Any) -> tuple[str, Any]:
        """Return the file of a block, from the cache, the bucket or the chief.

        `stream` is the connection to the chief, if there is one already; returned for the next
        block. Raises OSError and ValueError.
        """
        content = Content(block.number, block.size, block.crc32c)
        with self._changed:
            path = self._cache.get(content)
        if path is not None:
            self._hits += 1
            self._saved += block.size
            return path, stream
        read = None
        if self._bucket:
            read = self._bucket.read(block, self.moved)
        straight = read is not None
        if read is None:
            stream = stream or self._connected()
            read = self._from_chief(stream, content)
        return self._store(content, read, straight=straight), stream

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

    def _from_chief(self, stream: Any, content: Content) -> bytes:
        """Copy a block from the chief, and compare its checksum."""
        import google_crc32c

        began = time.monotonic()
        answer = ask(stream, Fetch(name=str(content.number)))
        if answer.get("size") != content.size:
            raise ValueError(f"it has {answer.get('size')} bytes instead of {content.size}")
        buffer = bytearray(content.size)
        place = 0
        view = memoryview(buffer)
        while place < content.size:
            read = stream.readinto(view[place : place + _PIECE])
            if not read:
                raise ConnectionError(
                    f"the connection closed {content.size - place:,} bytes before its end"
                )
            place += read
            self.moved()
        view.release()
        whole = bytes(buffer)
        if google_crc32c.value(whole) != content.crc32c:
            raise ValueError("it was damaged in transit")
        if self._bucket is not None:
            self._bucket.compare(content.size, time.monotonic() - began)
        return whole

    def _store(self, content: Content, read: bytes, *, straight: bool) -> str:
        """Put a block into the cache or a file; `straight`: it came from the bucket."""
        with self._changed:
            self._misses += 1
            self._fetched += content.size
            if straight:
                self._straight += content.size
            before = self._cache.bytes
            path = self._cache.put(content, read)
            if self._cache.bytes > before:
                self._unreported.append(content.number)
        return path


class BucketBlocks:
    """Blocks that a worker reads from the bucket of their files, so the chief need not send them.

    The chief has read the files, and says in which file a block is, where, and with which checksum.
    It also sends the token that opens the files, for reading only. It has a copy of them. So a
    failure of the bucket costs no more than the detour: a block that the bucket refuses, or sends
    damaged or too slowly, comes from the chief. For a pause, longer each time, all other blocks do
    too (a circuit breaker). So do the first blocks, until Google's client is imported.

    Parameters
    ----------
    place
        Folder of the records in the bucket.
    problem
        Name of the problem; None for other data.
    chief, token
        Address of the chief, and the run's token.
    """

    def __init__(self, place: str, problem: str | None, chief: str, token: str) -> None:
        self._place = place
        self._problem = problem or ""
        self._chief = chief
        self._token = token
        self._lock = threading.Lock()
        self._bucket: Bucket | None = None
        self._folder = ""
        self._usual: float | None = None
        """Recent average of seconds a byte from the chief."""
        self._failed_at = 0.0
        self._again_at = 0.0
        """When the bucket may be tried again after a failure; 0 while it works."""
        self._pause = _FIRST_PAUSE
        self._trying = False
        """Whether one block tries the bucket after a failure; the others wait for its result."""
        self._ended = threading.Event()
        self.detour = ""
        """Why the last block came from the chief instead; "" if none did."""

    def open(self) -> None:
        """Import Google's client and open the bucket, on another thread, which takes a second."""
        threading.Thread(target=self._open, daemon=True, name="bucket").start()

    def close(self) -> None:
        """Stop trying to open the bucket."""
        self._ended.set()

    def compare(self, size: int, seconds: float) -> None:
        """Add the time that a block of `size` bytes took from the chief, as a reference."""
        with self._lock:
            rate = seconds / max(1, size)
            if self._usual is None:
                self._usual = rate
            else:
                self._usual = 0.8 * self._usual + 0.2 * rate

    def read(self, block: LeasedBlock, moved: Callable[[], object]) -> bytes | None:
        """Return the block's bytes, compared with its checksum; None: read it from the chief.

        `moved` is called as bytes arrive.
        """
        import google_crc32c

        with self._lock:
            bucket = self._bucket
            began = time.monotonic()
            usual = self._usual
            if bucket is None or began < self._again_at or self._trying:
                return None
            self._trying = self._again_at > 0
        limit = _UNKNOWN
        if usual is not None:
            limit = min(max(_SLOWER * usual * block.size, _LEAST), _MOST)
        try:
            if not is_path(block.file):
                raise ValueError(f"{block.file!r:.80} is not a file of the records")
            arriving = _Arriving(limit, moved)
            name = f"{self._folder}{block.file}"
            bucket.read_range(name, block.offset, block.size, arriving, limit)
            content = bytes(arriving.content)
            if len(content) != block.size or google_crc32c.value(content) != block.crc32c:
                raise ValueError(
                    "the file differs from the copy on ps-0, or it was damaged in transit"
                )
        except (TrainingError, OSError, ValueError) as error:
            self._failed(began, error)
            return None
        with self._lock:
            self._trying = False
            self._again_at = 0.0
            self._pause = _FIRST_PAUSE
        return content

    def _open(self) -> None:
        from ..files.bucket import Bucket

        while not self._ended.is_set():
            began = time.monotonic()
            try:
                bucket = Bucket(self._place, self._token_from_chief)
                self._folder = shared_records.folder(bucket, self._problem)
            except TrainingError as error:
                self._failed(began, error)
                self._ended.wait(self._again_at - time.monotonic())
            else:
                with self._lock:
                    self._bucket = bucket
                return

    def _token_from_chief(self) -> dict[str, Any]:
        connection = socket.create_connection(host_and_port(self._chief), timeout=_CHIEF_SECONDS)
        with connection, connection.makefile("rwb") as stream:
            grant = ask(stream, Grant(token=self._token))
        return {"token": grant["access"], "expires": grant["expires"]}

    def _failed(self, began: float, error: Exception) -> None:
        """Pause before the bucket is tried again.

        A read that began before another one failed does not count as a second failure.
        """
        with self._lock:
            if began < self._failed_at:
                return
            self._trying = False
            self._failed_at = time.monotonic()
            self._again_at = self._failed_at + self._pause * random.uniform(0.8, 1.2)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            reason = error.what if isinstance(error, TrainingError) else str(error)
            self.detour = checks.clipped(reason)
            log(f"blocks come from the chief, not from {self._place}: {error}")


class _Arriving:
    """The bytes of a block as they arrive, within `limit` seconds."""

    def __init__(self, limit: float, moved: Callable[[], object]) -> None:
        self.content = bytearray()
        self._limit = limit
        self._moved = moved
        self._until = time.monotonic() + limit

    def write(self, piece: bytes) -> int:
        if time.monotonic() > self._until:
            raise TimeoutError(f"the bucket did not send it within {self._limit:.0f} s")
        self.content += piece
        self._moved()
        return len(piece)
