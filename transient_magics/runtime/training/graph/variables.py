"""The chief's graph: what initialises, restores, reads and saves the variables, built or read from
a file.

To build it runs all the Python of a model, which is most of what a parameter server takes to be
back; what the chief runs of it is small. So a run's first chief writes that part beside its
checkpoints, and one that is started again reads it in a tenth of the time. Not for synchronous
training, whose rounds the chief ends with the model's optimizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import TrainingError
from ....protocol.run import RunSpec
from ...tf import placement
from ...tf.graph_mode import tensorflow
from ..trainable import Trainable
from .file import needed, python_operations
from .step import training_graph

_TENSORS = ("step", "uninitialised", "finite", "save", "file_name")
_OPERATIONS = ("initialise", "ready", "not_ready")


@dataclass(frozen=True)
class Loading:
    """An operation that loads a value into a variable, its placeholder, the name in a checkpoint,
    and which slices of that it is; None: all of it.
    """

    operation: Any
    placeholder: Any
    name: str
    part: tuple[slice, ...] | None


@dataclass(frozen=True)
class VariablesGraph:
    """A finished graph, and what the chief runs of it.

    `save` writes the tensors `written` to `file_name`. `ready` and `not_ready` make and destroy the
    flag of the run. `finite` says of each of the `loadings` whether all numbers of its variable are
    finite.
    """

    graph: Any
    batch: int
    step: Any
    uninitialised: Any
    finite: Any
    initialise: Any
    ready: Any
    not_ready: Any
    save: Any
    file_name: Any
    written: Sequence[Any]
    loadings: Sequence[Loading]
    trained: frozenset[str]
    accumulators: Any = None
    divisor: Any = None


def build(trainable: Trainable, spec: RunSpec, servers: int) -> VariablesGraph:
    """The variables exactly as every worker builds them, on so many parameter servers, and what
    reads and writes them.

    Raises what the model raises.
    """
    tf = tensorflow()

    with tf.Graph().as_default() as graph:
        if spec.seed is not None:
            tf.set_random_seed(spec.seed)
        trainable.prepare()
        ready = placement.ready_flag(spec.name)
        with placement.placed("/job:ps/task:0", servers, spec.ps_shards):
            features = trainable.placeholders()
            sync = spec.mode == "sync"
            built = training_graph(trainable, features, spec.wire, sync, spec.damped)
            if built.accumulators:  # the optimizer's own variables are the chief's then
                built.accumulators.build_update(built.objective)
            step = tf.identity(built.global_step.read_value())
            uninitialised = tf.report_uninitialized_variables([ready, *tf.global_variables()])
            finite = tf.stack([_finite(tf, variable) for variable in tf.global_variables()])
            initialise = tf.global_variables_initializer()
            saver = tf.train.Saver(tf.global_variables(), max_to_keep=0).saver_def
            loadings = [_loading(tf, variable) for variable in tf.global_variables()]
            trained = frozenset(
                placement.place_in_checkpoint(trainable_variable)[0]
                for trainable_variable in tf.trainable_variables()
            )
        (writing,) = [
            get_operation
            for get_operation in graph.get_operations()
            if get_operation.type == "SaveV2"
        ]
        not_ready = tf.raw_ops.DestroyResourceOp(resource=ready.handle, ignore_lookup_error=True)
    graph.finalize()
    return VariablesGraph(
        graph,
        trainable.batch,
        step,
        uninitialised,
        finite,
        initialise,
        ready.initializer,
        not_ready,
        graph.get_tensor_by_name(saver.save_tensor_name),
        graph.get_tensor_by_name(saver.filename_tensor_name),
        list(writing.inputs[3:]),  # after the file, the names and the slices
        loadings,
        trained,
        built.accumulators,
        built.divisor,
    )


def content(made: VariablesGraph, servers: int) -> bytes:
    """The content of the file. Raises TrainingError where no file can hold it."""
    if made.accumulators is not None:
        raise TrainingError("the chief of synchronous training builds its graph")
    parts = {name: getattr(made, name).name for name in (*_TENSORS, *_OPERATIONS)}
    written = [tensor.name for tensor in made.written]
    loadings = [
        {
            "operation": loading.operation.name,
            "placeholder": loading.placeholder.name,
            "name": loading.name,
            "part": None
            if loading.part is None
            else [[cut.start, cut.stop] for cut in loading.part],
        }
        for loading in made.loadings
    ]
    of_loadings = [each[key] for each in loadings for key in ("operation", "placeholder")]
    definition = needed(made.graph, [*parts.values(), *written, *of_loadings])
    if found := python_operations(definition):
        raise TrainingError(f"the variables need an operation of Python's: {min(found)}")
    header = {
        "tensorflow": tensorflow().__version__,
        "servers": servers,
        "batch": made.batch,
        "parts": parts,
        "written": written,
        "loadings": loadings,
        "trained": sorted(made.trained),
    }
    return json.dumps(header).encode() + b"\n" + definition.SerializeToString()


def read(path: Path, servers: int) -> VariablesGraph:
    """What is in such a file of the run, for so many parameter servers.

    Raises OSError, ValueError, TrainingError, and whatever TensorFlow raises for a file that does
    not fit.
    """
    tf = tensorflow()

    line, _, body = path.read_bytes().partition(b"\n")
    header = json.loads(line)
    if (header["tensorflow"], header["servers"]) != (tf.__version__, servers):
        raise TrainingError(
            "the graph is of another TensorFlow, or for another number of parameter servers"
        )
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(tf.GraphDef.FromString(body), name="")
    graph.finalize()
    parts: Mapping[str, str] = header["parts"]
    found = {name: graph.as_graph_element(parts[name]) for name in (*_TENSORS, *_OPERATIONS)}
    loadings = [
        Loading(
            graph.get_operation_by_name(each["operation"]),
            graph.get_tensor_by_name(each["placeholder"]),
            each["name"],
            None if each["part"] is None else tuple(slice(*cut) for cut in each["part"]),
        )
        for each in header["loadings"]
    ]
    written = [graph.get_tensor_by_name(name) for name in header["written"]]
    trained = frozenset(header["trained"])
    return VariablesGraph(
        graph, header["batch"], **found, written=written, loadings=loadings, trained=trained
    )


def _loading(tf: Any, variable: Any) -> Loading:
    placeholder = tf.placeholder(variable.dtype.base_dtype, variable.shape)
    name, part = placement.place_in_checkpoint(variable)
    return Loading(variable.assign(placeholder, read_value=False), placeholder, name, part)


def _finite(tf: Any, variable: Any) -> Any:
    """Whether all numbers of a variable are finite, found where the variable is."""
    if not variable.dtype.is_floating:
        return tf.constant(True)
    with tf.device(variable.device):
        return tf.reduce_all(tf.math.is_finite(variable.read_value()))
