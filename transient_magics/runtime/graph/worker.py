"""A worker's graph: built from the definition of what is trained, or read from a file that holds it built.

Building runs all the Python of a model, which takes seconds; reading takes a tenth of them. The file holds what follows
from the definition alone. Examples come from the worker's own pipeline and queue in both cases, mini-batch and
learning rate are fed, and the number of the worker that built it is replaced by the reader's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ...errors import TrainingError
from .. import placement
from ..folder import RunSpec
from ..graph_mode import tensorflow
from ..trainable import Trainable
from .noise import gradient_sum
from .training import training_graph
from .wire import cross_once

_WORKER = re.compile(r"/job:worker(/replica:\d+)?/task:\d+")
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_SCOPE = "transient_shared"
"""Of no variable: a second one of the same name would get another, and miss its values."""


@dataclass(frozen=True)
class WorkerGraph:
    """What a worker runs and feeds: tensors of one graph, and the operation `step`.

    `before` and `after` are the global step around `step`; `missing` names the variables that do not live yet;
    `weight`, `share` and `expected` are those of training.py. Three measure gradients that no step applies (noise.py):
    the squared norm of one and of their sum, and what begins a sum. The next four are of synchronous training
    (accumulate.py): a round to feed, what `step` saw of it, the round and step now.
    With `--chief worker`, `saved` writes the variables to the path fed as `checkpoint`.
    """

    loss: Any
    before: Any
    after: Any
    examples: Any
    step: Any
    divisor: Any
    share: Any
    expected: Any
    weight: Any
    missing: Any
    squared: Any
    summed: Any
    cleared: Any
    round: Any = None
    seen: Any = None
    current_round: Any = None
    current_step: Any = None
    checkpoint: Any = None
    saved: Any = None


def build(trainable: Trainable, features: Mapping[str, Any], spec: RunSpec, device: str, servers: int) -> WorkerGraph:
    """Build the step on `features` in the default graph, for the worker at `device`, after `trainable.prepare`."""
    tf = tensorflow()

    ready = placement.ready_flag(spec.name)
    with placement.placed(device, servers, spec.ps_shards):
        built = training_graph(trainable, features, spec.wire, spec.mode == "sync", spec.damped)
        missing = tf.report_uninitialized_variables([ready, *tf.global_variables()])
    with tf.device(f"{device}/cpu:0"):
        measured = gradient_sum(built.objective.pairs)
    graph, saving = tf.get_default_graph(), ()
    if spec.chief == "worker":
        with tf.device(f"{device}/cpu:0"):
            saver = tf.train.Saver(tf.global_variables(), max_to_keep=0).saver_def
        saving = tuple(map(graph.as_graph_element, (saver.filename_tensor_name, saver.save_tensor_name)))
    cross_once(graph, device, spec.wire)
    sync = built.accumulators
    position = (sync.round, sync.seen, *sync.position) if sync else (None,) * 4
    return WorkerGraph(
        built.objective.loss, built.before, built.after, built.examples, built.step, built.divisor, built.share,
        built.expected, built.objective.weight, missing, *measured, *position, *saving,
    )  # fmt: skip


def written(trainable: Trainable, spec: RunSpec, servers: int) -> bytes:
    """The file with a worker's graph. Raises TrainingError where the graph calls Python code: no file can hold it."""
    tf = tensorflow()

    with tf.Graph().as_default() as graph:
        trainable.prepare()
        features = trainable.placeholders()
        built = build(trainable, features, spec, placement.worker_device(0), servers)
    elements = {name: element for name, element in vars(built).items() if element is not None}
    wanted = {getattr(element, "op", element).name for element in elements.values()}
    definition = tf.graph_util.extract_sub_graph(graph.as_graph_def(), sorted(wanted))
    _drop_unused_functions(definition)
    if found := _PYTHON & {node.op for node in _nodes(definition)}:
        raise TrainingError(f"the model's graph has an operation of Python's: {min(found)}")
    there = {node.name for node in definition.node}
    for node in definition.node:  # some stand beside operations that only the rest of the graph needed
        beside = node.attr["_class"].list.s if "_class" in node.attr else ()
        if any(place.decode().removeprefix("loc:@") not in there for place in beside):
            del node.attr["_class"]
    header = {
        "tensorflow": tf.__version__,
        "elements": {name: element.name for name, element in elements.items()},
        "features": {name: tensor.name for name, tensor in features.items() if tensor.op.name in there},
    }
    return json.dumps(header).encode() + b"\n" + definition.SerializeToString()


def read(content: bytes, features: Mapping[str, Any], device: str) -> WorkerGraph:
    """Put the graph of a file on `features` into the default graph, for the worker at `device`.

    Raises TrainingError for a file of another TensorFlow, and whatever TensorFlow raises for one that does not fit.
    """
    tf = tensorflow()

    line, _, body = content.partition(b"\n")
    header = json.loads(line)
    if header["tensorflow"] != tf.__version__:
        raise TrainingError(f"the graph was built by TensorFlow {header['tensorflow']}, and here is {tf.__version__}")
    definition = tf.GraphDef.FromString(body)
    for node in _nodes(definition):
        node.device = _WORKER.sub(device, node.device)
    given = {placeholder: features[name] for name, placeholder in header["features"].items()}
    names = [item.name for item in fields(WorkerGraph) if item.name in header["elements"]]
    places = [header["elements"][name] for name in names]
    found = tf.import_graph_def(definition, given, places, name=_SCOPE)
    return WorkerGraph(**dict(zip(names, found, strict=True)))


def _nodes(definition: Any) -> Iterator[Any]:
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _drop_unused_functions(definition: Any) -> None:
    """Leave those functions that the nodes call, directly or not; the others belong to pipelines."""
    known = {function.signature.name: function for function in definition.library.function}
    gradients = {each.function_name: each.gradient_func for each in definition.library.gradient}
    used: set[str] = set()
    waiting = list(definition.node)
    while waiting:
        node = waiting.pop()
        named = {node.op}
        for value in node.attr.values():
            named |= {value.func.name, *(function.name for function in value.list.func)}
        named |= {gradients[name] for name in named & gradients.keys()}
        for name in (named & known.keys()) - used:
            used.add(name)
            waiting.extend(known[name].node_def)
    del definition.library.function[:]
    definition.library.function.extend(known[name] for name in sorted(used))
    kept = [each for each in definition.library.gradient if each.function_name in used]
    del definition.library.gradient[:]
    definition.library.gradient.extend(kept)
