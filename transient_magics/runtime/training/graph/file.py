"""A file with the finished graph of a worker, for workers that join later.

To build the graph runs all Python code of a model, which takes seconds; to read it takes a tenth of
that. If the examples need no Python either, the file contains them as well. Its reader then needs
nothing of Tensor2Tensor and little of TensorFlow (`run_only` in tf/graph_mode.py). Otherwise the
reader connects the graph to examples of its own. The reader replaces the worker's number and the
folder of the records. The graph itself draws the order of the examples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ....errors import TrainingError
from ....protocol.run import RunSpec
from ...tf import placement
from ...tf.graph_mode import tensorflow
from ..batching import SMALLEST
from ..examples import Source, source
from ..trainable import Trainable
from .worker import WorkerGraph, build

_WORKER = re.compile(r"/job:worker(/replica:\d+)?/task:\d+")
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_SCOPE = "transient_shared"
"""Scope of operations, but not of variables: renamed variables would miss their values."""


def written(trainable: Trainable, spec: RunSpec, servers: int) -> bytes:
    """Return the content of the file.

    Raises TrainingError if the model calls Python code, which no file can contain.
    """
    tf = tensorflow()

    device = placement.worker_device(0)
    with tf.Graph().as_default() as graph:
        trainable.prepare()
        examples, directory = _examples(trainable, spec, device)
        if examples:
            features = examples.features
            described = _described(examples)
        else:
            features = trainable.placeholders()
            described = None
        built = build(trainable, features, spec, device, servers)
        elements = {name: element for name, element in vars(built).items() if element is not None}
        names = {name: _name(element) for name, element in elements.items()}
        definition = needed(graph, [*_tensors(names), *_tensors(described or {})])
    if found := python_operations(definition):
        raise TrainingError(f"the model's graph calls Python ({min(found)})")
    present = {node.name for node in definition.node}
    header = {
        "tensorflow": tf.__version__,
        "elements": names,
        "features": {
            name: tensor.name for name, tensor in features.items() if tensor.op.name in present
        },
        "examples": described,
        "directory": directory,
    }
    return json.dumps(header).encode() + b"\n" + definition.SerializeToString()


@dataclass(frozen=True)
class GraphFile:
    """The content of a file with a worker's graph."""

    _header: Mapping[str, Any]
    _body: bytes

    @classmethod
    def read(cls, path: Path) -> GraphFile:
        """Read a file. Raises OSError, or ValueError for a file without a graph."""
        line, _, body = path.read_bytes().partition(b"\n")
        header = json.loads(line)
        if not isinstance(header, dict):
            raise ValueError(f"{path.name} does not contain a graph")
        return cls(header, body)

    @property
    def has_examples(self) -> bool:
        """Whether the file contains the examples."""
        return self._header.get("examples") is not None

    def on(self, features: Mapping[str, Any], device: str) -> WorkerGraph:
        """Import the graph on `features` into the default graph, for the worker at `device`.

        Raises TrainingError for a file of another TensorFlow, and what TensorFlow raises for one
        that does not fit.
        """
        names = self._header["elements"]
        given = {
            placeholder: features[name] for name, placeholder in self._header["features"].items()
        }
        found = self._import(self._definition(device), given, _tensors(names))
        return _graph(names, found)

    def with_examples(self, device: str, directory: str) -> tuple[WorkerGraph, Source]:
        """Import the graph with its examples, which it reads from `directory`.

        Raises what `on` raises.
        """
        definition = self._definition(device)
        _move(definition, self._header["directory"], directory)
        described = self._header["examples"]
        elements = self._header["elements"]
        found = self._import(definition, {}, {*_tensors(elements), *_tensors(described)})

        def imported(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {key: found[tensor] for key, tensor in value.items()}
            if isinstance(value, str):
                return found[value]
            return value

        names = [field.name for field in fields(Source) if field.name in described]
        read = Source(**{name: imported(described[name]) for name in names})
        return _graph(elements, found), read

    def _definition(self, device: str) -> Any:
        """Return the graph's definition for the worker at `device`."""
        tf = tensorflow()
        if self._header["tensorflow"] != tf.__version__:
            builder = self._header["tensorflow"]
            raise TrainingError(
                f"the graph was built by TensorFlow {builder}, but this VM has {tf.__version__}"
            )
        definition = tf.GraphDef.FromString(self._body)
        for node in nodes(definition):
            node.device = _WORKER.sub(device, node.device)
        return definition

    def _import(
        self, definition: Any, given: Mapping[str, Any], names: Iterable[str]
    ) -> dict[str, Any]:
        """Import the graph. Returns its tensors and operations by their names in the file."""
        unique = sorted(set(names))
        found = tensorflow().import_graph_def(definition, given, unique, name=_SCOPE)
        return dict(zip(unique, found, strict=True))


def _name(element: Any) -> str | list[str]:
    """Return the name of a tensor or an operation, or the names of several."""
    if isinstance(element, Sequence):
        return [item.name for item in element]
    return element.name


def _graph(names: Mapping[str, str | list[str]], found: Mapping[str, Any]) -> WorkerGraph:
    """Return the graph of the tensors `found`, from the `names` of its fields."""

    def imported(name: str | list[str]) -> Any:
        if isinstance(name, list):
            return [found[item] for item in name]
        return found[name]

    return WorkerGraph(**{field: imported(name) for field, name in names.items()})


def _examples(trainable: Trainable, spec: RunSpec, device: str) -> tuple[Source | None, str]:
    """Return the examples in the default graph, and the folder that they are read from.

    The examples are None if each reader needs its own.
    """
    tf = tensorflow()
    with tf.device(f"{device}/cpu:0"):
        pipeline = trainable.training_pipeline()
        # Other data may have another place in a later process.
        if not (pipeline.directory and spec.reads_records):
            return None, ""
        made = source(pipeline, _SCOPE, max(trainable.batch, SMALLEST), spec.batching != "uniform")
    if python_operations(needed(tf.get_default_graph(), _tensors(_described(made)))):
        return None, ""
    return made, pipeline.directory


def _described(examples: Source) -> dict[str, Any]:
    """Describe a source by the names of its tensors and operations.

    A source with a queue dequeues its features, whose names no reader needs.
    """
    named = ("begin", "enqueue", "close", "requested", "files", "count", "left")
    parts = {name: getattr(examples, name) for name in named}
    given = examples.features if examples.enqueue is None else {}
    return {
        "batch": examples.batch,
        "features": {name: tensor.name for name, tensor in given.items()},
        "values": {name: tensor.name for name, tensor in examples.values.items()},
        **{name: part.name for name, part in parts.items() if part is not None},
    }


def _tensors(description: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of all tensors and operations in a part of the header."""
    for value in description.values():
        if isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, list):
            yield from value
        elif isinstance(value, str):
            yield value


def _move(definition: Any, before: str, now: str) -> None:
    """Replace the folder of the records, `before`, by `now`."""
    old, new = (folder.rstrip("/").encode() + b"/" for folder in (before, now))
    for node in nodes(definition):
        if node.op != "Const" or not (values := node.attr["value"].tensor.string_val):
            continue
        if all(value.startswith(old) for value in values):
            values[:] = [new + value.removeprefix(old) for value in values]


def needed(graph: Any, names: Iterable[str]) -> Any:
    """Return the part of the graph that these tensors and operations need."""
    ends = {name.partition(":")[0] for name in names}
    definition = tensorflow().graph_util.extract_sub_graph(graph.as_graph_def(), sorted(ends))
    _drop_unused_functions(definition)
    present = {node.name for node in definition.node}
    # Remove colocation with operations that only the rest of the graph needs.
    for node in definition.node:
        if "_class" not in node.attr:
            continue
        places = (place.decode().removeprefix("loc:@") for place in node.attr["_class"].list.s)
        if any(place not in present for place in places):
            del node.attr["_class"]
    return definition


def python_operations(definition: Any) -> frozenset[str]:
    """Return the types of operations that call Python, which no file can contain."""
    return _PYTHON & {node.op for node in nodes(definition)}


def nodes(definition: Any) -> Iterator[Any]:
    """Yield the nodes of a definition, including those of its functions."""
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _drop_unused_functions(definition: Any) -> None:
    """Keep only the functions that the nodes call, directly or not.

    The others belong to pipelines.
    """
    library = definition.library
    functions = {function.signature.name: function for function in library.function}
    gradients = {entry.function_name: entry.gradient_func for entry in library.gradient}
    used: set[str] = set()
    waiting = list(definition.node)
    while waiting:
        node = waiting.pop()
        named = {node.op}
        for value in node.attr.values():
            named |= {value.func.name, *(function.name for function in value.list.func)}
        named |= {gradients[name] for name in named & gradients.keys()}
        for name in (named & functions.keys()) - used:
            used.add(name)
            waiting.extend(functions[name].node_def)
    del library.function[:]
    library.function.extend(functions[name] for name in sorted(used))
    kept = [entry for entry in library.gradient if entry.function_name in used]
    del library.gradient[:]
    library.gradient.extend(kept)
