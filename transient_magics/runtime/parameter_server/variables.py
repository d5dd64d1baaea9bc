"""Initialise, restore and save the variables of a run on ps-0; end steps and dead sessions.

`Keeper` first checks which variables are uninitialised. If all have values, it writes none, so a
restarted chief cannot overwrite variables that workers train. If some are uninitialised, because
one of several parameter servers died, it restores all: old and new values must not mix. Every
method blocks, and the chief calls them one at a time on another thread. `Rounds` ends the steps of
synchronous training, and `release` closes the sessions of dead workers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import DeclarationError, TrainingError
from ...files import write_atomically
from ...protocol.agent_commands import Assignment
from ...protocol.run import RunSpec
from ..files.checkpoints import Checkpoints, Saved
from ..folder import RunFolder
from ..role import log
from ..tf import placement
from ..tf.graph_mode import tensorflow
from ..training.graph import variables
from ..training.loading import import_tensorflow, load_model
from ..training.reproducibility import fingerprint_weights
from ..training.step_rules import SMALLEST_RATE, PollSchedule, divisor, gradients_needed
from ..training.usercode import sentence

_RETRY_SECONDS = 600.0
"""Seconds to wait for another parameter server to come back. Its VM may have to boot first."""
_RETRY_SAVING_SECONDS = 20.0
"""Limit of this wait while saving: a full disk may look like a lost server, and saves are repeated
later.
"""
_CHUNK = 256 << 20
"""Bytes restored with one call: a message must have less than 2 GB."""

_SERVICE = "/tensorflow.WorkerService"
_RELEASE_SECONDS = 5.0
_OPTIONS = (("grpc.enable_http_proxy", 0),)

_servers: list[Any] = []
"""Servers of this process; a server that is garbage-collected would stop serving."""

_SLOW_UPDATE = 120_000
"""Milliseconds after which an update counts as lost. The wait for gradients is not included."""


class NotFiniteError(TrainingError):
    """A variable has values that are infinite or not a number, so further training is useless."""


class Keeper:
    """The variables of one run, in the process of ps-0."""

    def __init__(self, folder: RunFolder, spec: RunSpec, assignment: Assignment) -> None:
        self._folder = folder
        self._spec = spec
        self._assignment = assignment
        self._checkpoints = Checkpoints(folder.checkpoints, spec.keep)
        self._trainable: Any = None
        self._variables: Any = None
        self._target = ""
        self._session: Any = None
        self._infinite: frozenset[str] = frozenset()
        """Variables that begin with infinite numbers, such as a layer's running maximum."""
        self.mend: Callable[[], object] | None = None
        """Copies checkpoints from the bucket; called if one on this VM is damaged."""
        self.still = threading.Lock()
        """Lock: synchronous steps change the variables only while they hold it."""

    def serve(self) -> None:
        """Import TensorFlow and start this parameter server's TensorFlow server."""
        import_tensorflow(self._spec)
        self._target = start_server(self._assignment, self._spec.threads)

    def define(self) -> None:
        """Run the cell, and load the model that it defines."""
        self._trainable = load_model(
            self._folder, self._spec, self._folder.data_directory(self._spec)
        )
        self._trainable.keep_vocabularies(self._folder.checkpoints)
        fit = getattr(self._trainable, "fit", None)
        if fit and fit.callbacks and not self._spec.callbacks:
            raise DeclarationError(
                "the callbacks of model.fit are called only if the run was checked",
                fix="Leave --no-check out.",
            )

    @property
    def batch(self) -> int:
        """The declared size of a mini-batch."""
        return self._variables.batch

    @property
    def training_numbers(self) -> int:
        """How many numbers a step adds to the training metrics; 0 if the model has none."""
        model = getattr(self._trainable, "keras_model", None)
        if model is None:
            return 0
        return model.metrics.size

    @property
    def parameters(self) -> int:
        """Number of parameters of the model, once its graph is built."""
        return sum(
            loading.placeholder.shape.num_elements() or 0
            for loading in self._variables.loadings
            if loading.name in self._variables.trained
        )

    @property
    def accumulators(self) -> Any:
        """Accumulators of a synchronous run's gradients, once the graph is built; else None."""
        return self._variables.accumulators

    @property
    def divisor(self) -> Any:
        """Placeholder for the divisor of the learning rate of a synchronous step."""
        return self._variables.divisor

    def has_records(self) -> bool:
        """Return whether the training data are where they should be."""
        return self._trainable.has_records()

    def record_files(self) -> Sequence[Path]:
        """Return the training files if their records may be read in any order; else nothing."""
        return self._trainable.record_files()

    def generate(self, directory: Path, temporary: Path) -> None:
        """Generate the data files that all workers share."""
        self._trainable.generate(str(directory), str(temporary))

    def training_results(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the training metrics of an epoch, computed from the sums over its steps."""
        return self._trainable.training_results(sums)

    def build(self) -> None:
        """Read the graph from the file of an earlier process, or build it."""
        servers = len(self._assignment.ps)
        path = self._folder.variables
        if path.exists():
            try:
                self._variables = variables.read(path, servers)
            except Exception as error:  # noqa: BLE001 - TensorFlow raises anything for other files
                why = sentence(error)
                log(f"the graph of the variables cannot be used and is built again: {why}")
                path.unlink(missing_ok=True)
            else:
                return
        self._variables = variables.build(self._trainable, self._spec, servers)

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint of the run's program; empty if the graph was read from a file."""
        weights = fingerprint_weights(self._variables.graph)
        if weights:
            return {**self._trainable.fingerprint(), **weights}
        return {}

    def keep_graph(self) -> None:
        """Write the graph to a file if there is none, for a restarted chief."""
        path = self._folder.variables
        if path.exists() or self.accumulators is not None:
            return
        try:
            write_atomically(path, variables.content(self._variables, len(self._assignment.ps)))
        except (OSError, ValueError, TrainingError) as error:  # ValueError: more than 2 GB
            log(f"the graph of the variables is not kept: {sentence(error)}")

    def prepare(self) -> int:
        """Initialise or restore the variables if any has no value; return the global step."""
        return self._retry(self._prepare)

    def step(self) -> int:
        """Return the global step.

        With several parameter servers it also restores the variables if one of the servers
        restarted without them.
        """
        if len(self._assignment.ps) > 1:
            return self._retry(self._prepare)
        return self._retry(self._read_step)

    def save(self) -> Saved:
        """Write a checkpoint of the current variables.

        Raises NotFiniteError, and keeps no checkpoint, if a variable is not finite.
        """
        return self._retry(self._save, _RETRY_SAVING_SECONDS)

    def check_finite(self) -> None:
        """Raise NotFiniteError if a variable is not finite any more."""
        self._retry(self._check_finite)

    def take(self, step: int, seconds: float, paths: Sequence[Path]) -> Saved:
        """Adopt files from a worker as the checkpoint of `step`. Raises NotFiniteError."""
        self.check_finite()
        return self._checkpoints.take(step, seconds, paths)

    def another_session(self) -> Any:
        """Return a session on the same variables, for another thread."""
        tf = tensorflow()
        config = placement.plain_config(self._spec.threads)
        config.device_filters.append("/job:ps")
        placement.optimise_briefly(config)
        return tf.Session(self._target, graph=self._variables.graph, config=config)

    def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            placement.close(self._session)
            self._session = None

    def _retry(self, work: Any, seconds: float = _RETRY_SECONDS) -> Any:
        """Call `work`, and return its result.

        If a parameter server is lost, open a new session, restore what is missing and try again for
        `seconds`.
        """
        lost = placement.transient_errors()
        pause = 0.2
        since = time.monotonic()
        while True:
            try:
                if self._session is None:
                    self._session = self.another_session()
                    if work != self._prepare:
                        self._prepare()
                return work()
            except lost:
                self.close()
                if time.monotonic() - since > seconds:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 5.0)

    def _prepare(self) -> int:
        if len(self._session.run(self._variables.uninitialised)):
            with self.still:
                self._session.run(self._variables.not_ready)
                newest = self._checkpoints.newest(self.mend)
                self._session.run(self._variables.initialise)
                if newest is not None:
                    self._restore(*newest)
                if self.accumulators is not None:
                    self.accumulators.open(self._session)
                step = self._read_step()
                self._infinite = frozenset(self._not_finite()) - self._variables.trained
                self._session.run(self._variables.ready)
            return step
        return self._read_step()

    def _restore(self, step: int, values: dict[str, Any]) -> None:
        """Load the values of the checkpoint of `step` into the variables, some at a time.

        Variables of the optimizer that the checkpoint lacks keep their initial values. Raises
        TrainingError for a checkpoint of another model.
        """
        if missing := self._variables.trained - values.keys():
            raise _another_model(f"the checkpoint has no variable {min(missing)}")
        # A later call of `fit` begins with the weights that the cell has given to the model.
        values = self._trainable.continued(step, values)
        operations: list[Any] = []
        feeds: dict[Any, Any] = {}
        size = 0
        for loading in self._variables.loadings:
            placeholder = loading.placeholder
            name = loading.name
            if name not in values:
                continue
            value = values[name]
            if loading.part is not None:
                value = value[loading.part]
            if not placeholder.shape.is_compatible_with(value.shape):
                saved = tuple(value.shape)
                built = tuple(placeholder.shape.as_list())
                raise _another_model(
                    f"{name} has the shape {saved} in the checkpoint, but {built} in the model"
                )
            operations.append(loading.operation)
            feeds[placeholder] = value
            size += value.nbytes
            if size > _CHUNK:
                self._session.run(operations, feeds)
                operations = []
                feeds = {}
                size = 0
        if operations:
            self._session.run(operations, feeds)

    def _read_step(self) -> int:
        return int(self._session.run(self._variables.step))

    def _not_finite(self) -> list[str]:
        """Return the names of the variables with numbers that are not finite."""
        values = self._session.run(self._variables.finite)
        pairs = zip(self._variables.loadings, values, strict=True)
        return list(dict.fromkeys(loading.name for loading, finite in pairs if not finite))

    def _check_finite(self, writing: int | None = None) -> None:
        """Raise NotFiniteError if a variable is not finite any more.

        `writing` is the step of the checkpoint that is being written, if any.
        """
        names = [name for name in self._not_finite() if name not in self._infinite]
        if not names:
            return
        more = ""
        if len(names) == 2:
            more = " (and 1 other variable)"
        elif len(names) > 2:
            more = f" (and {len(names) - 1} other variables)"
        if names[0] in self._variables.trained:
            fix = "Lower learning_rate"
        else:
            fix = "Check the layer that assigns it"
        if steps := [step for step in self._checkpoints.steps() if step != writing]:
            fix += f"; the checkpoint of step {steps[0]:,} is still finite"
        what = f"{names[0]} is no longer finite at step {self._read_step():,}{more}"
        raise NotFiniteError(what, fix=f"{fix}.")

    def _save(self) -> Saved:
        """Write the variables.

        Those of synchronous training are read between two rounds, and the next round begins while
        they are written.
        """
        values: list[Any] = []
        graph = self._variables
        with self.still:
            step = self._read_step()
            if self.accumulators is not None:
                values = self._session.run(graph.written)
        feeds = dict(zip(graph.written, values, strict=False))

        def write(prefix: str) -> None:
            self._session.run(graph.save, {graph.file_name: prefix, **feeds})
            # After writing, because asynchronous workers change the variables in the meantime.
            self._check_finite(step)

        return self._checkpoints.write(step, write)


def start_server(assignment: Assignment, threads: int) -> str:
    """Start the TensorFlow server of a parameter server, and return its target.

    Its TensorFlow cluster has only parameter servers. Each worker joins when it opens a session.
    """
    tf = tensorflow()
    server = tf.train.Server(
        {"ps": list(assignment.ps)},
        job_name="ps",
        task_index=assignment.index,
        config=placement.plain_config(threads),
    )
    _servers.append(server)
    return server.target


def _another_model(what: str) -> TrainingError:
    return TrainingError(
        what, where="--resume", fix="Use the model with which the checkpoint was trained."
    )


def release(server: str, number: int) -> None:
    """Drop every session of worker `number` from the parameter server at `server`.

    A killed worker cannot close its session, and every parameter server keeps it for good, with its
    part of the worker's graph: 2 MiB for a small ResNet. TensorFlow drops the sessions of a task
    when the same task opens one under another incarnation, as restarted workers do. Here workers
    come back under new numbers, so the chief does it in their name: it opens and closes a session
    of that task, with the two calls of TensorFlow's protocol for this. Variables belong to no
    session and stay. A worker that still lives opens another session.

    Raises
    ------
    ConnectionError
        The server did not answer in time.
    """
    import grpc

    handle = f"dead-worker-{number}"
    # CreateWorkerSessionRequest: 1 session_handle, 5 master_task, 6 master_incarnation (any that is
    # not the worker's).
    task = f"/job:worker/replica:0/task:{number}"
    request = _text(1, handle) + _text(5, task) + bytes([6 << 3, 1])
    with grpc.insecure_channel(server, _OPTIONS) as channel:
        try:
            channel.unary_unary(f"{_SERVICE}/CreateWorkerSession")(
                request, timeout=_RELEASE_SECONDS
            )
            channel.unary_unary(f"{_SERVICE}/DeleteWorkerSession")(
                _text(1, handle), timeout=_RELEASE_SECONDS
            )
        except grpc.RpcError as error:
            why = error.details() if isinstance(error, grpc.Call) else str(error)
            raise ConnectionError(
                f"{server} could not close the session of worker number {number}: {why}"
            ) from error


def _text(field: int, value: str) -> bytes:
    """Return a field of a protocol buffer with less than 128 bytes of text."""
    data = value.encode()
    assert len(data) < 128, value
    return bytes([field << 3 | 2, len(data)]) + data


class Rounds(threading.Thread):
    """Thread of synchronous training: it ends one round after the other until its process ends.

    A round is one step. Every worker computes a gradient of the same variables and pushes it
    (worker/steps.py), and this thread applies their mean once enough are there. Two numbers on ps-0
    coordinate them: this thread reads the count of complete pushes, and workers read the number of
    the round. Neither side waits for a particular worker, so neither needs to know that one died.
    """

    def __init__(
        self, keeper: Keeper, spec: RunSpec, failed: Callable[[BaseException], object]
    ) -> None:
        super().__init__(daemon=True, name="rounds")
        self._keeper = keeper
        self._spec = spec
        self._failed = failed
        self.live = 0
        """Number of workers that train; the chief sets this and the next two after each event."""
        self.limit = 0
        """Global step after which no round ends."""
        self.rate = 1.0
        """Factor of the learning rate."""

    def run(self) -> None:
        """End rounds, through as many sessions as that takes."""
        lost = placement.transient_errors()
        session: Any = None
        while True:
            try:
                session = self._keeper.another_session()
                self._end_rounds(session)
            except lost as error:
                # Another parameter server is gone; the keeper restores the variables.
                summary = str(error).splitlines()[0][:160]
                log(f"the round is lost: {type(error).__name__}: {summary}")
            except Exception as error:  # noqa: BLE001 - the optimizer may raise anything
                self._failed(error)
                return
            finally:
                if session is not None:
                    placement.close(session)
            time.sleep(0.5)

    def _end_rounds(self, session: Any) -> None:
        keeper = self._keeper
        spec = self._spec
        accumulators = self._keeper.accumulators
        options = tensorflow().RunOptions(timeout_in_ms=_SLOW_UPDATE)
        rate_divisor = divisor(spec.lr_policy, synchronous=True, active=0, slots=spec.max_workers)
        read = session.make_callable([*accumulators.position, accumulators.complete])
        with keeper.still:
            accumulators.open(session)
        step = 0
        began = time.monotonic()
        polls = PollSchedule()
        # The loop continues after the last step. If another parameter server is lost then, the
        # variables are restored from a checkpoint, and the last steps are repeated.
        while True:
            with keeper.still:
                number, step, complete = read()
                enough = gradients_needed(self.live, spec.backup_workers)
                if complete >= enough and step < self.limit:
                    feeds = {
                        accumulators.round: number,
                        accumulators.needed: enough,
                        keeper.divisor: rate_divisor / max(self.rate, SMALLEST_RATE),
                    }
                    step = session.run(accumulators.update, feeds, options=options)
                    polls.happened(time.monotonic() - began)
                    began = time.monotonic()
            time.sleep(polls.pause(time.monotonic() - began))
