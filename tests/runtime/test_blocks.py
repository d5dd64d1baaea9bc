"""Blocks of records: cut at records, leased once per epoch whoever dies, and kept by a cache that never evicts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.examples import examples
from tests.runtime.test_chief_state import Story, saved
from transient_magics.errors import DeclarationError, TrainingError
from transient_magics.protocol.chief_messages import Files, Grant, Lease, read_first
from transient_magics.protocol.messages import encode
from transient_magics.protocol.run import Cache
from transient_magics.protocol.vm_events import TrainDetour
from transient_magics.runtime.files import blocks
from transient_magics.runtime.files.blocks import BlockCache, Content
from transient_magics.runtime.parameter_server import records
from transient_magics.runtime.parameter_server.chief import events as chief_events
from transient_magics.runtime.parameter_server.chief.blocks import EVERY, Leases, Lending
from transient_magics.runtime.worker import blocks as worker_blocks
from transient_magics.runtime.worker.blocks import Blocks, Chunk


def masked(content: bytes) -> int:
    crc = google_crc32c.value(content)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(record: bytes) -> bytes:
    """A record as TFRecord files have it."""
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", masked(length)) + record + struct.pack("<I", masked(record))


def write(path: Path, sizes: list[int]) -> None:
    path.write_bytes(b"".join(framed(bytes([number % 256]) * size) for number, size in enumerate(sizes)))


# --- cutting ---------------------------------------------------------------------------------------------------------
@examples(40)
@given(some.lists(some.lists(some.integers(0, 150_000), max_size=12), max_size=4))
def test_blocks_are_whole_records_and_all_of_them(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("data")
    paths = [folder / f"p-train-{number:05}-of-{len(files):05}" for number in range(len(files))]
    for path, sizes in zip(paths, files, strict=True):
        write(path, sizes)
    index = blocks.indexed(folder, paths)
    assert index.records == sum(map(len, files))
    assert index.bytes == sum(path.stat().st_size for path in paths)
    joined = {path.name: b"" for path in paths}
    for block in index.blocks:
        content = (folder / block.file).read_bytes()[block.offset : block.offset + block.size]
        assert google_crc32c.value(content) == block.crc32c
        joined[block.file] += content
    assert joined == {path.name: path.read_bytes() for path in paths}, "in order, without a gap"
    assert blocks.indexed(folder, paths) == index, "as it was written down"


def test_a_torn_record_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "p-train-00000-of-00001"
    write(path, [100, 100])
    whole = path.read_bytes()
    for content, said in (
        (whole[:-30], "at byte 116 ends within a record"),
        (b"x" + whole[1:], "at byte 0 is not a record"),
    ):
        path.write_bytes(content)
        (tmp_path / blocks.NAME).unlink(missing_ok=True)
        with pytest.raises(TrainingError, match=f"the record file {path.name} is damaged: the part {said}"):
            blocks.indexed(tmp_path, [path])


# --- leasing ---------------------------------------------------------------------------------------------------------
class World:
    """Workers of unequal speed that lease, read, die and come back, and what of the data steps have had."""

    def __init__(self, many: int, bound: int) -> None:
        self.leases, self.bound, self.many = Leases(many, seed=3), bound, many
        self.held: dict[int, list[int]] = {}
        self.read: Counter[int] = Counter()
        """Blocks of which each record has been in a step."""
        self.touched: Counter[int] = Counter()
        """Blocks of which some records may have been in a step of a worker that died."""

    def ask(self, worker: int) -> None:
        held = self.held.setdefault(worker, [])
        self.leases.update(worker, held, ())
        held += self.leases.take(worker, self.bound - len(held))
        assert len(set(held)) == len(held) <= self.bound

    def finish(self, worker: int, many: int) -> None:
        held = self.held.get(worker, [])
        done, self.held[worker] = held[:many], held[many:]
        self.read.update(done)
        self.leases.update(worker, self.held[worker], done)

    def check(self) -> None:
        """Each epoch that has begun owes each block once: it was read, or it is still to be read."""
        state = self.leases.to_dict()
        pending = Counter(block for epoch in state["pending"].values() for block in epoch)
        assert {self.read[block] + pending[block] for block in range(self.many)} == {state["begun"]}

    def die(self, worker: int) -> None:
        held = self.held.pop(worker, [])
        self.touched.update(held)
        assert self.leases.lost(worker) == len(held) <= self.bound


@examples(150)
@given(
    many=some.integers(1, 30),
    bound=some.integers(1, 9),
    acts=some.lists(some.tuples(some.sampled_from("aaafffd"), some.integers(0, 3), some.integers(1, 4)), max_size=120),
)
def test_every_block_once_per_epoch_and_none_is_lost_with_a_worker(
    many: int, bound: int, acts: list[tuple[str, int, int]]
) -> None:
    world = World(many, bound)
    for act, worker, count in acts:
        if act == "a":
            world.ask(worker)
        elif act == "f":
            world.finish(worker, count)
        else:
            world.die(worker)
        world.check()
    for worker in list(world.held):  # all that are left end: what they held is read by the last one
        if worker:
            world.die(worker)
    epochs = world.leases.complete + len(acts)
    while world.leases.complete < epochs + 1:
        world.ask(0)
        world.finish(0, bound)
    world.check()
    least = min(world.read[block] for block in range(many))
    assert least >= world.leases.complete, "whatever happened, no epoch is complete without each block"
    assert max(world.read.values()) - least <= bound + 1, "nor is any read more often, but of epochs that have begun"
    assert world.leases.returned == sum(world.touched.values())


def test_blocks_of_a_dead_worker_are_leased_again_in_the_same_epoch() -> None:
    leases = Leases(6)
    held_by_dead_worker = leases.take(1, 3)
    assert leases.lost(1) == 3
    leased_again = leases.take(2, 6)
    assert set(held_by_dead_worker) == set(leased_again[:3]), "they go first"
    leases.update(2, (), leased_again)
    assert leases.complete == 1
    assert leases.to_dict()["pending"] == {}, "no second epoch has begun"


def test_without_deaths_unequal_workers_read_every_block_once_each_epoch() -> None:
    world, read = World(40, 6), dict[int, int]()
    turns = random.Random(1)
    while world.leases.complete < 3:
        worker = turns.choices((0, 1, 2), (1, 2, 6))[0]
        world.ask(worker)
        before = sum(world.read.values())
        world.finish(worker, 1)
        read[worker] = read.get(worker, 0) + sum(world.read.values()) - before
    assert all(3 <= world.read[block] <= 4 for block in range(40))
    assert read[2] > 2 * read[0], "whoever is fast takes more"


def test_what_a_chief_and_a_worker_did_not_hear_of_each_other_is_mended() -> None:
    leases = Leases(8)
    given = leases.take(1, 4)
    leases.update(1, (), (), serial=1)  # the answer was lost: it asks again, and holds nothing
    assert sorted(leases.take(1, 8)) == list(range(8))
    assert leases.leased_to(1) >= set(given)
    leases.update(1, range(2, 8), (0, 1), serial=2)
    taken = leases.take(1, 2)
    leases.update(1, range(2, 8), (0, 1), serial=2)  # said again, since that was not answered: not done once more
    assert leases.leased_to(1) == set(range(2, 8))
    assert set(taken) == {0, 1}
    successor = Leases(8, kept=leases.to_dict())
    successor.update(1, (2, 3), (4,))
    assert successor.leased_to(1) == {2, 3}, "what it holds it keeps; what it did since the last save is read again"
    assert successor.complete == 0
    assert 4 in successor.take(2, 8)


def test_an_epoch_finds_exactly_the_part_that_is_cached() -> None:
    leases, cached = Leases(100, seed=7), set[int]()
    held: list[int] = []
    for epoch in range(4):
        hits = 0
        for _ in range(100):
            (block,) = leases.take(0, 1)
            hits += block in cached
            if len(cached) < 35:
                cached.add(block)
            held = [block]
            leases.update(0, held, (), tuple(cached))
            leases.update(0, (), held)
        assert hits == (35 if epoch else 0)
    others = {leases.take(1, 1)[0] for _ in range(65)}
    assert not others & cached, "whoever has it not takes what nobody has"


def test_a_run_tells_of_its_data_now_and_then_and_of_each_loss() -> None:
    index = blocks.Index(tuple(blocks.Block("p", 10 * number, 10, 2, 0) for number in range(50)))
    lending = Lending("run-1", index, 1, None, now=0.0)
    assert lending.due(60.0) is None, "nobody has asked"
    first = lending.grant(4, Lease(serial=1, wanted=24, bound=24))
    assert len(first.blocks) == 24
    assert {block.size for block in first.blocks} == {10}
    told = lending.due(1.0)
    assert told is not None
    assert (told.blocks, told.records, told.bytes, told.bound) == (50, 100, 500, 24)
    assert lending.due(2.0 + EVERY) is None, "nothing is new"
    held = tuple(block.number for block in first.blocks)
    lending.grant(4, Lease(serial=2, held=held[4:], done=held[:4], bound=24, misses=24, fetched=240))
    lost = lending.release(4, "worker-1")
    assert lost is not None
    assert (lost.worker, lost.blocks, lost.bound) == ("worker-1", 20, 24)
    assert lending.release(4, "worker-1") is None
    now = lending.due(3.0 + EVERY)
    assert now is not None
    assert (now.again, now.misses, now.fetched_bytes) == (20, 24, 240)


def blocks_of(many: int) -> blocks.Index:
    return blocks.Index(tuple(blocks.Block("p", 10 * number, 10, 2, 0) for number in range(many)))


@examples(100)
@given(
    many=some.integers(1, 30),
    bound=some.integers(1, 9),
    before=some.lists(some.tuples(some.sampled_from("af"), some.integers(0, 2), some.integers(1, 4)), max_size=60),
    since=some.lists(some.tuples(some.sampled_from("af"), some.integers(0, 2), some.integers(1, 4)), max_size=60),
)
def test_back_at_a_checkpoint_what_was_read_since_is_read_again(
    many: int, bound: int, before: list[tuple[str, int, int]], since: list[tuple[str, int, int]]
) -> None:
    world = World(many, bound)

    def play(acts: list[tuple[str, int, int]]) -> None:
        for act, worker, number in acts:
            world.ask(worker) if act == "a" else world.finish(worker, number)

    play(before)
    kept, read = world.leases.to_dict(), world.read.copy()
    play(since)
    world.leases.rewind(kept)
    assert world.leases.to_dict() == kept
    world.read, world.held = read, {}  # what workers hold yet comes back to them with their next words, or to others
    for worker in range(3):
        world.ask(worker)
    while world.leases.complete < kept["begun"] + 1:
        for worker in range(3):
            world.finish(worker, bound)
            world.ask(worker)
    assert min(world.read[number] for number in range(many)) >= kept["begun"] + 1, "none is lost"


def test_a_second_parameter_server_that_is_lost_takes_the_leases_back() -> None:
    story = Story()
    story(chief_events.Prepared(0))
    story(chief_events.Indexed(blocks_of(12)))
    story.joins(1, "worker-1")

    def asks(serial: int, held: tuple[int, ...], done: tuple[int, ...], wanted: int) -> tuple[int, ...]:
        lease = Lease(serial=serial, held=held, done=done, wanted=wanted, bound=24)
        (told,) = story(chief_events.Leasing(1, lease))
        return tuple(block.number for block in told.message.blocks)

    first = asks(1, (), (), 12)
    asks(2, first[4:], first[:4], 0)
    story(chief_events.StepSeen(40))
    story(saved(40))
    asks(3, first[8:], first[4:8], 0)
    story(chief_events.StepSeen(60))
    story(chief_events.StepSeen(45))  # restored, and trained on
    again = asks(4, first[8:], (), 4)
    assert sorted(again) == sorted(first[4:8]), "the others it holds yet"


# --- caching ---------------------------------------------------------------------------------------------------------
def content(number: int, size: int = 1000) -> tuple[Content, bytes]:
    made = random.Random(number).randbytes(size)
    return Content(number, size, google_crc32c.value(made)), made


@pytest.mark.parametrize("place", ["memory", "shm", "disk"])
def test_what_is_in_a_cache_stays_and_the_rest_passes_through(tmp_path: Path, place: str) -> None:
    cache = BlockCache(Cache.parse(f"3KB:{place}"), tmp_path)
    for number in range(5):
        block, made = content(number)
        assert Path(cache.put(block, made)).read_bytes() == made
        cache.release(number)
    assert cache.numbers == {0, 1, 2}
    assert cache.bytes == 3000
    assert [cache.get(content(number)[0]) is not None for number in range(5)] == [True] * 3 + [False] * 2
    successor = BlockCache(Cache.parse(f"3KB:{place}"), tmp_path)
    assert successor.numbers == (set() if place == "memory" else {0, 1, 2}), "of a process that was killed"
    cache.close()
    assert not BlockCache(Cache.parse(f"3KB:{place}"), tmp_path).numbers


def test_a_block_that_was_damaged_on_the_disk_is_copied_again(tmp_path: Path) -> None:
    block, made = content(1)
    path = Path(BlockCache(Cache.parse("3KB"), tmp_path).put(block, made))
    path.write_bytes(b"x" + made[1:])
    successor = BlockCache(Cache.parse("3KB"), tmp_path)
    assert successor.get(block) is None
    assert not path.exists()
    assert successor.bytes == 0


def test_a_cache_larger_than_the_room_for_it_is_refused_and_a_full_disk_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, words in (("memory", "memory"), ("disk", "disk")):
        with pytest.raises(DeclarationError, match=rf"^a cache of 9000.0 GB is larger than .* of {words}"):
            BlockCache(Cache.parse(f"9TB:{place}"), tmp_path)
    cache = BlockCache(Cache.parse("1MB"), tmp_path)
    full = lambda *_: (_ for _ in ()).throw(OSError(28, os.strerror(28)))  # noqa: E731
    first, made = content(1)
    cache.put(first, made)
    monkeypatch.setattr(Path, "write_bytes", full)
    second, more = content(2)
    assert Path(cache.put(second, more)).read_bytes() == more, "it passes through"
    assert cache.numbers == {1}
    assert blocks.cache_room("disk", tmp_path) > 0
    monkeypatch.undo()
    cache.put(*content(3))
    assert cache.numbers == {1}, "a disk that was full is not filled again"


@pytest.mark.parametrize("text", ["", "2", "2GB:", "-1GB", "2GB:tape", "1e9GB", "nanGB", "9" * 40 + "GB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|unknown place"):
        Cache.parse(text)
    assert Cache.parse("0").bytes == 0
    assert Cache.parse("1.5GB:shm") == Cache(1_500_000_000, "shm")


# --- a worker's side -------------------------------------------------------------------------------------------------
class Chief:
    """A chief that leases and sends blocks, as the real one does, and what it can do wrong."""

    def __init__(self, folder: Path, index: blocks.Index) -> None:
        self.lending, self._folder, self.index = Lending("r", index, 1, None, 0.0), folder, index
        self.said: list[Lease] = []
        self.told: list[TrainDetour] = []
        self.deaf = self.damaging = False
        self.worker: Blocks
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.address = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()

    def hear(self, lease: Lease) -> None:
        self.said.append(lease)
        if detour := self.lending.detour("worker-1", lease):
            self.told.append(detour)
        answer = self.lending.grant(4, lease)
        if not self.deaf:
            self.worker.leased(answer.blocks)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self) -> str:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = read_first(await reader.readline())
        if first == Grant(token="t"):
            writer.write(encode(records.granted(self._folder.parent / "records-token.json")))
            writer.close()
            return
        assert first == Files(token="t", what="blocks")
        if self.damaging:
            names = {block.file for block in self.index.blocks}
            for name in names:
                (self._folder / name).write_bytes(bytes((self._folder / name).stat().st_size))
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await records.serve_blocks(self._folder, self.index, reader, writer)


@pytest.fixture
def chief(tmp_path: Path) -> Iterator[Chief]:
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "p-train-00000-of-00001", [90_000] * 120)
    index = blocks.indexed(folder, [folder / "p-train-00000-of-00001"])
    assert len(index.blocks) == 40
    chief = Chief(folder, index)
    chief.worker = Blocks(chief.address, "t", tmp_path, "2MB:memory", chief.hear)
    yield chief
    chief.worker.close(leaving=True)
    chief.close()


def taken(worker: Blocks) -> Chunk:
    for _ in range(20):
        if chunk := worker.next(1.0, threading.Event()):
            return chunk
    raise AssertionError("no chunk within 20 s")


def test_a_worker_begins_with_one_block_and_holds_no_more_than_its_bound(chief: Chief) -> None:
    chief.worker.start()
    chunks = [taken(chief.worker) for _ in range(4)]
    assert [len(chunk.numbers) for chunk in chunks] == [1, 2, 4, 8]
    assert len(Path(chunks[0].paths[0]).read_bytes()) == 3 * (90_000 + 16)
    chief.worker.expect(30)
    chief.worker.used(chunks[0])
    assert (chief.said[0].wanted, chief.said[0].bound) == (24, 24)
    last = chief.said[-1]
    assert (len(last.held), last.wanted, last.bound) == (23, 11, 34), "thirty examples are ten blocks more"
    assert last.done == chunks[0].numbers
    assert last.misses >= 15
    assert last.cached


def test_a_lost_session_has_its_chunks_again_and_a_lost_answer_no_block_twice(chief: Chief) -> None:
    chief.worker.start()
    chunks = [taken(chief.worker) for _ in range(3)]
    chief.worker.rewind()
    assert [taken(chief.worker) for _ in range(3)] == chunks
    chief.deaf = True
    for chunk in chunks:
        chief.worker.used(chunk)
    unanswered, chief.deaf = chief.said[-1], False
    chief.worker.joined()
    assert (chief.said[-1].serial, chief.said[-1].done) == (unanswered.serial, unanswered.done)
    done = [number for lease in chief.said for number in lease.done if lease is not unanswered]
    assert done == [number for chunk in chunks for number in chunk.numbers][: len(done)], "each is told once"
    assert chief.lending.summary.again == 0


def test_a_restarted_chief_hears_what_a_worker_has_in_its_cache(chief: Chief) -> None:
    chief.worker.start()
    for _ in range(12):
        chief.worker.used(taken(chief.worker))
    cached = {number for lease in chief.said for number in lease.cached}
    assert len(cached) > 5
    chief.lending = Lending("r", chief.index, 1, None, 0.0)
    before = len(chief.said)
    chief.worker.joined()
    assert {number for lease in chief.said[before:] for number in lease.cached} >= cached


def test_blocks_that_arrive_damaged_are_said_in_a_sentence(chief: Chief, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_blocks, "_PAUSE", 0.0)
    chief.damaging = True
    chief.worker.start()
    with pytest.raises(
        TrainingError, match=r"^block \d+ of the records could not be copied .*: it was damaged in transit"
    ):
        taken(chief.worker)
