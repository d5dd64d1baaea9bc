"""How records reach a step: a worker's cache and the bucket, and mini-batches that other VMs prepare.

`cache`: a worker's cache of 35 % of the records: seconds and bytes from the source in each epoch, and after a kill. The
chief's leases, the sending of blocks and a worker's side of it are the real ones, over a port of this machine that
carries so many bytes a second; nothing is decoded. Beside them, on the same source and with the same room: the blocks
that are kept are those used last, as a page cache does (in the order of the files, and in one that is drawn); and
tf.data's Dataset.cache and Dataset.snapshot, in processes of their own, whose files have all records or none. Then how
long each takes to be as fast as it was, where its process is killed and started again on its VM. Then a first epoch,
which no cache has yet, by one worker and by three: through the chief's link, which they share, and straight from an
emulated bucket, with Google's client, where each has a link of its own. At the end a worker of two is killed in
mid-epoch.

`prep`: mini-batches prepared on VMs of their own (`--prep`): speed and dollars against decoding on the worker. One
worker with a K80 at list prices, on the emulator; its steps take as long as an emulated accelerator says. Decoding an
example is a sleep, of 24 simultaneously as Tensor2Tensor interleaves them, so that each VM has cores for it of its own,
which this machine has not. Of slow decoding, and of decoding that a worker does in passing: there the other VMs can
only cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import google_crc32c
from _common import (
    CELL,
    Relay,
    all_in,
    median,
    own_home,
    parser_of,
    rows_between,
    run_measures,
    say,
    say_all,
    start,
    step_rate,
)

from transient_magics import client
from transient_magics.client import Declaration, Run
from transient_magics.cloud import Reach
from transient_magics.cloud.storage import bounded_token
from transient_magics.journal import ClusterState
from transient_magics.protocol.chief_messages import Grant, Lease, read_first
from transient_magics.protocol.messages import encode
from transient_magics.protocol.step_parts import step_parts
from transient_magics.runtime.files import blocks
from transient_magics.runtime.files.blocks import Index
from transient_magics.runtime.parameter_server import records
from transient_magics.runtime.parameter_server.chief.blocks import Lending
from transient_magics.runtime.worker.blocks import CONNECTIONS, Blocks, BucketBlocks, Chunk

SHARE = 0.35
RECORD = 100_000
TOKEN = "benchmark"
FILE = "p-train-00000-of-00001"
PLACE = "gs://benchmark-records/p"
KILLED_AT = 0.5
"""Of an epoch, when a process is killed."""
BATCH, PACE = 32, 0.1
SLOW, QUICK = 0.240, 0.012
"""Seconds of decoding an example: a mini-batch takes three times as long as its step, and a sixth of it."""
SETTLE_SECONDS = 5.0
PROBLEM = (
    CELL
    + """

@registry.register_problem
class SlowDigits(ImageDigits):
    def preprocess_example(self, example, mode, hparams):
        import tensorflow as tf
        from tensorflow.python.data.experimental.ops import testing
        one = tf.data.Dataset.from_tensors(example["inputs"]).apply(testing.sleep(MICROSECONDS))
        decoded = one.get_single_element()
        decoded.set_shape(example["inputs"].shape)
        example["inputs"] = decoded
        return super().preprocess_example(example, mode, hparams)
"""
)


class Source:
    """A chief with so many bytes of records that sends `rate` bytes a second."""

    def __init__(self, folder: Path, size: int, rate: float) -> None:
        self.folder, self.rate = folder, rate
        path = folder / FILE
        with path.open("wb") as file:
            for _ in range(size // RECORD):
                file.write(_framed(os.urandom(RECORD - 16)))
        self.index: Index = blocks.indexed(folder, [path])
        self.lending = Lending("bench", self.index, 1, None, 0.0)
        self._lock = threading.Lock()
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self._relay = Relay(asyncio.run_coroutine_threadsafe(self._serve(), loop).result())
        self.share(1)
        self.address = self._relay.address

    def share(self, workers: int) -> None:
        """So many workers share the link: each of their connections carries a part of it."""
        self._relay.rate = self.rate / CONNECTIONS / workers

    def worker(self, number: int, cache: str, folder: Path, bucket: BucketBlocks | None = None) -> Blocks:
        """A worker that has begun to copy."""

        def hear(lease: Lease) -> None:
            with self._lock:
                answer = self.lending.grant(number, lease)
            made.leased(answer.blocks)

        made = Blocks(self.address, TOKEN, folder, cache, hear, bucket)
        made.start()
        return made

    async def _serve(self) -> str:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(read_first(await reader.readline()), Grant):
            writer.write(encode(records.granted(self.folder.parent / "records-token.json")))
            writer.close()
            return
        await records.serve_blocks(self.folder, self.index, reader, writer)


def ours(source: Source, place: Path, epochs: int) -> None:
    """Print each epoch of a worker with a cache."""
    size = source.index.bytes
    worker = source.worker(1, f"{int(SHARE * size / 1000)}KB:memory", place)
    for epoch in range(epochs):
        began, before = time.monotonic(), source.lending.summary
        while source.lending.summary.epochs <= epoch:
            worker.used(_next(worker))
        told = source.lending.summary
        part = (told.fetched_bytes - before.fetched_bytes) / size
        took = time.monotonic() - began
        say(f"never evicting, epoch {epoch + 1}", took, "s", more=_of(part))
        source.rate = source.rate if epoch else told.fetched_bytes / took  # what it carries
    told = source.lending.summary
    later = (told.fetched_bytes / size - 1) / (epochs - 1)
    say("  bytes from the source in a later epoch, of all", later, "", f"{1 - SHARE:.2f}, and what is read ahead")
    worker.close(leaving=True)
    source.lending.release(1, "worker-1")


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


TFDATA = ("cache", "snapshot")


def tf_data(way: str, source: Source, place: Path) -> None:
    """Print what tf.data's own caches read from the source: a file with room for all, and after a process is killed."""

    def epoch(name: str, kill: bool = False) -> float:
        """Which part of the records a process of its own reads from the source in an epoch, or until it is killed."""
        words = ["--epoch-of", way, "--records", str(source.index.records), "--place", str(place / f"{way}-{name}")]
        quiet, said = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, 0
        with (place / "errors").open("w", encoding="utf-8") as errors, subprocess.Popen(
            [sys.executable, __file__, *words], stdout=subprocess.PIPE, stderr=errors, env=quiet
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                said = int(line)
                if kill and said >= KILLED_AT * source.index.records:
                    process.send_signal(signal.SIGKILL)
                    break
        if not kill and process.returncode:
            raise SystemExit((place / "errors").read_text(encoding="utf-8"))
        return said / source.index.records

    name, seconds = f"Dataset.{way}", source.index.bytes / source.rate
    epoch("whole")
    later = epoch("whole")
    say(f"{name}, with room for all, a later epoch", later * seconds, "s", more=_of(later))
    half = epoch("killed", kill=True)
    for lock in place.glob(f"{way}-killed*.lockfile"):
        print("  killed, it refuses to begin again until somebody deletes its lock file: done here")
        lock.unlink()
    again = epoch("killed")
    then = epoch("killed")
    say("  killed in the middle of its first epoch, it reads again", half + again - 1, "", more="of the records")
    say("  from then until it is as fast as a later epoch", again * seconds, "s", more=f"the next: {_of(then)}")
    say("  killed in a later one, until it is as fast again", epoch("whole") * seconds, "s")


def one_epoch(way: str, many: int, place: str) -> None:
    """Read an epoch, and print after each some how many records came from the source so far."""
    import tensorflow as tf

    read = 0

    def generate() -> Iterator[bytes]:
        nonlocal read
        for _ in range(many):
            read += 1
            yield bytes(RECORD - 16)

    made = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.string))
    for number, _ in enumerate(made.cache(place) if way == "cache" else made.snapshot(place)):
        if number % 20 == 0:
            print(read, flush=True)
    print(read, flush=True)


def started_again(source: Source, place: Path) -> None:
    """Print an epoch of a worker that is started again on its VM, where one was killed whose cache was full."""
    source.share(1)
    for where in ("disk", "memory"):
        folder, cache = _made(place / f"again-{where}"), f"{int(SHARE * source.index.bytes / 1000)}KB:{where}"
        for number in (1, 2):
            source.lending, began = Lending("bench", source.index, 3, None, 0.0), time.monotonic()
            worker = source.worker(number, cache, folder)
            while not source.lending.summary.epochs:
                worker.used(_next(worker))
            took = time.monotonic() - began
            worker.close(leaving=number == 2)
        part = _of(source.lending.summary.fetched_bytes / source.index.bytes)
        say(f"never evicting, in {where}: killed and started again, an epoch", took, "s", more=part)
    print("a page cache stays with its VM (not measured): nothing is lost; on a new VM nothing of any of these is left")


@contextmanager
def bucket_of(source: Source) -> Iterator[None]:
    """The records in an emulated bucket that is reached by a link of so many bytes a second for each worker."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "transient_emulator", "--state", f"{home}/state", "--port", "0"]
        environment = {**os.environ, "TRANSIENT_MAGICS_HOME": home}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as emulator:
            try:
                assert emulator.stdout is not None
                url = emulator.stdout.readline().decode().split()[-1]
                client = storage.Client("p", AnonymousCredentials(), client_options={"api_endpoint": url})
                client.create_bucket("benchmark-records").blob(f"p/{FILE}").upload_from_filename(source.folder / FILE)
                token = asyncio.run(bounded_token([Reach(f"{PLACE}/", "objectViewer")], "p", url))
                (source.folder.parent / "records-token.json").write_text(json.dumps(token.to_dict()), encoding="utf-8")
                relay = Relay(url.removeprefix("http://"))
                relay.rate = source.rate / CONNECTIONS
                os.environ["STORAGE_EMULATOR_HOST"] = f"http://{relay.address}"
                yield
            finally:
                emulator.terminate()


def straight(source: Source, place: Path, samples: int) -> None:
    """Print a first epoch of one worker and of three, through the chief and straight from the bucket, in turns."""
    ways = [(workers, straight) for workers in (1, 3) for straight in (False, True)]
    took: dict[tuple[int, bool], list[float]] = {way: [] for way in ways}
    shares: list[float] = []
    cpu: dict[bool, list[float]] = {True: [], False: []}
    with bucket_of(source):
        for sample in range(samples):
            for workers, direct in ways:
                source.lending = Lending("bench", source.index, sample, None, 0.0)
                source.share(workers)
                began, computed = time.monotonic(), time.process_time()
                _first_epoch(source, workers, direct, _made(place / f"first-{sample}-{workers}-{direct}"))
                took[workers, direct].append(time.monotonic() - began)
                told = source.lending.summary
                cpu[direct].append((time.process_time() - computed) / told.fetched_bytes * 1e9)
                if direct:
                    shares.append(told.straight_bytes / told.fetched_bytes)
    for workers, direct in ways:
        how = "straight from the bucket" if direct else "through the chief's link"
        say_all(f"a first epoch, {workers} worker{'s' * (workers > 1)}, {how}", took[workers, direct], "s")
    speedup = median(took[1, True]) / median(took[3, True])
    say("  three workers straight, over one", speedup, "", "3", more=f"{100 * median(shares):.0f} % came straight")
    say("  three workers through the chief, over one", median(took[1, False]) / median(took[3, False]), "", "1")
    for direct, name in ((True, "straight"), (False, "through the chief")):
        say_all(f"  CPU of this process, {name}, the link itself included", cpu[direct], "s/GB")


def _first_epoch(source: Source, workers: int, direct: bool, folder: Path) -> None:
    def reads(worker: Blocks) -> None:
        while not source.lending.summary.epochs:
            if chunk := worker.next(0.2, _NEVER):
                worker.used(chunk)

    begun: list[Blocks] = []
    for number in range(1, workers + 1):
        bucket = BucketBlocks(PLACE, "p", source.address, TOKEN) if direct else None
        begun.append(source.worker(number, "0", _made(folder / str(number)), bucket))
    threads = [threading.Thread(target=reads, args=(worker,)) for worker in begun]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in begun:
        worker.close(leaving=True)


def killed(source: Source, place: Path) -> None:
    """Print which blocks are read twice when one of two workers is killed in mid-epoch."""
    lending = source.lending = Lending("bench", source.index, 2, None, 0.0)
    source.share(2)
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
    lending.release(2, "worker-2")
    while not lending.summary.epochs:
        chunk = _next(one)
        if lending.summary.epochs:
            break
        read.update(chunk.numbers)
        one.used(chunk)
    one.close(leaving=True)
    told, again = lending.summary, sum(read[number] > 1 for number in begun.numbers)
    say("a kill in mid-epoch: blocks leased once more", told.again, "", f"<= {told.bound}, the bound")
    say("  of them had been in its steps in part", again, "", more=f"of {told.blocks} blocks")
    say("  blocks that nobody read", sum(not read[number] for number in range(told.blocks)), "", "0")


def _next(worker: Blocks) -> Chunk:
    while (chunk := worker.next(1.0, _NEVER)) is None:
        pass
    return chunk


_NEVER = threading.Event()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", _masked(length)) + record + struct.pack("<I", _masked(record))


def _masked(content: bytes) -> int:
    crc = google_crc32c.value(content)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _of(part: float) -> str:
    return f"{100 * part:.0f} % of the records from the source"


def cache(options: argparse.Namespace) -> None:
    """Print seconds, bytes and blocks of the cache and its peers."""
    quick = options.quick
    size, epochs, samples = (32_000_000, 3, 1) if quick else (256_000_000, 5, 3)
    rate = size / 12
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        folder.mkdir()
        source = Source(folder, size, rate)
        ours(source, Path(place), epochs)
        used_last(source, epochs)
        for way in TFDATA:
            tf_data(way, source, Path(place))
        started_again(source, Path(place))
        straight(source, Path(place), samples)
        killed(source, Path(place))


def measured(seconds: float, vms: int, span: float) -> tuple[float, float, float]:
    """Steps per second, the share of them that waits for mini-batches, and US dollars an hour of all VMs."""
    with own_home():
        cluster = client.declare(Declaration("k80", name="bench"))
        run = start(
            cluster, source=PROBLEM.replace("MICROSECONDS", str(round(1e6 * seconds))), problem="slow_digits",
            hparams=f"batch_size={BATCH}", pace_seconds=PACE, prep=f"cpux{vms}" if vms else "",
        )  # fmt: skip
        all_in(cluster, 1)
        run.reach(5, 600)
        if vms and seconds == SLOW:
            _have_all(run, vms)
        time.sleep(SETTLE_SECONDS)
        began = time.time()
        time.sleep(span)
        state = cluster.state
        ended = time.time()
        found = step_rate(run, began, ended), _waiting(run, began, ended), sum(vm.hourly for vm in state.living)
        cluster.delete(120)
        return found


def _have_all(run: Run, vms: int) -> None:
    """Wait until so many were added, because steps wait, and are at work."""

    def there(state: ClusterState) -> bool:
        return sum(vm.role == "prep" and vm.state == "ready" for vm in state.living) == vms

    run.cluster.follow(there, 600)
    before = run.state.step
    run.reach(before + 40, 600)


def _waiting(run: Run, since: float, until: float) -> float:
    split = [parts for row in rows_between(run, since, until) if (parts := step_parts(row.get("split")))]
    return sum(parts.input for parts in split) / sum(parts.step for parts in split)


def prep(options: argparse.Namespace) -> None:
    """Print speed and waiting by the number of VMs that prepare, and what a thousand steps cost."""
    for seconds, name in ((SLOW, "slow decoding"), (QUICK, "quick decoding")):
        alone = 0.0
        for vms in (0, 1, 2) if options.quick or seconds == QUICK else (0, 1, 2, 4):
            rate, waiting, hourly = measured(seconds, vms, 20.0 if options.quick else 60.0)
            alone = alone or rate
            where = f"--prep cpux{vms}" if vms else "on the worker"
            dollars = hourly / 3600 * 1000 / rate
            more = f"{rate / alone:.2f} x, {waiting:.0%} waiting, ${hourly:.3f}/h, ${dollars:.4f} per 1,000 steps"
            say(f"{name}, {where}", rate, "steps/s", more=more)


def main() -> None:
    """Run the chosen measures, or an epoch of tf.data's in this process."""
    measures = {"cache": cache, "prep": prep}
    parser = parser_of(__doc__, "32 MB, three epochs, one sample; 20 s of each, up to two VMs", measures)
    parser.add_argument("--epoch-of", metavar="WAY", help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--place", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.epoch_of:
        one_epoch(options.epoch_of, options.records, options.place)
        return
    run_measures(measures, options)


if __name__ == "__main__":
    main()
