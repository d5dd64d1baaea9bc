"""TensorFlow without what builds graphs: enough to read one from a file and to run it, in a third of the time.

`import tensorflow` runs more than four thousand modules; some six hundred of them import and run graphs. The others are
named by the package's own `__init__`. So a stand-in bears that name while the few are imported, and whoever asks for
anything else gets all of TensorFlow then: the modules that are there already become part of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import TrainingError
from ...imports import uncollected

_PACKAGE = "tensorflow"
_NAMES = {
    "__version__": "tensorflow.python.framework.versions:VERSION",
    "errors": "tensorflow.python.framework.errors",
    "device": "tensorflow.python.framework.ops:device",
    "import_graph_def": "tensorflow.python.framework.importer:import_graph_def",
    "ConfigProto": "tensorflow.core.protobuf.config_pb2:ConfigProto",
    "Graph": "tensorflow.python.framework.ops:Graph",
    "GraphDef": "tensorflow.core.framework.graph_pb2:GraphDef",
    "RunMetadata": "tensorflow.core.protobuf.config_pb2:RunMetadata",
    "RunOptions": "tensorflow.core.protobuf.config_pb2:RunOptions",
    "Session": "tensorflow.python.client.session:Session",
}
_TRAIN = {
    "ClusterSpec": "tensorflow.python.training.server_lib:ClusterSpec",
    "Server": "tensorflow.python.training.server_lib:Server",
}


class _StandIn(types.ModuleType):
    """In the place of TensorFlow's own package."""


class _Names:
    """The attributes `given`; all others are those of what `rest` returns."""

    def __init__(self, given: Mapping[str, Any], rest: Callable[[], Any]) -> None:
        self.__dict__.update(given)
        self._rest = rest

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._rest(), name)


def load(whole: Callable[[], Any]) -> Any:
    """What graphs are run with, under the names of `tensorflow.compat.v1`, which `whole` imports for all the others.

    Raises TrainingError where TensorFlow is there already, or is no package.
    """
    found = importlib.util.find_spec(_PACKAGE) if _PACKAGE not in sys.modules else None
    if found is None or not found.submodule_search_locations:
        raise TrainingError("TensorFlow cannot be imported in part", where="lean")
    stand_in = _StandIn(_PACKAGE)
    stand_in.__path__ = list(found.submodule_search_locations)
    stand_in.__spec__, stand_in.__file__ = found, found.origin
    sys.modules[_PACKAGE] = stand_in
    try:
        with uncollected():
            # As TensorFlow's __init__ does: some modules look at it, and must not be another way when the rest comes.
            os.environ["TF2_BEHAVIOR"] = "1"
            importlib.import_module("tensorflow.python.pywrap_tensorflow")
            importlib.import_module("tensorflow.python.tf2").enable()
            train = _Names({name: _found(place) for name, place in _TRAIN.items()}, lambda: whole().train)
            names = {name: _found(place) for name, place in _NAMES.items()}
    except BaseException:
        give_way()
        raise
    return _Names({**names, "train": train}, whole)


def stands_in() -> bool:
    """Whether only the part is there."""
    return isinstance(sys.modules.get(_PACKAGE), _StandIn)


def give_way() -> None:
    """Let `import tensorflow` import TensorFlow."""
    if stands_in():
        del sys.modules[_PACKAGE]


def _found(place: str) -> Any:
    module, _, name = place.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported
