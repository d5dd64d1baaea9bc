"""The chief's graph: initialise, restore, read and save the variables.

To build it runs all Python code of a model, which is most of the time that a parameter server needs
to restart. The chief uses only a small part of it. So a run's first chief writes that part to a
file beside its checkpoints, and a restarted one reads it in a tenth of the time. This does not
apply to synchronous training, in which the chief applies the model's optimizer.
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
    """An operation that loads a value into a variable.

    Attributes
    ----------
    operation, placeholder
        The operation and its input.
    name
        The value's name in a checkpoint.
    part
        The slices of that value that belong to the variable; None for all of it.
    """

    operation: Any
    placeholder: Any
    name: str
    part: tuple[slice, ...] | None


@dataclass(frozen=True)
class VariablesGraph:
    """A finished graph with the chief's operations.

    Attributes
    ----------
    graph
        The graph.
    batch
        The declared mini-batch.
    step
        The global step.
    uninitialised
        Names of variables without a value.
    finite
        For each of `loadings`, whether all numbers of its variable are finite.
    initialise
        Initialises all variables.
    ready, not_ready
        Create and destroy the ready flag of the run.
    save, file_name, written
        `save` writes the tensors `written` to the file fed as `file_name`.
    loadings
        Load one variable each.
    trained
        Names of the trainable variables in a checkpoint.
    accumulators, divisor
        Of synchronous training: its accumulators, and the learning rate divisor to feed.
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
    """Build the variables exactly as every worker builds them, and the chief's operations.

    `servers` is the number of parameter servers. Raises what the model raises.
    """
    tf = tensorflow()

    with tf.Graph().as_default() as graph:
        if spec.seed is not None:
            tf.set_random_seed(spec.seed)
        trainable.prepare()
        ready = placement.ready_flag(spec.name, spec.phase_begin)
        with placement.placed("/job:ps/task:0", servers, spec.ps_shards):
            features = trainable.placeholders()
            sync = spec.mode == "sync"
            built = training_graph(trainable, features, spec.wire, sync, spec.damped)
            if built.accumulators:  # the chief has the optimizer's variables
                built.accumulators.build_update(built.objective)
            step = tf.identity(built.global_step.read_value())
            uninitialised = tf.report_uninitialized_variables([ready, *tf.global_variables()])
            finite = tf.stack([_finite(tf, variable) for variable in tf.global_variables()])
            initialise = tf.global_variables_initializer()
            saver = tf.train.Saver(tf.global_variables(), max_to_keep=0).saver_def
            loadings = [_loading(tf, variable) for variable in tf.global_variables()]
            trained = frozenset(
                placement.place_in_checkpoint(variable)[0] for variable in tf.trainable_variables()
            )
        (writing,) = [
            operation for operation in graph.get_operations() if operation.type == "SaveV2"
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
        list(writing.inputs[3:]),  # follow the file, the names and the slices
        loadings,
        trained,
        built.accumulators,
        built.divisor,
    )


def content(made: VariablesGraph, servers: int) -> bytes:
    """Return the content of the file. Raises TrainingError if no file can contain the graph."""
    if made.accumulators is not None:
        raise TrainingError("the graph of a synchronous run is not shared")
    parts = {name: getattr(made, name).name for name in (*_TENSORS, *_OPERATIONS)}
    written = [tensor.name for tensor in made.written]
    loadings = [_described(loading) for loading in made.loadings]
    of_loadings = [row[key] for row in loadings for key in ("operation", "placeholder")]
    definition = needed(made.graph, [*parts.values(), *written, *of_loadings])
    if found := python_operations(definition):
        raise TrainingError(f"the variables need a call of Python ({min(found)})")
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


def _described(loading: Loading) -> dict[str, Any]:
    """Describe a loading as a JSON value, which `_parsed` reads."""
    part = None
    if loading.part is not None:
        part = [[cut.start, cut.stop] for cut in loading.part]
    return {
        "operation": loading.operation.name,
        "placeholder": loading.placeholder.name,
        "name": loading.name,
        "part": part,
    }


def _parsed(graph: Any, row: Mapping[str, Any]) -> Loading:
    part = None
    if row["part"] is not None:
        part = tuple(slice(*cut) for cut in row["part"])
    return Loading(
        graph.get_operation_by_name(row["operation"]),
        graph.get_tensor_by_name(row["placeholder"]),
        row["name"],
        part,
    )


def read(path: Path, servers: int) -> VariablesGraph:
    """Read a file of the run, for this number of parameter servers.

    Raises OSError, ValueError, TrainingError, and what TensorFlow raises for a file that does not
    fit.
    """
    tf = tensorflow()

    line, _, body = path.read_bytes().partition(b"\n")
    header = json.loads(line)
    if (header["tensorflow"], header["servers"]) != (tf.__version__, servers):
        raise TrainingError(
            "the graph is for another version of TensorFlow, or another number of parameter servers"
        )
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(tf.GraphDef.FromString(body), name="")
    graph.finalize()
    parts: Mapping[str, str] = header["parts"]
    found = {name: graph.as_graph_element(parts[name]) for name in (*_TENSORS, *_OPERATIONS)}
    loadings = [_parsed(graph, row) for row in header["loadings"]]
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
    """Return whether all numbers of a variable are finite, computed where the variable is."""
    if not variable.dtype.is_floating:
        return tf.constant(True)
    with tf.device(variable.device):
        return tf.reduce_all(tf.math.is_finite(variable.read_value()))
