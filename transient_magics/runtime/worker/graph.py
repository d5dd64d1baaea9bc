"""How a worker gets its graph: from the file that the chief's program wrote, or built here.

If the file has the examples too, neither the user's code nor Tensor2Tensor is imported, and only
the part of TensorFlow that runs graphs. If anything is wrong with the file, the graph is built from
the run's definition.
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
"""Number of a run's first worker."""
_SHARED_INPUT_SECONDS = 120.0
"""Time limit for the process that prepares shared mini-batches: it imports TensorFlow first."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class FinishedGraph:
    """A finished graph, the parts that a worker runs, and the source of its examples."""

    graph: Any
    built: WorkerGraph
    examples: Source


class GraphMaker:
    """Makes the graph of one worker.

    Parameters
    ----------
    folder, spec
        Folder and declaration of the run.
    servers
        Number of parameter servers.
    watch
        Measures how long each part takes.
    dispatcher
        Address of the mini-batches, if other VMs prepare them; else "".
    """

    def __init__(
        self, folder: RunFolder, spec: RunSpec, servers: int, watch: Stopwatch, dispatcher: str = ""
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._servers = servers
        self._watch = watch
        self._dispatcher = dispatcher
        self.fingerprint = ""
        """Fingerprint of the run's program as JSON, if this process executes it; else ""."""
        self._trainable: Trainable | None = None
        self._file: GraphFile | None = None
        self._ahead: FinishedGraph | None = None
        self.note = ""
        """A notice for the user about the examples; set once the graph is built."""

    def make_ready(self) -> None:
        """Prepare for the first worker of a run.

        On a machine with a GPU it only imports: Keras would use the GPU while the cell runs, and
        another run still trains on it. Raises what building the graph raises.
        """
        if has_gpu():
            import_tensorflow(self._spec)
            return
        self._define()
        if self._spec.model or self._dispatcher or self._spec.share_input:
            return  # their examples come from other processes, which may not be there yet
        self._ahead = self._build(_FIRST)
        self._watch.lap("graph")

    def define(self) -> None:
        """Import what `make` will need. Raises CellError or DeclarationError."""
        if self._trainable:
            return
        self._file = self._read_file()
        if self.examples_from_file:
            try:
                run_only()
            except (ImportError, AttributeError, TrainingError) as error:
                log(f"TensorFlow cannot be imported in part: {sentence(error)}")
            else:
                self._watch.lap("tensorflow")
                return
        self._define()

    def make(self, number: int) -> FinishedGraph:
        """Return the graph of worker number `number`. Raises what building it raises."""
        ahead = self._ahead
        self._ahead = None
        if ahead and number == _FIRST:
            return ahead
        if self._file:
            try:
                finished = self._import(self._file, number)
            except Exception as error:  # noqa: BLE001 - TensorFlow raises anything for other graphs
                self.give_up_file(sentence(error))
            else:
                self._watch.lap("graph (read)")
                return finished
        finished = self._build(number)
        self._watch.lap("graph")
        return finished

    @property
    def examples_from_file(self) -> bool:
        """Whether the graph's file has the examples too, so that the cell is not needed."""
        return self._file is not None and self._file.has_examples

    def give_up_file(self, why: str) -> None:
        """Build the next graph without the file."""
        log(f"the graph of the run cannot be used and is built here: {why}")
        self._file = None

    def _read_file(self) -> GraphFile | None:
        path = self._folder.graph_file(has_gpu(), self._servers)
        if not path.exists():
            return None
        try:
            return GraphFile.read(path)
        except (OSError, ValueError) as error:
            log(f"the graph of the run cannot be used: {sentence(error)}")
            return None

    def _define(self) -> Trainable:
        """Import all of TensorFlow, and load the run's model."""
        import_tensorflow(self._spec)
        self._watch.lap("tensorflow")
        directory = self._folder.data_directory(self._spec)
        if not self._spec.reads_records and not self._spec.data_folder:
            # Other VMs read the files by these names, below their own folder of the run.
            directory = os.path.relpath(directory, self._folder.path)
        self._trainable = load_model(self._folder, self._spec, directory)
        self._watch.lap("code")
        return self._trainable

    def _import(self, file: GraphFile, number: int) -> FinishedGraph:
        """Return the graph of the file, for worker number `number`."""
        if not file.has_examples:
            return self._on_examples(number, file.on)
        with tensorflow().Graph().as_default() as graph:
            directory = self._folder.data_directory(self._spec)
            built, examples = file.with_examples(placement.worker_device(number), directory)
        graph.finalize()
        return FinishedGraph(graph, built, examples)

    def _build(self, number: int) -> FinishedGraph:
        """Return the graph of worker number `number`, built from the run's definition."""
        trainable = self._trainable or self._define()
        spec = self._spec
        servers = self._servers
        return self._on_examples(
            number, lambda features, device: build(trainable, features, spec, device, servers)
        )

    def _on_examples(
        self, number: int, step: Callable[[Mapping[str, Any], str], WorkerGraph]
    ) -> FinishedGraph:
        """Return a new graph: this worker's examples, and `step` on their features and device."""
        trainable = self._trainable or self._define()
        device = placement.worker_device(number)
        tf = tensorflow()
        with tf.Graph().as_default() as graph:
            if self._spec.seed is not None:
                # A seed for each worker: no two read their examples in the same order.
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
                    address = self._shared_input_address()
                    pipeline = shared(pipeline, address, self._spec.study, self._spec.name, batch)
                examples = source(pipeline, f"examples_{number}", batch, uneven)
            built = step(examples.features, device)
        graph.finalize()
        of_weights = reproducibility.fingerprint_weights(graph)
        self.fingerprint = json.dumps({**trainable.fingerprint(), **of_weights})
        return FinishedGraph(graph, built, examples)

    def _shared_input_address(self) -> str:
        """Return the address of the process that prepares mini-batches for the trials on this VM.

        Raises TrainingError if there is none within the time limit.
        """
        path = self._folder.shared_input(self._spec.study).input_address
        deadline = time.monotonic() + _SHARED_INPUT_SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                study = self._spec.study
                raise TrainingError(f"no process prepares mini-batches for {study} on this VM")
            time.sleep(_POLL_SECONDS)
        return path.read_text(encoding="utf-8")
