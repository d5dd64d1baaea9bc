"""A file that holds a worker's graph built, for workers that join later.

Building runs all the Python of a model, which takes seconds; reading takes a tenth of them. Where
the examples need no Python either they are in the file too, and its reader needs nothing of
Tensor2Tensor and little of TensorFlow (`run_only` in tf/graph_mode.py); elsewhere the reader puts
the graph on examples of its own. The number of the worker that built it and the folder of the
records are replaced by the reader's; the graph draws the order of the examples itself.
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
"""Of no variable: a second one of the same name would get another, and miss its values."""


def written(trainable: Trainable, spec: RunSpec, servers: int) -> bytes:
    """The content of the file. Raises TrainingError where the model calls Python code: no file can
    hold it.
    """
    tf = tensorflow()

    device = placement.worker_device(0)
    with tf.Graph().as_default() as graph:
        trainable.prepare()
        examples, directory = _examples(trainable, spec, device)
        if examples:
            features = examples.features
        else:
            features = trainable.placeholders()
        built = build(trainable, features, spec, device, servers)
        elements = {name: element for name, element in vars(built).items() if element is not None}
        names = {name: _name(element) for name, element in elements.items()}
        if examples:
            told = _told(examples)
        else:
            told = None
        definition = needed(graph, [*_tensors(names), *(_tensors(told) if told else ())])
    if found := python_operations(definition):
        raise TrainingError(f"the model's graph has an operation of Python's: {min(found)}")
    there = {node.name for node in definition.node}
    header = {
        "tensorflow": tf.__version__,
        "elements": names,
        "features": {
            name: tensor.name for name, tensor in features.items() if tensor.op.name in there
        },
        "examples": told,
        "directory": directory,
    }
    return json.dumps(header).encode() + b"\n" + definition.SerializeToString()


@dataclass(frozen=True)
class GraphFile:
    """Such a file, read."""

    _header: Mapping[str, Any]
    _body: bytes

    @classmethod
    def read(cls, path: Path) -> GraphFile:
        """Raises OSError, or ValueError for something else than such a file."""
        line, _, body = path.read_bytes().partition(b"\n")
        header = json.loads(line)
        if not isinstance(header, dict):
            raise ValueError(f"{path.name} is no file with a graph")
        return cls(header, body)

    @property
    def has_examples(self) -> bool:
        """Whether the examples are in it."""
        return self._header.get("examples") is not None

    def on(self, features: Mapping[str, Any], device: str) -> WorkerGraph:
        """The graph on `features`, in the default graph, for the worker at `device`.

        Raises TrainingError for a file of another TensorFlow, and whatever TensorFlow raises for
        one that does not fit.
        """
        names = self._header["elements"]
        given = {
            placeholder: features[name] for name, placeholder in self._header["features"].items()
        }
        found = self._put(self._definition(device), given, _tensors(names))
        return _graph(names, found)

    def with_examples(self, device: str, directory: str) -> tuple[WorkerGraph, Source]:
        """The graph with its examples, which are read from `directory`.

        Raises what `on` raises.
        """
        definition = self._definition(device)
        _move(definition, self._header["directory"], directory)
        told = self._header["examples"]
        elements = self._header["elements"]
        found = self._put(definition, {}, {*_tensors(elements), *_tensors(told)})

        def of(name: str) -> Any:
            value = told[name]
            if isinstance(value, Mapping):
                return {key: found[tensor] for key, tensor in value.items()}
            if isinstance(value, str):
                return found[value]
            return value

        read = Source(
            **{field.name: of(field.name) for field in fields(Source) if field.name in told}
        )
        return _graph(elements, found), read

    def _definition(self, device: str) -> Any:
        tf = tensorflow()
        if self._header["tensorflow"] != tf.__version__:
            theirs = self._header["tensorflow"]
            raise TrainingError(
                f"the graph was built by TensorFlow {theirs}, and here is {tf.__version__}"
            )
        definition = tf.GraphDef.FromString(self._body)
        for node in nodes(definition):
            node.device = _WORKER.sub(device, node.device)
        return definition

    def _put(
        self, definition: Any, given: Mapping[str, Any], names: Iterable[str]
    ) -> dict[str, Any]:
        """Import the graph; its tensors and operations by the names that they have in the file."""
        unique = sorted(set(names))
        found = tensorflow().import_graph_def(definition, given, unique, name=_SCOPE)
        return dict(zip(unique, found, strict=True))


def _name(element: Any) -> str | list[str]:
    """The name of a tensor or an operation, or the names of several."""
    if isinstance(element, Sequence):
        return [each.name for each in element]
    return element.name


def _graph(names: Mapping[str, str | list[str]], found: Mapping[str, Any]) -> WorkerGraph:
    """The graph of tensors that were `found`, by the names of its fields'."""

    def of(name: str | list[str]) -> Any:
        if isinstance(name, list):
            return [found[each] for each in name]
        return found[name]

    return WorkerGraph(**{field: of(name) for field, name in names.items()})


def _examples(trainable: Trainable, spec: RunSpec, device: str) -> tuple[Source | None, str]:
    """The examples in the default graph and the folder that they are read from; None where a reader
    needs its own.
    """
    tf = tensorflow()
    with tf.device(f"{device}/cpu:0"):
        pipeline = trainable.training_pipeline()
        if not (pipeline.directory and spec.reads_records):  # which is reached elsewhere tomorrow
            return None, ""
        made = source(pipeline, _SCOPE, max(trainable.batch, SMALLEST), spec.batching != "uniform")
    if python_operations(needed(tf.get_default_graph(), _tensors(_told(made)))):
        return None, ""
    return made, pipeline.directory


def _told(examples: Source) -> dict[str, Any]:
    """A source by the names of its tensors and operations. Code that dequeues features has no use
    for their names.
    """
    named = ("begin", "enqueue", "close", "wanted", "files", "count", "left")
    parts = {name: getattr(examples, name) for name in named}
    given = examples.features if examples.enqueue is None else {}
    return {
        "batch": examples.batch,
        "features": {name: tensor.name for name, tensor in given.items()},
        "values": {name: tensor.name for name, tensor in examples.values.items()},
        **{name: part.name for name, part in parts.items() if part is not None},
    }


def _tensors(told: Mapping[str, Any]) -> Iterator[str]:
    """The names of all tensors and operations in the header."""
    for value in told.values():
        if isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, list):
            yield from value
        elif isinstance(value, str):
            yield value


def _move(definition: Any, before: str, now: str) -> None:
    """Have the records read from the folder `now`."""
    old, new = (folder.rstrip("/").encode() + b"/" for folder in (before, now))
    for node in nodes(definition):
        if node.op != "Const" or not (values := node.attr["value"].tensor.string_val):
            continue
        if all(value.startswith(old) for value in values):
            values[:] = [new + value.removeprefix(old) for value in values]


def needed(graph: Any, names: Iterable[str]) -> Any:
    """The part of the graph that these tensors and operations need."""
    wanted = {name.partition(":")[0] for name in names}
    definition = tensorflow().graph_util.extract_sub_graph(graph.as_graph_def(), sorted(wanted))
    _drop_unused_functions(definition)
    there = {node.name for node in definition.node}
    for (
        node
    ) in definition.node:  # some stand beside operations that only the rest of the graph needed
        if "_class" in node.attr:
            beside = node.attr["_class"].list.s
        else:
            beside = ()
        if any(place.decode().removeprefix("loc:@") not in there for place in beside):
            del node.attr["_class"]
    return definition


def python_operations(definition: Any) -> frozenset[str]:
    """The kinds of operations in it that call Python, which no file can hold."""
    return _PYTHON & {node.op for node in nodes(definition)}


def nodes(definition: Any) -> Iterator[Any]:
    """Its nodes, those of its functions among them."""
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
