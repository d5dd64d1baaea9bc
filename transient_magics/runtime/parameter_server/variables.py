"""The chief inside ps/0: it initialises, restores and saves variables, ends rounds, and drops dead
workers' sessions.

It asks first what is uninitialised and touches nothing that lives, so its restart can never
overwrite variables that workers are training. If only some are uninitialised (one of several
parameter servers died), all are restored, because old and new values must not mix. Every method
blocks; the chief calls them one at a time on a thread of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import TrainingError
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
from ..training.step_rules import PollSchedule, divisor, gradients_needed
from ..training.usercode import sentence

_PATIENCE = 600.0
"""Seconds that another parameter server may take to come back (its VM may have to start)."""
_PATIENCE_SAVING = 20.0
"""A full disk looks like a lost server at times; a save is tried again later anyway."""
_AT_ONCE = 256 << 20
"""Bytes restored with one call: a message must stay below 2 GB."""

_SERVICE = "/tensorflow.WorkerService"
_SECONDS = 5.0
_OPTIONS = (("grpc.enable_http_proxy", 0),)

_SLOW_UPDATE = 120_000
"""Milliseconds after which an update counts as lost; the wait for gradients is no part of it."""


class NotFiniteError(TrainingError):
    """A variable holds an infinite number, or none at all: what is learnt from now on is worth
    nothing.
    """


class Keeper:
    """Keeps the variables of one run. Made in the process of ps/0, after its TensorFlow server."""

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
        """Brings checkpoints from where copies of them are; called where one here is broken."""
        self.still = threading.Lock()
        """Who holds it finds the variables between two synchronous steps; asynchronous ones take no
        notice.
        """

    def serve(self) -> None:
        """Import TensorFlow and start its server of this parameter server."""
        import_tensorflow(self._spec)
        self._target = start_server(self._assignment, self._spec.threads)

    def define(self) -> None:
        """Run the cell and find what it is to train."""
        self._trainable = load_model(
            self._folder, self._spec, self._folder.data_directory(self._spec)
        )

    @property
    def batch(self) -> int:
        """The declared mini-batch."""
        return self._variables.batch

    @property
    def parameters(self) -> int:
        """How many the model has, once its graph is built."""
        made = self._variables
        return sum(
            loading.placeholder.shape.num_elements() or 0
            for loading in made.loadings
            if loading.name in made.trained
        )

    @property
    def accumulators(self) -> Any:
        """Of a synchronous run, once its graph is built."""
        return self._variables.accumulators

    @property
    def divisor(self) -> Any:
        """What the learning rate of a synchronous step is divided by."""
        return self._variables.divisor

    def has_records(self) -> bool:
        """Whether the training data are where they should be."""
        return self._trainable.has_records()

    def record_files(self) -> Sequence[Path]:
        """The training files, where their records may come one by one in any order; else none."""
        return self._trainable.record_files()

    def generate(self, directory: Path, temporary: Path) -> None:
        """Make the files of the data that all workers share."""
        self._trainable.generate(str(directory), str(temporary))

    def build(self) -> None:
        """Have the graph: from the file, if there is one that can be used, else by building it."""
        servers = len(self._assignment.ps)
        path = self._folder.variables
        if path.exists():
            try:
                self._variables = variables.read(path, servers)
            except Exception as error:  # noqa: BLE001 - TensorFlow raises anything for a file that does not fit
                log(
                    f"the graph of the variables cannot be used, it is built anew: {sentence(error)}"
                )
                path.unlink(missing_ok=True)
            else:
                return
        self._variables = variables.build(self._trainable, self._spec, servers)

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint of the run's program; empty where the graph was read from a file."""
        weights = fingerprint_weights(self._variables.graph)
        if weights:
            return {**self._trainable.fingerprint(), **weights}
        return {}

    def keep_graph(self) -> None:
        """Write the file, where there is none, for a chief that is started again."""
        path = self._folder.variables
        if path.exists() or self.accumulators is not None:
            return
        try:
            write_atomically(path, variables.content(self._variables, len(self._assignment.ps)))
        except (OSError, ValueError, TrainingError) as error:  # ValueError: of more than 2 GB
            log(f"the graph of the variables is not kept: {sentence(error)}")

    def prepare(self) -> int:
        """Initialise or restore whatever is uninitialised, and return the global step."""
        return self._again(self._prepare)

    def step(self) -> int:
        """The global step. With several parameter servers it also notices that one came back empty."""
        return self._again(self._prepare if len(self._assignment.ps) > 1 else self._read_step)

    def save(self) -> Saved:
        """Write a checkpoint of the variables as they are now. Raises NotFiniteError, and writes
        none.
        """
        return self._again(self._save, _PATIENCE_SAVING)

    def insist_finite(self) -> None:
        """Raise NotFiniteError if a variable is not finite any more."""
        self._again(self._insist_finite)

    def take(self, step: int, seconds: float, paths: Sequence[Path]) -> Saved:
        """Have the files that a worker wrote as the checkpoint of `step`. Raises NotFiniteError."""
        self.insist_finite()
        return self._checkpoints.take(step, seconds, paths)

    def another_session(self) -> Any:
        """A session on the same variables for somebody else's thread."""
        tf = tensorflow()

        config = placement.plain_config(self._spec.threads)
        config.device_filters.append("/job:ps")
        placement.optimise_briefly(config)
        return tf.Session(self._target, graph=self._variables.graph, config=config)

    def close(self) -> None:
        """Give the session up."""
        if self._session is not None:
            placement.close(self._session)
            self._session = None

    def _again(self, work: Any, patience: float = _PATIENCE) -> Any:
        """Do `work`.

        When a parameter server was lost meanwhile, open a new session, restore what is missing, try
        again.
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
                if time.monotonic() - since > patience:
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
                    self._restore(newest[1])
                if self.accumulators is not None:
                    self.accumulators.open(self._session)
                step = self._read_step()
                self._infinite = frozenset(self._not_finite()) - self._variables.trained
                self._session.run(self._variables.ready)
            return step
        return self._read_step()

    def _restore(self, values: dict[str, Any]) -> None:
        """Load every value that a variable has in the checkpoint, some at a time.

        What it lacks of the optimizer's own stays initialised. Raises TrainingError for one of
        another model.
        """
        if missing := self._variables.trained - values.keys():
            raise _another_model(f"the checkpoint has no {min(missing)}")
        operations: list[Any] = []
        feeds: dict[Any, Any] = {}
        size = 0
        for loading in self._variables.loadings:
            placeholder = loading.placeholder
            name = loading.name
            if name not in values:
                continue
            if loading.part is None:
                value = values[name]
            else:
                value = values[name][loading.part]
            if not placeholder.shape.is_compatible_with(value.shape):
                had = tuple(value.shape)
                has = tuple(placeholder.shape.as_list())
                raise _another_model(
                    f"{name} has the shape {had} in the checkpoint and {has} in the model"
                )
            operations.append(loading.operation)
            feeds[placeholder] = value
            size += value.nbytes
            if size > _AT_ONCE:
                self._session.run(operations, feeds)
                operations = []
                feeds = {}
                size = 0
        if operations:
            self._session.run(operations, feeds)

    def _read_step(self) -> int:
        return int(self._session.run(self._variables.step))

    def _not_finite(self) -> list[str]:
        """The variables with numbers that are not finite."""
        found = zip(
            self._variables.loadings, self._session.run(self._variables.finite), strict=True
        )
        return list(dict.fromkeys(loading.name for loading, finite in found if not finite))

    def _insist_finite(self, writing: int | None = None) -> None:
        """Raise NotFiniteError if a variable is not finite any more.

        `writing`: the step of the checkpoint that is being written.
        """
        names = [name for name in self._not_finite() if name not in self._infinite]
        if not names:
            return
        if names[1:]:
            more = f", nor are {len(names) - 1} other variables"
        else:
            more = ""
        if names[0] in self._variables.trained:
            fix = "Lower learning_rate"
        else:
            fix = "Look at the layer that assigns it"
        if steps := [step for step in self._checkpoints.steps() if step != writing]:
            fix += f"; the checkpoint of step {steps[0]:,} is from before"
        what = f"{names[0]} is not finite any more at step {self._read_step():,}{more}"
        raise NotFiniteError(what, fix=f"{fix}.")

    def _save(self) -> Saved:
        """Write the variables as they are; of synchronous training as they were at once, that no
        round need wait.
        """
        values: list[Any] = []
        made = self._variables
        with self.still:
            step = self._read_step()
            if self.accumulators is not None:
                values = self._session.run(made.written)
        feeds = dict(zip(made.written, values, strict=False))

        def write(prefix: str) -> None:
            self._session.run(made.save, {made.file_name: prefix, **feeds})
            self._insist_finite(
                step
            )  # afterwards: asynchronous workers have changed the variables meanwhile

        return self._checkpoints.write(step, write)


def start_server(assignment: Assignment, threads: int) -> str:
    """Start the TensorFlow server of a parameter server and return its target. It knows of no
    worker at all.
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


_servers: list[Any] = []

"""Servers live as long as the process: one that is collected would stop serving."""


def _another_model(what: str) -> TrainingError:
    return TrainingError(
        what, where="--resume", fix="Resume it with the model that it was trained with."
    )


# Sessions of workers that died, dropped from TensorFlow's servers on the parameter servers.
#
# A worker that is killed cannot close its session, and every parameter server keeps it for ever,
# with its part of the worker's graph: 2 MiB for a small ResNet. TensorFlow drops the sessions of a
# task when the same task opens one under another incarnation, which is meant for workers that are
# started again. Ours come back under numbers that were never used before, so it is done in their
# name: a session of that task is opened and closed, by the two calls of TensorFlow's own protocol
# that do this. Variables belong to no session and stay; a worker that lives after all opens another
# session.


def release(server: str, number: int) -> None:
    """Drop every session of the worker with this number from the parameter server at this address.

    Raises ConnectionError if it did not answer in time.
    """
    import grpc

    handle = f"dead-worker-{number}"
    # CreateWorkerSessionRequest: 1 session_handle, 5 master_task, 6 master_incarnation (any that is
    # not the worker's).
    opened = (
        _text(1, handle) + _text(5, f"/job:worker/replica:0/task:{number}") + bytes([6 << 3, 1])
    )
    with grpc.insecure_channel(server, _OPTIONS) as channel:
        try:
            channel.unary_unary(f"{_SERVICE}/CreateWorkerSession")(opened, timeout=_SECONDS)
            channel.unary_unary(f"{_SERVICE}/DeleteWorkerSession")(
                _text(1, handle), timeout=_SECONDS
            )
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call):
                why = error.details()
            else:
                why = str(error)
            raise ConnectionError(
                f"{server} keeps the session of worker number {number}: {why}"
            ) from error


def _text(field: int, value: str) -> bytes:
    """A field of a protocol buffer that holds less than 128 bytes of text."""
    data = value.encode()
    assert len(data) < 128, value
    return bytes([field << 3 | 2, len(data)]) + data


# The chief's thread of synchronous training, which ends one round after the other.
#
# A round is one step: every worker computes a gradient of the same variables and pushes it
# (worker/steps.py), the chief applies their mean once enough are there. Both sides look at two
# numbers on ps/0, the chief at the count of complete pushes, a worker at the number of the round.
# Nobody is waited for by name, so nobody's death has to be told to the others.


class Rounds(threading.Thread):
    """Ends one round after the other, in a session of its own, for as long as its process lives."""

    def __init__(
        self, keeper: Keeper, spec: RunSpec, failed: Callable[[BaseException], object]
    ) -> None:
        super().__init__(daemon=True, name="rounds")
        self._keeper = keeper
        self._spec = spec
        self._failed = failed
        self.live = 0
        """How many workers train; the chief sets it whenever it changes."""

    def run(self) -> None:
        """Go on through as many sessions as it takes."""
        lost = placement.transient_errors()
        session: Any = None
        while True:
            try:
                session = self._keeper.another_session()
                self._end_rounds(session)
            except lost as error:  # another parameter server went away; the keeper restores it
                log(
                    f"the round is lost: {type(error).__name__}: {str(error).splitlines()[0][:160]}"
                )
            except Exception as error:  # noqa: BLE001 - the optimizer may raise anything; it becomes train.failed
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
        by = divisor(spec.lr_policy, synchronous=True, active=0, slots=spec.max_workers)
        look = session.make_callable([*accumulators.position, accumulators.complete])
        with keeper.still:
            accumulators.open(session)
        step = 0
        began = time.monotonic()
        looks = PollSchedule()
        while True:  # up to the last step, and beyond: another parameter server may be lost with it
            with keeper.still:
                number, step, complete = look()
                enough = gradients_needed(self.live, spec.backup_workers)
                if complete >= enough and step < spec.train_steps:
                    feeds = {
                        accumulators.round: number,
                        accumulators.needed: enough,
                        keeper.divisor: by,
                    }
                    step = session.run(accumulators.update, feeds, options=options)
                    looks.happened(time.monotonic() - began)
                    began = time.monotonic()
            time.sleep(looks.pause(time.monotonic() - began))
