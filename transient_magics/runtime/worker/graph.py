"""How a worker comes by its graph: from the file that the chief had written, or built from the
run's definition.

With a file that has the examples too neither the user's code nor Tensor2Tensor is imported, and of
TensorFlow only what runs graphs. Whatever is wrong with a file, the graph can be built.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import TrainingError
from ...protocol.run import RunSpec
from ..folder import RunFolder
from ..role import Stopwatch, log
from ..tf import placement
from ..tf.graph_mode import has_gpu, run_only, tensorflow
from ..training import reproducibility
from ..training.batching import SMALLEST
from ..training.examples import Source, prepared, shared, source
from ..training.graph.file import GraphFile
from ..training.graph.worker import WorkerGraph, build
from ..training.loading import import_tensorflow, load_model
from ..training.reproducibility import seed_process
from ..training.trainable import Trainable
from ..training.usercode import sentence

_FIRST = 0
"""The number of a run's first worker."""
_SHARING_WITHIN = 120.0
_LOOK_AGAIN = 0.1
"""Seconds for a process to import TensorFlow on a busy VM, and between two looks for it."""


@dataclass(frozen=True)
class Made:
    """A finished graph, what a worker runs of it, and where its examples come from."""

    graph: Any
    built: WorkerGraph
    examples: Source


class GraphMaker:
    """Makes the graph of one worker, whose run has that many parameter servers; `watch` sees what
    takes how long.
    """

    def __init__(
        self, folder: RunFolder, spec: RunSpec, servers: int, watch: Stopwatch, dispatcher: str = ""
    ) -> None:
        """`dispatcher`: where its mini-batches are had from, if other VMs prepare them."""
        self._folder = folder
        self._spec = spec
        self._servers = servers
        self._watch = watch
        self._dispatcher = dispatcher
        self.fingerprint = ""
        """Of the run's program, as JSON, where this process executes it."""
        self._trainable: Trainable | None = None
        self._file: GraphFile | None = None
        self._ahead: Made | None = None
        self.note = ""
        """What the user should know of the examples, once the graph is made."""

    def make_ready(self) -> None:
        """Make ready what the first worker of a run needs. Raises what building its graph raises.

        On a machine with a GPU nothing but imports: a cell that is run there has Keras compute on
        it.
        """
        if has_gpu():
            import_tensorflow(self._spec)
            return
        self._define()
        if not (
            self._spec.model or self._dispatcher or self._spec.share_input
        ):  # its examples need nobody else
            self._ahead = self._anew(_FIRST)
            self._watch.lap("graph")

    def define(self) -> None:
        """Import what `make` will need. Raises CellError or DeclarationError."""
        if self._trainable:
            return
        self._file = self._found()
        if self.examples_from_file:
            try:
                run_only()
            except (ImportError, AttributeError, TrainingError) as error:
                log(f"TensorFlow cannot be imported in part: {sentence(error)}")
            else:
                self._watch.lap("tensorflow")
                return
        self._define()

    def make(self, number: int) -> Made:
        """The graph of the worker with this number. Raises what building it raises."""
        ahead = self._ahead
        self._ahead = None
        if ahead and number == _FIRST:
            return ahead
        if self._file:
            try:
                made = self._read(self._file, number)
            except Exception as error:  # noqa: BLE001 - TensorFlow raises anything for a file that does not fit
                self.give_up_file(sentence(error))
            else:
                self._watch.lap("graph (read)")
                return made
        made = self._anew(number)
        self._watch.lap("graph")
        return made

    @property
    def examples_from_file(self) -> bool:
        """Whether the examples come from the file, and not from what the run defines."""
        return self._file is not None and self._file.has_examples

    def give_up_file(self, why: str) -> None:
        """Make the next graph without the file."""
        log(f"the graph of the run cannot be used, it is built anew: {why}")
        self._file = None

    def _found(self) -> GraphFile | None:
        path = self._folder.graph_file(has_gpu(), self._servers)
        try:
            if path.exists():
                return GraphFile.read(path)
            return None
        except (OSError, ValueError) as error:
            log(f"the graph of the run cannot be used: {sentence(error)}")
            return None

    def _define(self) -> Trainable:
        import_tensorflow(self._spec)
        self._watch.lap("tensorflow")
        directory = self._folder.data_directory(self._spec)
        if not self._spec.reads_records:  # the names of files are read by others
            if not self._spec.data_folder:
                directory = os.path.relpath(directory, self._folder.path)
            else:
                directory = directory
        self._trainable = load_model(self._folder, self._spec, directory)
        self._watch.lap("code")
        return self._trainable

    def _read(self, file: GraphFile, number: int) -> Made:
        if not file.has_examples:
            return self._on_examples(number, file.on)
        with tensorflow().Graph().as_default() as graph:
            directory = self._folder.data_directory(self._spec)
            built, examples = file.with_examples(placement.worker_device(number), directory)
        graph.finalize()
        return Made(graph, built, examples)

    def _anew(self, number: int) -> Made:
        trainable = self._trainable or self._define()
        spec = self._spec
        servers = self._servers
        return self._on_examples(
            number, lambda features, device: build(trainable, features, spec, device, servers)
        )

    def _sharing(self) -> str:
        """Where the process is that prepares mini-batches for the trials here. Raises
        TrainingError: there is none.
        """
        told = self._folder.shared_input(self._spec.study).input_address
        deadline = time.monotonic() + _SHARING_WITHIN
        while not told.exists():
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"no process prepares mini-batches for {self._spec.study} on this VM"
                )
            time.sleep(_LOOK_AGAIN)
        return told.read_text(encoding="utf-8")

    def _on_examples(
        self, number: int, step: Callable[[Mapping[str, Any], str], WorkerGraph]
    ) -> Made:
        """A new graph with this worker's own examples, and `step` on their features, for its
        device.
        """
        trainable = self._trainable or self._define()
        device = placement.worker_device(number)
        tf = tensorflow()
        with tf.Graph().as_default() as graph:
            if self._spec.seed is not None:  # no two workers read in one order
                tf.set_random_seed(self._spec.seed + number)
                seed_process(self._spec.seed, f"worker {number}")
            trainable.prepare()
            with tf.device(f"{device}/cpu:0"):
                pipeline = trainable.training_pipeline()
                uneven = self._spec.batching != "uniform"
                batch = max(trainable.batch, SMALLEST)
                self.note = pipeline.note
                if self._dispatcher:
                    pipeline = prepared(pipeline, self._dispatcher, self._spec.name, batch)
                elif self._spec.share_input:
                    pipeline = shared(
                        pipeline, self._sharing(), self._spec.study, self._spec.name, batch
                    )
                examples = source(pipeline, f"examples_{number}", batch, uneven)
            built = step(examples.features, device)
        graph.finalize()
        self.fingerprint = json.dumps(
            {**trainable.fingerprint(), **reproducibility.fingerprint_weights(graph)}
        )
        return Made(graph, built, examples)
