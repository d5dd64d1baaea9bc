"""A worker's cache of 35 % of the records: seconds and bytes from the source in each epoch, and what a kill costs.

The chief's leases, the sending of blocks and a worker's side of it are the real ones, over a port of this machine that
carries so many bytes a second; nothing is decoded. Beside them, on the same source and with the same room: the blocks
that are kept are those used last, as a page cache does (in the order of the files, and in one that is drawn); and
tf.data's Dataset.cache, whose file has all records or none. At the end a worker of two is killed in
mid-epoch.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import struct
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
from _common import say
from _relay import Relay

from transient_magics.protocol.chief_messages import Lease, read_first
from transient_magics.runtime.files import blocks
from transient_magics.runtime.files.blocks import Index
from transient_magics.runtime.parameter_server.blocks import serving
from transient_magics.runtime.parameter_server.blocks.lending import Lending
from transient_magics.runtime.worker.blocks import CONNECTIONS, Blocks, Chunk

SHARE = 0.35
RECORD = 100_000
TOKEN = "benchmark"


class Source:
    """A chief with so many bytes of records that sends `rate` bytes a second."""

    def __init__(self, folder: Path, size: int, rate: float) -> None:
        self.folder, self.rate = folder, rate
        path = folder / "p-train-00000-of-00001"
        with path.open("wb") as file:
            for _ in range(size // RECORD):
                file.write(_framed(os.urandom(RECORD - 16)))
        self.index: Index = blocks.indexed(folder, [path])
        self.lending = Lending("bench", self.index, 1, None, 0.0)
        self._lock = threading.Lock()
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        relay = Relay(asyncio.run_coroutine_threadsafe(self._serve(), loop).result())
        relay.rate = rate / CONNECTIONS  # of each connection
        self.address = relay.address

    def worker(self, number: int, cache: str, folder: Path) -> Blocks:
        """A worker that has begun to copy."""

        def hear(lease: Lease) -> None:
            with self._lock:
                answer = self.lending.asked(number, lease)
            made.leased(answer.blocks)

        made = Blocks(self.address, TOKEN, folder, cache, hear)
        made.start()
        return made

    async def _serve(self) -> str:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read_first(await reader.readline())
        await serving.serve(self.folder, self.index, reader, writer)


def main() -> None:
    """Print seconds, bytes and blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="32 MB, three epochs (256 MB, five)")
    quick = parser.parse_args().quick
    size, epochs = (32_000_000, 3) if quick else (256_000_000, 5)
    rate = size / 12
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        folder.mkdir()
        source = Source(folder, size, rate)
        ours(source, Path(place), epochs)
        used_last(source, epochs)
        dataset_cache(source, Path(place))
        killed(source, Path(place))


def ours(source: Source, place: Path, epochs: int) -> None:
    """Print each epoch of a worker with a cache."""
    size = source.index.bytes
    worker = source.worker(1, f"{int(SHARE * size / 1000)}KB:memory", place)
    for epoch in range(epochs):
        began, before = time.monotonic(), source.lending.told
        while source.lending.told.epochs <= epoch:
            worker.used(_next(worker))
        told = source.lending.told
        part = (told.fetched_bytes - before.fetched_bytes) / size
        say(f"never evicting, epoch {epoch + 1}", time.monotonic() - began, "s", more=_of(part))
        source.rate = source.rate if epoch else told.fetched_bytes / (time.monotonic() - began)  # what it carries
    told = source.lending.told
    later = (told.fetched_bytes / size - 1) / (epochs - 1)
    say("  bytes from the source in a later epoch, of all", later, "", f"{1 - SHARE:.2f}, and what is read ahead")
    worker.close(leaving=True)
    source.lending.lost(1, "worker-1")


def used_last(source: Source, epochs: int) -> None:
    """Print what a cache fetches that keeps what was used last; at the source's speed."""
    sizes = [block.size for block in source.index.blocks]
    for how in ("in the order of the files", "in a drawn order"):
        kept: OrderedDict[int, int] = OrderedDict()
        fetched = 0
        for _ in range(epochs):
            fetched = 0
            order = list(range(len(sizes)))
            if "drawn" in how:
                random.Random(os.urandom(8)).shuffle(order)
            for block in order:
                if block in kept:
                    kept.move_to_end(block)
                    continue
                fetched += sizes[block]
                kept[block] = sizes[block]
                while sum(kept.values()) > SHARE * source.index.bytes:
                    kept.popitem(last=False)
        part = fetched / source.index.bytes
        say(f"used last stays (computed), {how}, a later epoch", fetched / source.rate, "s", more=_of(part))


def dataset_cache(source: Source, place: Path) -> None:
    """Print what Dataset.cache reads from the source: its file needs room for all, and a killed one begins anew."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    many, read = source.index.records, list[int]()

    def generate() -> Iterator[bytes]:
        for number in range(many):
            read.append(number)
            yield bytes(RECORD - 16)

    def epoch(name: str, most: int = -1) -> float:
        """Which part of the records an epoch reads, or its beginning of so many."""
        read.clear()
        made = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.string))
        for _ in made.cache(str(place / name)).take(most):
            pass
        return len(read) / many

    epoch("cache")
    later = epoch("cache")
    say(
        "Dataset.cache, with room for all, a later epoch",
        later * source.index.bytes / source.rate,
        "s",
        more=_of(later),
    )
    half = epoch("killed", many // 2)
    repeated = half + epoch("killed") - 1
    say("  killed in the middle of its first epoch, it reads again", repeated, "", more="of the records")


def killed(source: Source, place: Path) -> None:
    """Print which blocks are read twice when one of two workers is killed in mid-epoch."""
    lending = source.lending = Lending("bench", source.index, 2, None, 0.0)
    one, two = (source.worker(number, "0", _made(place / f"vm-{number}")) for number in (1, 2))
    read: Counter[int] = Counter()
    half = len(source.index.blocks) // 4
    while sum(read.values()) < 2 * half:
        for worker in (one, two):
            chunk = _next(worker)
            read.update(chunk.numbers)
            worker.used(chunk)
    begun = _next(two)  # in its steps when it is killed
    read.update(begun.numbers)
    two.close(leaving=False)
    lending.lost(2, "worker-2")
    while not lending.told.epochs:
        chunk = _next(one)
        if lending.told.epochs:
            break
        read.update(chunk.numbers)
        one.used(chunk)
    one.close(leaving=True)
    told, again = lending.told, sum(read[number] > 1 for number in begun.numbers)
    say("a kill in mid-epoch: blocks leased once more", told.again, "", f"<= {told.bound}, the bound")
    say("  of them had been in its steps in part", again, "", more=f"of {told.blocks} blocks")
    say("  blocks that nobody read", sum(not read[number] for number in range(told.blocks)), "", "0")


def _next(worker: Blocks) -> Chunk:
    while (chunk := worker.next(1.0, _NEVER)) is None:
        pass
    return chunk


_NEVER = threading.Event()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", _masked(length)) + record + struct.pack("<I", _masked(record))


def _masked(content: bytes) -> int:
    crc = google_crc32c.value(content)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _of(part: float) -> str:
    return f"{100 * part:.0f} % of the records from the source"


if __name__ == "__main__":
    main()
