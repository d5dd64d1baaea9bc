"""A worker that takes measures in place of training: the chief says which one and when.

S0 runs in this process alone, S1 on a parameter server of this VM; all others on those of the
cluster. Learning rates are divided by so much that no variable moves: whatever is measured, the
values are those of the first step.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ...errors import TrainingError
from ...protocol.chief_messages import Take, Took
from ...protocol.measures.stalls import COLD, MOST_STEPS, Measure
from ..files.data_files import MARKER
from ..role import log
from ..tf import placement
from ..tf.graph_mode import run_only, tensorflow
from ..training.examples import iterator_of
from ..training.graph.file import needed, nodes
from ..training.graph.worker import WorkerGraph
from ..training.usercode import reason
from .chief_link import answer
from .gpu import Held
from .graph import Made
from .meter import fetches
from .session import IN_VAIN, Training

_STILL = 1e12
"""What learning rates are divided by."""
_WARM_UP_SHARE = 0.25
_WARM_UP_STEPS = 2
_LEAST_STEPS = 3
"""Of a measure's seconds before those that count; steps before them, and of those that count."""
_FIRST_STEPS = 3
"""In each arrangement, before this worker counts as ready: the first ones also build what later
ones find.
"""
_LOOK = 0.25
_A_MOMENT = 0.02
_READING: frozenset[Measure] = frozenset(("R4", "R5"))
_FROM_RECORDS: frozenset[Measure] = frozenset(("S4", "S5", "R4", "R5"))

_Step = Callable[[], object]

_STEP = (
    "loss",
    "before",
    "after",
    "examples",
    "step",
    "divisor",
    "share",
    "expected",
    "weight",
    "fed",
    "pulled",
    "forward",
    "backward",
)
_JOB = re.compile(r"/job:(?:ps|worker)/(?:replica:\d+/)?task:\d+")

_EVERY = 0.2
"""Seconds between two drops while examples are read: what was read once is not to be found again.
"""
_BLOCK = 1 << 20
_CODE = (".py", ".pyc", ".so", ".log", ".whl", ".zip")


# The graph of a worker's step once more: on one mini-batch that stays in memory, and wherever its
# variables are.
#
# What is imported is the step that the worker would train with, with other features and other
# devices: whatever the model is, the arrangements compute the same.


@dataclass(frozen=True)
class Arrangement:
    """A finished graph with its step; `start`, run with `feeds`, puts the mini-batch there,
    `initialise` makes the variables.
    """

    graph: Any
    built: WorkerGraph
    start: Any
    feeds: Mapping[Any, Any]
    initialise: Any


# A parameter server on the worker's own VM, for S1: TensorFlow's server in a process of its own,
# and nothing else.
#
# `python -m transient_magics.runtime.worker.measuring THREADS ADDRESS ...` serves one task for each
# address. It ends when its input does, which is when the worker that started it ends, however that
# comes about.


class OwnServer:
    """So many parameter servers in one process, at ports of `address` that are free."""

    def __init__(self, servers: int, address: str, threads: int) -> None:
        self.addresses = [f"{address}:{port}" for port in _free_ports(servers)]
        program = [sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__]
        without_gpu = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",
        }  # as the VMs of parameter servers are
        command = [*program, str(threads), *self.addresses]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=without_gpu)

    def close(self) -> None:
        """End it."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()


class Measuring(Training):
    """One worker's part of a run that measures stalls."""

    _own_server: OwnServer | None = None
    _sessions: dict[str, Any]
    _kept: dict[str, Arrangement]
    _helds: dict[str, Held]
    _examples_bytes = 0

    def define(self) -> None:
        """As for training; a file that the cell opens is one of those that examples are read from."""
        self._opened = open_files()
        super().define()

    def listen(self) -> None:
        """Start this worker's server, and the parameter server beside it."""
        super().listen()
        self._own_server = OwnServer(
            len(self._assignment.ps), self._assignment.address, self._spec.threads
        )

    def _use(self, made: Made) -> None:
        super()._use(made)
        self._made = made
        self._sessions = {}
        self._kept = {}
        self._helds = {"cluster": self._held}
        self._files = set[Path]()

    def run(self) -> None:
        """Take measures until told to stop, through as many sessions as it takes.

        Raises TrainingError where the sessions are there, and no step succeeds in one after the
        other.
        """
        self._pace.start()
        lost = placement.transient_errors()
        ready = False
        try:
            while not self.stop.is_set():
                self._moved()
                try:
                    if not ready:
                        ready = self._prepare()
                        continue
                    told = self._link.turns.get(timeout=_LOOK)
                except queue.Empty:
                    continue
                except lost as error:
                    self._lose(error)
                    continue
                try:
                    self._link.took(self._took(told))
                    self._fruitless = 0
                except lost as error:  # a parameter server is gone: the chief has somebody take this measure again
                    self._lose(error)
                    ready = False
                    self._link.took(Took(turn=told.turn))
        finally:
            self._examples.stop()
            for session in self._sessions.values():
                placement.close(session, 0.2)
            if self._own_server:
                self._own_server.close()

    # --- arrangements ------------------------------------------------------------------------------------------------
    def _prepare(self) -> bool:
        """Have a session for each arrangement, and make its first steps."""
        if not answer(self._assignment.ps) or not answer(self._own_servers):
            self.stop.wait(_LOOK)
            return False
        cluster = self._sessions["cluster"] = self._open()
        if not self._wait_until_ready(cluster):
            return False
        if not self._kept:
            self._keep_a_batch(cluster)
        for name, arrangement in self._kept.items():
            self._sessions[name] = session = self._session_of(name, arrangement)
            session.run(arrangement.start, arrangement.feeds)
            if name != "across":
                session.run(arrangement.initialise)
        for name in ("alone", "beside", "across", "cluster"):
            for _ in range(_FIRST_STEPS):
                self._step_of(name)()
                self._moved()
        self._stop_reading()
        self._files |= open_files(self._opened)
        self._watch.lap("arrangements")
        files = ", ".join(sorted(str(file) for file in self._files))
        log(f"{self._watch}; examples are read from {files or 'no file'}")
        self._link.stepping(None, 0, self._pace.speed)
        return True

    @property
    def _own_servers(self) -> list[str]:
        assert self._own_server
        return self._own_server.addresses

    def _keep_a_batch(self, cluster: Any) -> None:
        """Make the graphs of the arrangements on the first mini-batch that there is."""
        made = self._made
        device = placement.worker_device(self._number)
        features = dict(made.examples.features)
        batch = cluster.run(features, self._examples.feeds(made.examples.batch))
        make = partial(in_memory, made.graph, made.built, features, batch, device)
        self._kept = {"alone": make(apart=True), "beside": make()}
        self._kept["across"] = self._kept["beside"]
        self._helds |= {name: Held(each.built, self.stop) for name, each in self._kept.items()}
        self._files = files_below(Path(self._folder.data_directory(self._spec)))

    def _session_of(self, name: str, arrangement: Arrangement) -> Any:
        tf = tensorflow()
        threads = self._spec.threads
        if name == "alone":
            config = placement.plain_config(threads)
            placement.optimise_briefly(config)
            return tf.Session(graph=arrangement.graph, config=config)
        config = self._config
        if name == "beside":
            config = placement.worker_config(
                self._own_servers, self._number, self._address, threads
            )
        return tf.Session(self._server.target, graph=arrangement.graph, config=config)

    def _lose(self, error: Exception) -> None:
        log(
            f"session lost, opening others: {type(error).__name__}: {str(error).splitlines()[0][:160]}"
        )
        self._examples.stop()
        for session in self._sessions.values():
            placement.close(session, 0.2)
        self._sessions = {}
        if self._fruitless >= IN_VAIN and placement.may_be_own(error):
            raise TrainingError(
                f"no step succeeds: {reason(error, self._spec.line_offset)}"
            ) from error
        self.stop.wait(_LOOK)

    # --- measures ----------------------------------------------------------------------------------------------------
    def _took(self, take: Take) -> Took:
        """Take the measure."""
        with self._records(take.measure):
            seconds = self._measured(self._what(take.measure), take.seconds)
        if take.measure in _FROM_RECORDS:
            self._files |= open_files(self._opened)
            self._stop_reading()
        log(f"{take.measure}: {len(seconds)} steps in {sum(seconds):.2f} s")
        return Took(
            turn=take.turn,
            seconds=_at_most(seconds),
            examples=self._made.examples.batch,
            bytes=size(self._files),
        )

    @contextlib.contextmanager
    def _records(self, measure: Measure) -> Iterator[None]:
        """Read records inside, warm or cold, if the measure is of them."""
        if measure not in _FROM_RECORDS:
            yield
            return
        if measure not in COLD:
            read_into_cache(self._files)
        with KeptCold(self._files) if measure in COLD else contextlib.nullcontext():
            self._examples.resume(self._sessions["cluster"])
            yield

    def _stop_reading(self) -> None:
        """Read no more, and leave nothing that is prepared for the next measure."""
        self._examples.stop()
        session = self._sessions["cluster"]
        source = self._made.examples
        least = 1 if source.requested is None else source.batch
        while not self.stop.is_set():
            self._moved()
            stopped = self._examples.stopped
            if session.run(source.left) >= least:
                self._read()
            elif stopped:
                return
            else:
                self.stop.wait(_A_MOMENT)

    def _read(self) -> None:
        """Take a mini-batch, for nothing."""
        source = self._made.examples
        session = self._sessions["cluster"]
        operations = [feature.op for feature in source.features.values()]
        session.run(operations, self._examples.feeds(source.batch))

    def _what(self, measure: Measure) -> _Step:
        if measure in _READING:
            return self._read
        names = {"S0": "alone", "S1": "beside", "S2": "across", "S3": "across"}
        return self._step_of(names.get(measure, "cluster"))

    def _step_of(self, name: str) -> _Step:
        """A step of that arrangement, as long as it takes on this VM's accelerator."""
        session = self._sessions[name]
        if name == "cluster":
            built = self._made.built
        else:
            built = self._kept[name].built
        fetched = fetches(built)
        feeds: dict[Any, Any] = {built.divisor: _STILL, built.share: 1.0}
        if name == "cluster":
            feeds |= self._examples.feeds(self._made.examples.batch)

        def step() -> None:
            began = time.monotonic()
            pace = self._pace.of(1.0)
            if not pace:
                session.run(fetched, feeds)
                return
            self._helds[name].take(session, feeds, pace)
            self.stop.wait(max(0.0, pace - (time.monotonic() - began)))

        return step

    def _measured(self, step: _Step, seconds: float) -> list[float]:
        """The seconds of each step, for that long, without the first ones."""
        until = time.monotonic() + _WARM_UP_SHARE * seconds
        warm = 0
        while not self.stop.is_set() and (time.monotonic() < until or warm < _WARM_UP_STEPS):
            step()
            self._moved()
            warm += 1
        found = list[float]()
        began = time.monotonic()
        until = began + seconds
        while not self.stop.is_set() and (began < until or len(found) < _LEAST_STEPS):
            step()
            self._moved()
            ended = time.monotonic()
            found.append(ended - began)
            began = ended
        return found


def _at_most(seconds: list[float]) -> tuple[float, ...]:
    """Their means over neighbours, where there are more than are told."""
    together = -(-len(seconds) // MOST_STEPS)
    groups = [
        seconds[begin : begin + together] for begin in range(0, len(seconds), max(together, 1))
    ]
    return tuple(round(sum(group) / len(group), 7) for group in groups)


def in_memory(
    graph: Any,
    built: WorkerGraph,
    features: Mapping[str, Any],
    batch: Mapping[str, Any],
    device: str,
    *,
    apart: bool = False,
) -> Arrangement:
    """The step of `graph` on the values `batch` of its `features`, for the worker at `device`.

    `apart`: without any cluster, all that it has in one process.
    """
    tf = tensorflow()

    names = {name: getattr(built, name).name for name in _STEP}
    initial = [
        each.initializer.name for each in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    ]
    definition = needed(graph, [*names.values(), *initial])
    if apart:
        for node in nodes(definition):
            node.device = _JOB.sub("", node.device)
    with tf.Graph().as_default() as made:
        with tf.device(f"{'' if apart else device}/cpu:0"):
            held = {
                name: tf.placeholder(tensor.dtype, tensor.shape)
                for name, tensor in features.items()
            }
            iterator = iterator_of(tf.data.Dataset.from_tensors(held).repeat())
            kept = iterator.get_next()
        given = {features[name].name: kept[name] for name in features}
        wanted = [*names.values(), *initial]
        found = tf.import_graph_def(definition, given, wanted, name="measured")
        with tf.control_dependencies(None):
            initialise = tf.group(*found[len(names) :])
    made.finalize()
    step = replace(built, **dict(zip(names, found, strict=False)))
    return Arrangement(
        made, step, iterator.initializer, {held[name]: batch[name] for name in held}, initialise
    )


# Files that a worker reads its examples from, taken out of the page cache, or brought into it.
#
# `posix_fadvise` drops the pages of a file that nobody has changed since it was written out; no
# right is needed for it. Which files those are: the records of the run, and what else the process
# has open of a regular file while it reads.


def files_below(folder: Path) -> set[Path]:
    """The files of a folder, which may not be there, but for the list of them."""
    return {path for path in folder.rglob("*") if path.is_file() and path.name != MARKER}


def open_files(apart_from: Iterable[Path] = ()) -> set[Path]:
    """Regular files that this process has open for reading alone, but for code and logs."""
    found = set[Path]()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it is closed meanwhile
            path = Path(os.readlink(f"/proc/self/fd/{number}"))
            regular = stat.S_ISREG(os.stat(f"/proc/self/fd/{number}").st_mode)
            if regular and path.suffix not in _CODE and path.exists() and _is_read(int(number)):
                found.add(path)
    return found - set(apart_from)


def _is_read(number: int) -> bool:
    return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def size(files: Iterable[Path]) -> int:
    """Bytes of these files."""
    return sum(path.stat().st_size for path in files if path.exists())


def drop_from_cache(files: Iterable[Path]) -> None:
    """Have what they hold read from the disk again."""
    for path in files:
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY)
            try:
                with contextlib.suppress(
                    OSError
                ):  # a file system that cannot: nothing of it is written out late
                    os.fdatasync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def read_into_cache(files: Iterable[Path]) -> None:
    """Read them once, so that they are in the page cache as far as that has room."""
    for path in files:
        with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
            while file.read(_BLOCK):
                pass


class KeptCold:
    """Inside, these files are dropped again and again."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = list(files)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="cold files")

    def __enter__(self) -> None:
        drop_from_cache(self._files)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(_EVERY):
            drop_from_cache(self._files)


def serve_variables(threads: int, addresses: Sequence[str]) -> NoReturn:
    """Until the input ends."""
    threading.Thread(target=_watch, daemon=True).start()
    run_only()
    tf = tensorflow()
    servers = [
        tf.train.Server(
            {"ps": [*addresses]},
            job_name="ps",
            task_index=index,
            config=placement.plain_config(threads),
        )
        for index in range(len(addresses))
    ]
    servers[0].join()
    raise SystemExit


def _watch() -> NoReturn:
    sys.stdin.buffer.read()
    os._exit(0)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


if __name__ == "__main__":
    serve_variables(int(sys.argv[1]), sys.argv[2:])
