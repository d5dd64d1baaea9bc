"""A worker that takes measures of stalls instead of training, as the chief requests them.

S0 runs in this process alone, S1 with a parameter server on this VM, and all other measures with
the parameter servers of the cluster. Learning rates are divided by a number so large that no
variable changes, so all measures compute on the values of the first step.
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

from ...protocol.agent_commands import Assignment
from ...protocol.chief_messages import Take, Took
from ...protocol.run import RunSpec
from ...protocol.step_parts import COLD, MOST_STEPS, Measure
from ..files.data_files import MARKER
from ..folder import RunFolder
from ..role import Stopwatch, log
from ..tf import placement
from ..tf.graph_mode import run_only, tensorflow
from ..training.examples import iterator_of
from ..training.graph.file import needed, nodes
from ..training.graph.worker import WorkerGraph
from .chief_link import ChiefLink, answer
from .gpu import DelayedPush
from .graph import FinishedGraph
from .meter import fetches
from .session import Training

_STILL = 1e12
"""Divisor of learning rates."""
_WARM_UP_SHARE = 0.25
"""Duration of the steps that do not count, as a share of a measure's seconds."""
_WARM_UP_STEPS = 2
_LEAST_STEPS = 3
"""Least number of steps that do not count, and of steps that count."""
_FIRST_STEPS = 3
"""Steps in each arrangement before this worker is ready; they fill TensorFlow's caches."""
_POLL_SECONDS = 0.25
_DRAIN_SECONDS = 0.02
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

_DROP_SECONDS = 0.2
"""Pause between two drops from the page cache while examples are read."""
_BLOCK = 1 << 20
_CODE = (".py", ".pyc", ".so", ".log", ".whl", ".zip")


@dataclass(frozen=True)
class Arrangement:
    """The graph of a worker's step on one mini-batch in memory, with its variables elsewhere.

    The step is imported from the graph that the worker would train with, with other features and
    devices. So all arrangements compute the same, whatever the model is.
    """

    graph: Any
    built: WorkerGraph
    start: Any
    """Puts the mini-batch into memory when it is run with `feeds`."""
    feeds: Mapping[Any, Any]
    initialise: Any
    """Initialises the variables."""


class OwnServer:
    """Parameter servers for S1 on the worker's own VM: TensorFlow's servers in another process.

    `python -m transient_magics.runtime.worker.measuring THREADS ADDRESS ...` serves one task at
    each address, here free ports of `address`. The process ends when its standard input is closed,
    so it ends with the worker that started it in any case.
    """

    def __init__(self, servers: int, address: str, threads: int) -> None:
        self.addresses = [f"{address}:{port}" for port in _free_ports(servers)]
        program = [sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__]
        # VMs of parameter servers have no GPU.
        without_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
        command = [*program, str(threads), *self.addresses]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=without_gpu)

    def close(self) -> None:
        """End the process, and wait for its end."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()


class Measuring(Training):
    """One worker's part of a run that measures stalls."""

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        assignment: Assignment,
        link: ChiefLink,
        watch: Stopwatch,
    ) -> None:
        super().__init__(folder, spec, assignment, link, watch)
        self._own_server: OwnServer | None = None
        self._opened = set[Path]()
        """Files that were open before the cell ran: examples are not read from them."""
        # By name of the arrangement; set by `build`:
        self._sessions: dict[str, Any] = {}
        self._arrangements: dict[str, Arrangement] = {}
        self._delayed: dict[str, DelayedPush] = {}
        self._finished: FinishedGraph
        self._files = set[Path]()
        """Files that examples are read from."""

    def define(self) -> None:
        """Define the graph as for training; files that the cell opens count as examples' files."""
        self._opened = open_files()
        super().define()

    def listen(self) -> None:
        """Start this worker's server, and the parameter servers on this VM."""
        super().listen()
        self._own_server = OwnServer(
            len(self._assignment.ps), self._assignment.address, self._spec.threads
        )

    def _use(self, finished: FinishedGraph) -> None:
        super()._use(finished)
        self._finished = finished
        self._sessions = {}
        self._arrangements = {}
        self._delayed = {"cluster": DelayedPush(finished.built, self.stop)}
        self._files = set[Path]()

    def run(self) -> None:
        """Take measures until stopped, through as many sessions as that takes.

        Raises
        ------
        TrainingError
            Sessions can be opened, and no step succeeds in several of them.
        """
        self._pace.start()
        lost = placement.transient_errors()
        ready = False
        try:
            while not self.stop.is_set():
                self._mark_alive()
                try:
                    if not ready:
                        ready = self._prepare()
                        continue
                    request = self._link.measures.get(timeout=_POLL_SECONDS)
                except queue.Empty:
                    continue
                except lost as error:
                    self._lose_sessions(error)
                    continue
                try:
                    self._link.report_measure(self._take(request))
                    self._fruitless = 0
                except lost as error:
                    # A parameter server is gone. An empty result makes the chief request it again.
                    self._lose_sessions(error)
                    ready = False
                    self._link.report_measure(Took(turn=request.turn))
        finally:
            self._examples.stop()
            for session in self._sessions.values():
                placement.close(session, 0.2)
            if self._own_server:
                self._own_server.close()

    # --- arrangements -----------------------------------------------------------------------------
    def _prepare(self) -> bool:
        """Open a session for each arrangement, and take its first steps; False to try again."""
        if not answer(self._assignment.ps) or not answer(self._own_addresses):
            self.stop.wait(_POLL_SECONDS)
            return False
        cluster = self._open()
        self._sessions["cluster"] = cluster
        if not self._wait_until_ready(cluster):
            return False
        if not self._arrangements:
            self._arrange(cluster)
        for name, arrangement in self._arrangements.items():
            session = self._session_of(name, arrangement)
            self._sessions[name] = session
            session.run(arrangement.start, arrangement.feeds)
            if name != "across":
                session.run(arrangement.initialise)
        for name in ("alone", "beside", "across", "cluster"):
            for _ in range(_FIRST_STEPS):
                self._step_of(name)()
                self._mark_alive()
        self._stop_reading()
        self._files |= open_files(self._opened)
        self._watch.lap("arrangements")
        files = ", ".join(sorted(str(file) for file in self._files))
        log(f"{self._watch}; examples are read from {files or 'no file'}")
        self._link.report_stepping(None, 0, self._pace.speed)
        return True

    @property
    def _own_addresses(self) -> list[str]:
        assert self._own_server
        return self._own_server.addresses

    def _arrange(self, cluster: Any) -> None:
        """Make the graphs of the arrangements, on the first mini-batch of the session `cluster`."""
        finished = self._finished
        device = placement.worker_device(self._number)
        features = dict(finished.examples.features)
        batch = cluster.run(features, self._examples.feeds(finished.examples.batch))
        make = partial(in_memory, finished.graph, finished.built, features, batch, device)
        beside = make()
        self._arrangements = {"alone": make(apart=True), "beside": beside, "across": beside}
        for name, arrangement in self._arrangements.items():
            self._delayed[name] = DelayedPush(arrangement.built, self.stop)
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
                self._own_addresses, self._number, self._address, threads
            )
        return tf.Session(self._server.target, graph=arrangement.graph, config=config)

    def _lose_sessions(self, error: Exception) -> None:
        """Close all sessions after an error that means that a parameter server is gone."""
        self._log_lost_session(error)
        self._examples.stop()
        for session in self._sessions.values():
            placement.close(session, 0.2)
        self._sessions = {}
        self._raise_own_error(error)
        self.stop.wait(_POLL_SECONDS)

    # --- measures ---------------------------------------------------------------------------------
    def _take(self, request: Take) -> Took:
        """Take the measure, and return its result."""
        measure = request.measure
        with self._reading(measure):
            seconds = self._time_steps(self._step_for(measure), request.seconds)
        if measure in _FROM_RECORDS:
            self._files |= open_files(self._opened)
            self._stop_reading()
        log(f"{measure}: {len(seconds)} steps in {sum(seconds):.2f} s")
        return Took(
            turn=request.turn,
            seconds=_condense(seconds),
            examples=self._finished.examples.batch,
            bytes=size(self._files),
        )

    @contextlib.contextmanager
    def _reading(self, measure: Measure) -> Iterator[None]:
        """Read records inside the block, warm or cold, if the measure is about them."""
        if measure not in _FROM_RECORDS:
            yield
            return
        if measure not in COLD:
            read_into_cache(self._files)
        with KeptCold(self._files) if measure in COLD else contextlib.nullcontext():
            self._examples.resume(self._sessions["cluster"])
            yield

    def _stop_reading(self) -> None:
        """Stop reading, and drop what was prepared, so that the next measure starts without it."""
        self._examples.stop()
        session = self._sessions["cluster"]
        source = self._finished.examples
        least = 1 if source.requested is None else source.batch
        while not self.stop.is_set():
            self._mark_alive()
            stopped = self._examples.stopped
            if session.run(source.left) >= least:
                self._read_batch()
            elif stopped:
                return
            else:
                self.stop.wait(_DRAIN_SECONDS)

    def _read_batch(self) -> None:
        """Read a mini-batch and drop it."""
        source = self._finished.examples
        session = self._sessions["cluster"]
        operations = [feature.op for feature in source.features.values()]
        session.run(operations, self._examples.feeds(source.batch))

    def _step_for(self, measure: Measure) -> _Step:
        """Return the function whose calls the measure times."""
        if measure in _READING:
            return self._read_batch
        names = {"S0": "alone", "S1": "beside", "S2": "across", "S3": "across"}
        return self._step_of(names.get(measure, "cluster"))

    def _step_of(self, name: str) -> _Step:
        """Return a function that takes a step of the arrangement, at this VM's pace."""
        session = self._sessions[name]
        if name == "cluster":
            built = self._finished.built
        else:
            built = self._arrangements[name].built
        fetched = fetches(built)
        feeds: dict[Any, Any] = {built.divisor: _STILL, built.share: 1.0}
        if name == "cluster":
            feeds |= self._examples.feeds(self._finished.examples.batch)

        def step() -> None:
            began = time.monotonic()
            pace = self._pace.of(1.0)
            if not pace:
                session.run(fetched, feeds)
                return
            self._delayed[name].take(session, feeds, pace)
            self.stop.wait(max(0.0, pace - (time.monotonic() - began)))

        return step

    def _time_steps(self, step: _Step, seconds: float) -> list[float]:
        """Take steps for `seconds` after a warm-up, and return how long each took."""
        until = time.monotonic() + _WARM_UP_SHARE * seconds
        warm = 0
        while not self.stop.is_set() and (time.monotonic() < until or warm < _WARM_UP_STEPS):
            step()
            self._mark_alive()
            warm += 1
        durations = list[float]()
        began = time.monotonic()
        until = began + seconds
        while not self.stop.is_set() and (began < until or len(durations) < _LEAST_STEPS):
            step()
            self._mark_alive()
            ended = time.monotonic()
            durations.append(ended - began)
            began = ended
        return durations


def _condense(seconds: list[float]) -> tuple[float, ...]:
    """Return at most MOST_STEPS values: means of successive steps where there are more."""
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
    """Return the step of `graph` on the values `batch` of its `features`.

    Parameters
    ----------
    graph, built
        The graph that the worker would train with, and its step.
    features, batch
        The step's input tensors by name, and their values.
    device
        Device of the worker.
    apart
        Whether everything is on one device of one process, without a cluster.
    """
    tf = tensorflow()
    names = {name: getattr(built, name).name for name in _STEP}
    variables = graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    initial = [variable.initializer.name for variable in variables]
    definition = needed(graph, [*names.values(), *initial])
    if apart:
        for node in nodes(definition):
            node.device = _JOB.sub("", node.device)
    with tf.Graph().as_default() as arranged:
        with tf.device(f"{'' if apart else device}/cpu:0"):
            placeholders = {
                name: tf.placeholder(tensor.dtype, tensor.shape)
                for name, tensor in features.items()
            }
            iterator = iterator_of(tf.data.Dataset.from_tensors(placeholders).repeat())
            in_memory_batch = iterator.get_next()
        inputs = {features[name].name: in_memory_batch[name] for name in features}
        outputs = [*names.values(), *initial]
        imported = tf.import_graph_def(definition, inputs, outputs, name="measured")
        with tf.control_dependencies(None):
            initialise = tf.group(*imported[len(names) :])
    arranged.finalize()
    step = replace(built, **dict(zip(names, imported, strict=False)))
    feeds = {placeholders[name]: batch[name] for name in placeholders}
    return Arrangement(arranged, step, iterator.initializer, feeds, initialise)


# Files that a worker reads its examples from are dropped from the page cache, or read into it.
#
# `posix_fadvise` drops the pages of a file that are written out, and needs no permission. The files
# are the run's records, and all regular files that the process has open while it reads examples.


def files_below(folder: Path) -> set[Path]:
    """Return the files below a folder, which may be missing, without the list of records."""
    return {path for path in folder.rglob("*") if path.is_file() and path.name != MARKER}


def open_files(apart_from: Iterable[Path] = ()) -> set[Path]:
    """Return the regular files that are open only for reading here, without code and logs."""
    found = set[Path]()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed since the listing
            path = Path(os.readlink(f"/proc/self/fd/{number}"))
            regular = stat.S_ISREG(os.stat(f"/proc/self/fd/{number}").st_mode)
            if regular and path.suffix not in _CODE and path.exists() and _is_read(int(number)):
                found.add(path)
    return found - set(apart_from)


def _is_read(number: int) -> bool:
    return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def size(files: Iterable[Path]) -> int:
    """Return the size of these files, in bytes."""
    return sum(path.stat().st_size for path in files if path.exists())


def drop_from_cache(files: Iterable[Path]) -> None:
    """Drop the files from the page cache, so that they are read from the disk again."""
    for path in files:
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY)
            try:
                # Some file systems cannot sync, and have no pages that are written out later.
                with contextlib.suppress(OSError):
                    os.fdatasync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def read_into_cache(files: Iterable[Path]) -> None:
    """Read the files once, so that the page cache has them as far as it has room."""
    for path in files:
        with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
            while file.read(_BLOCK):
                pass


class KeptCold:
    """Keeps these files out of the page cache inside a `with` block."""

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
        while not self._over.wait(_DROP_SECONDS):
            drop_from_cache(self._files)


def serve_variables(threads: int, addresses: Sequence[str]) -> NoReturn:
    """Serve variables at `addresses` until the standard input is closed."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
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


def _exit_with_parent() -> NoReturn:
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
