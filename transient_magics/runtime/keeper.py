"""The chief's hands: its own session inside ps/0, with which it initialises, restores and saves the variables.

It asks first what is uninitialised and touches nothing that lives, so its restart can never overwrite variables that
workers are training. If only some are uninitialised (one of several parameter servers died), all are restored,
because old and new values must not mix. Every method blocks; the chief calls them one at a time on a thread of their
own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import TrainingError
from ..protocol.run import RunSpec
from . import placement
from .checkpoints import Checkpoints, Saved
from .folder import RunFolder
from .graph.training import training_graph
from .graph_mode import tensorflow
from .protocol import Assignment
from .trainable import define

_PATIENCE = 600.0
"""Seconds that another parameter server may take to come back (its VM may have to start)."""
_PATIENCE_SAVING = 20.0
"""A full disk looks like a lost server at times; a save is tried again later anyway."""
_AT_ONCE = 256 << 20
"""Bytes restored with one call: a message must stay below 2 GB."""


class Keeper:
    """Keeps the variables of one run. Made in the process of ps/0, after its TensorFlow server."""

    def __init__(self, folder: RunFolder, spec: RunSpec, assignment: Assignment) -> None:
        self._folder, self._spec, self._assignment = folder, spec, assignment
        self._checkpoints = Checkpoints(folder.checkpoints, spec.keep)
        self._trainable: Any = None
        self._target = ""
        self._session: Any = None
        self.accumulators: Any = None
        """Of a synchronous run, once its graph is built."""
        self.mend: Callable[[], object] | None = None
        """Brings checkpoints from where copies of them are; called where one here is broken."""
        self.still = threading.Lock()
        """Who holds it finds the variables between two synchronous steps; asynchronous ones take no notice."""

    def serve(self) -> None:
        """Start TensorFlow's server of this parameter server."""
        self._target = start_server(self._assignment, self._spec.threads)

    def define(self) -> None:
        """Run the cell and find what it is to train."""
        self._trainable = define(self._folder, self._spec, self._folder.data_directory(self._spec))

    @property
    def batch(self) -> int:
        """The declared mini-batch."""
        return self._trainable.batch

    def has_records(self) -> bool:
        """Whether the training data are where they should be."""
        return self._trainable.has_records()

    def generate(self, directory: Path, temporary: Path) -> None:
        """Make the files of the data that all workers share."""
        self._trainable.generate(str(directory), str(temporary))

    def build(self) -> None:
        """Build the graph: the variables exactly as every worker builds them, and what reads and writes them."""
        tf = tensorflow()

        self._graph = tf.Graph()
        servers = len(self._assignment.ps)
        with self._graph.as_default():
            self._trainable.prepare()
            ready = placement.ready_flag(self._spec.name)
            with placement.placed("/job:ps/task:0", servers, self._spec.ps_shards):
                features, sync = self._trainable.placeholders(), self._spec.mode == "sync"
                built = training_graph(self._trainable, features, self._spec.wire, sync, self._spec.damped)
                if built.accumulators:  # the optimizer's own variables are the chief's then
                    built.accumulators.build_update(built.objective)
                    self.accumulators = built.accumulators
                self.divisor = built.divisor
                self._step = tf.identity(built.global_step.read_value())
                self._uninitialised = tf.report_uninitialized_variables([ready, *tf.global_variables()])
                self._initialise = tf.global_variables_initializer()
                self._saver = tf.train.Saver(tf.global_variables(), max_to_keep=0).saver_def
                self._assign = [_assignment(tf, variable) for variable in tf.global_variables()]
                self._trained = {placement.place_in_checkpoint(each)[0] for each in tf.trainable_variables()}
            (writing,) = [each for each in self._graph.get_operations() if each.type == "SaveV2"]
            self._written = list(writing.inputs[3:])  # after the file, the names and the slices
            self._ready = ready.initializer
            self._not_ready = tf.raw_ops.DestroyResourceOp(resource=ready.handle, ignore_lookup_error=True)
            self._graph.finalize()

    def prepare(self) -> int:
        """Initialise or restore whatever is uninitialised, and return the global step."""
        return self._again(self._prepare)

    def step(self) -> int:
        """The global step. With several parameter servers it also notices that one came back empty."""
        return self._again(self._prepare if len(self._assignment.ps) > 1 else self._read_step)

    def save(self) -> Saved:
        """Write a checkpoint of the variables as they are now."""
        return self._again(self._save, _PATIENCE_SAVING)

    def take(self, step: int, seconds: float, paths: Sequence[Path]) -> Saved:
        """Have the files that a worker wrote as the checkpoint of `step`."""
        return self._checkpoints.take(step, seconds, paths)

    def another_session(self) -> Any:
        """A session on the same variables for somebody else's thread."""
        tf = tensorflow()

        config = placement.plain_config(self._spec.threads)
        config.device_filters.append("/job:ps")
        placement.optimise_briefly(config)
        return tf.Session(self._target, graph=self._graph, config=config)

    def close(self) -> None:
        """Give the session up."""
        if self._session is not None:
            placement.close(self._session)
            self._session = None

    def _again(self, work: Any, patience: float = _PATIENCE) -> Any:
        """Do `work`.

        When a parameter server was lost meanwhile, open a new session, restore what is missing, try again.
        """
        lost = placement.transient_errors()
        pause, since = 0.2, time.monotonic()
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
        if len(self._session.run(self._uninitialised)):
            with self.still:
                self._session.run(self._not_ready)
                newest = self._checkpoints.newest(self.mend)
                self._session.run(self._initialise)
                if newest is not None:
                    self._restore(newest[1])
                if self.accumulators is not None:
                    self.accumulators.open(self._session)
                step = self._read_step()
                self._session.run(self._ready)
            return step
        return self._read_step()

    def _restore(self, values: dict[str, Any]) -> None:
        """Load every value that a variable has in the checkpoint, some at a time.

        What it lacks of the optimizer's own stays initialised. Raises TrainingError for one of another model.
        """
        if missing := self._trained - values.keys():
            raise _another_model(f"the checkpoint has no {min(missing)}")
        operations: list[Any] = []
        feeds: dict[Any, Any] = {}
        size = 0
        for operation, placeholder, name, part in self._assign:
            if name not in values:
                continue
            value = values[name] if part is None else values[name][part]
            if not placeholder.shape.is_compatible_with(value.shape):
                had, has = tuple(value.shape), tuple(placeholder.shape.as_list())
                raise _another_model(f"{name} has the shape {had} in the checkpoint and {has} in the model")
            operations.append(operation)
            feeds[placeholder] = value
            size += value.nbytes
            if size > _AT_ONCE:
                self._session.run(operations, feeds)
                operations, feeds, size = [], {}, 0
        if operations:
            self._session.run(operations, feeds)

    def _read_step(self) -> int:
        return int(self._session.run(self._step))

    def _save(self) -> Saved:
        """Write the variables as they are; of synchronous training as they were at once, that no round need wait."""
        values: list[Any] = []
        with self.still:
            step = self._read_step()
            if self.accumulators is not None:
                values = self._session.run(self._written)
        feeds = dict(zip(self._written, values, strict=False))

        def write(prefix: str) -> None:
            self._session.run(self._saver.save_tensor_name, {self._saver.filename_tensor_name: prefix, **feeds})

        return self._checkpoints.write(step, write)


def start_server(assignment: Assignment, threads: int) -> str:
    """Start the TensorFlow server of a parameter server and return its target. It knows of no worker at all."""
    tf = tensorflow()

    server = tf.train.Server(
        {"ps": list(assignment.ps)}, job_name="ps", task_index=assignment.index, config=placement.plain_config(threads)
    )
    _servers.append(server)
    return server.target


_servers: list[Any] = []
"""Servers live as long as the process: one that is collected would stop serving."""


def _another_model(what: str) -> TrainingError:
    return TrainingError(what, where="--resume", fix="A run goes on with the model that it was trained with.")


def _assignment(tf: Any, variable: Any) -> tuple[Any, Any, str, Any]:
    """An operation that loads a value into `variable`, its placeholder, the name in a checkpoint, and which slice of
    it.
    """
    placeholder = tf.placeholder(variable.dtype.base_dtype, variable.shape)
    return variable.assign(placeholder, read_value=False), placeholder, *placement.place_in_checkpoint(variable)
