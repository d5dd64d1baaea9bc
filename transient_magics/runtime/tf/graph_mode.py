"""TensorFlow's version-1 interface: graphs and sessions, as every process of a run uses TensorFlow.

Parameter servers that workers join and leave at any time exist only in graph mode (placement.py).
Outside of a graph eager execution stays on, unless Tensor2Tensor's bridges were crossed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from ...errors import TrainingError
from ...imports import uncollected

GPU = "TRANSIENT_GPU"
"""Environment variable: build graphs as on a machine with a GPU (1) or without one (0).

Overrides what this machine has.
"""

_KERAS = "keras.src.optimizers"

_LIBRARIES = (
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
)
"""Libraries that TensorFlow opens before it uses a GPU, in its order."""
_NOT_BESIDE = "libcusolver.so.11"
"""The library that only the linker finds."""


_TENSORFLOW = "tensorflow"
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

_BY_IDENTITY = (
    "tensorflow",
    "tensorflow_datasets",
    "tensorflow_probability",
    "tensor2tensor",
    "tf_slim",
    "tf_keras",
    "mesh_tensorflow",
)
"""Packages that were written for version-1 graphs."""

_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\](\w+)")

_STANDARD = os.path.dirname(os.__file__) + os.sep


def has_gpu() -> bool:
    """Return whether graphs are built for a machine with a GPU.

    Does not ask TensorFlow, which would allocate the GPU. A GPU does not count if it is hidden from
    this process (CUDA_VISIBLE_DEVICES is -1 or empty), or if libraries are missing, as on a desktop
    where TensorFlow was installed without them.
    """
    override = os.environ.get(GPU)
    if override:
        return override == "1"
    return _finds_card() and _has_libraries()


def _finds_card() -> bool:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return os.path.exists("/proc/driver/nvidia") and visible not in ("-1", "")


@functools.cache
def _has_libraries() -> bool:
    return not missing_library()


_in_use: Any = None


def tensorflow() -> Any:
    """Return `tensorflow.compat.v1`, which the first call imports and configures.

    After `run_only`, returns only a part of it.
    """
    global _in_use
    if _in_use is None:
        prepare()
        _in_use = _whole()
    return _in_use


def run_only() -> None:
    """Let `tensorflow` return only what runs graphs, unless all of it is already imported.

    That takes a third of the time to import. Any other attribute, and `everything`, import the
    rest. Raises ImportError or TrainingError.
    """
    global _in_use
    if _in_use is None:
        prepare()
        _in_use = load_runner(everything)


def everything() -> Any:
    """Return all of `tensorflow.compat.v1`, which can build graphs."""
    global _in_use
    if stands_in():
        give_way()
        _in_use = None
    return tensorflow()


def prepare() -> None:
    """Set the environment variables that TensorFlow reads when it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Otherwise a process allocates all of a GPU's memory, which other processes share. A variable,
    # because a cell may compute with Keras before any session is configured.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if not _finds_card():
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # skip the search for a GPU


def _whole() -> Any:
    """Import and configure all of `tensorflow.compat.v1`."""
    with uncollected(), _keras_later():
        tf = importlib.import_module("tensorflow.compat.v1")
    tf.logging.set_verbosity(tf.logging.ERROR)
    # Operations of loops and conditions are then placed individually, as all others.
    tf.disable_control_flow_v2()
    # The global step has the default kind of variable. Reads and increments of a resource variable
    # are ordered.
    tf.enable_resource_variables()
    compare_by_element()
    return tf


@contextlib.contextmanager
def _keras_later() -> Iterator[None]:
    """Hide Keras inside, while TensorFlow is imported.

    It is almost half of the import. A cell that uses Keras imports it later.
    """
    if _KERAS in sys.modules:
        yield
        return
    # TensorFlow imports it for its side effects, and continues without it.
    sys.modules[_KERAS] = cast("Any", None)
    try:
        yield
    finally:
        del sys.modules[_KERAS]


# `==` and `!=` between tensors: elementwise as in TensorFlow 2, wherever the cell's code runs.
#
# In a version-1 graph TensorFlow compares tensors by identity, without a warning: `labels == 0` is
# False. Elementwise comparison is available only in graphs of functions under eager execution,
# whose variables are in the process that creates them, not on parameter servers. So the operators
# check which code compares. TensorFlow itself, Tensor2Tensor and other packages for graphs rely on
# identity, and keep it. All other code was written for TensorFlow 2: the cell, modules sent with
# it, packages of `--pip`, Keras 3, and AutoGraph's conversions of them. Hashes are still those of
# identity, which version-1 code needs (feed_dict).


def compare_by_element() -> None:
    """Replace the operators `==` and `!=` of tensors and variables. Call it once per process.

    They compare by element or by identity, depending on the code that compares.
    """
    from tensorflow.python.framework import tensor
    from tensorflow.python.ops import gen_math_ops, math_ops, variables
    from tensorflow.python.ops.ragged import ragged_tensor

    equal = (gen_math_ops.equal, math_ops.equal)
    not_equal = (gen_math_ops.not_equal, math_ops.not_equal)
    kinds: tuple[Any, ...] = (tensor.Tensor, variables.Variable, ragged_tensor.RaggedTensor)
    for kind in kinds:
        kind.__eq__ = _operator(kind.__eq__, *equal, apart=False)
        kind.__ne__ = _operator(kind.__ne__, *not_equal, apart=True)


def _operator(
    by_identity: Callable[..., Any],
    dense: Callable[..., Any],
    ragged: Callable[..., Any],
    apart: bool,
) -> Callable[[Any, Any], Any]:
    """Return an operator that computes as in TensorFlow 2, with TensorFlow's own functions.

    `apart` is its result for values that cannot be broadcast.
    """
    from tensorflow.python.framework import errors, override_binary_operator
    from tensorflow.python.ops.ragged import ragged_tensor

    def compare(one: Any, other: Any) -> Any:
        if not _compares_elements(sys._getframe(1)):
            return by_identity(one, other)
        if other is None:
            return apart
        if any(isinstance(value, ragged_tensor.RaggedTensor) for value in (one, other)):
            try:
                return ragged(one, other)
            except (errors.InvalidArgumentError, ValueError):
                return apart
        one, other = override_binary_operator.maybe_promote_tensors(one, other)
        return dense(one, other, incompatible_shape_error=False)

    return compare


def _compares_elements(frame: Any) -> bool:
    """Return whether the comparing code was written for TensorFlow 2.

    The standard library compares for its caller.
    """
    while frame is not None:
        if (answer := _of_file(frame.f_code.co_filename)) is not None:
            return answer
        frame = frame.f_back
    return True


@cache
def _of_file(name: str) -> bool | None:
    """Return whether a file was written for TensorFlow 2; None for the standard library."""
    if found := _PACKAGE.search(name):
        return found[1] not in _BY_IDENTITY
    if name.startswith((_STANDARD, "<")):
        return None
    return True


# The CUDA libraries that TensorFlow would not find. It uses no GPU if one is missing.
#
# This code does not ask TensorFlow, which would allocate the GPU. TensorFlow's wheel finds the
# libraries beside itself, where pip installs them (`locks/cuda.txt`), except for one.


def missing_library(packages: Path | None = None) -> str:
    """Return a clause about the first library that TensorFlow would not find, or nothing.

    `packages` is the folder that contains TensorFlow.
    """
    if packages is None:
        packages = Path()
        found = importlib.util.find_spec("tensorflow")
        if found and found.origin:
            packages = Path(found.origin).parents[1]
    for name in _LIBRARIES:
        installed = any(packages.glob(f"nvidia/*/lib/{name}"))
        if installed and name != _NOT_BESIDE:
            continue
        try:
            ctypes.CDLL(name)
        except OSError as error:
            if not str(error).startswith(f"{name}:"):  # a library that it needs is missing
                return f"{name} cannot be loaded ({error})"
            if installed:
                return (
                    f"{name} is installed in a folder that the linker does not search (add it to "
                    "/etc/ld.so.conf.d and run ldconfig)"
                )
            return f"{name} is missing"
    return ""


# TensorFlow without the part that builds graphs: enough to read and run a graph, in a third of the
# time.
#
# `import tensorflow` imports more than four thousand modules, of which about six hundred read and
# run graphs. The `__init__` of the package imports the others. So a stand-in for the package has
# its name while the few are imported. Any other attribute then imports all of TensorFlow, which
# includes the modules that are already imported.


class _StandIn(types.ModuleType):
    """A stand-in for TensorFlow's package."""


class _Names:
    """The attributes `given`, and all others of the object that `rest` returns."""

    def __init__(self, given: Mapping[str, Any], rest: Callable[[], Any]) -> None:
        self.__dict__.update(given)
        self._rest = rest

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._rest(), name)


def load_runner(whole: Callable[[], Any]) -> Any:
    """Import what runs graphs, under the names of `tensorflow.compat.v1`.

    `whole` imports all of it for the other names. Raises TrainingError if TensorFlow is already
    imported, or is not a package.
    """
    found = None
    if _TENSORFLOW not in sys.modules:
        found = importlib.util.find_spec(_TENSORFLOW)
    if found is None or not found.submodule_search_locations:
        raise TrainingError("TensorFlow cannot be imported partially", where="lean")
    stand_in = _StandIn(_TENSORFLOW)
    stand_in.__path__ = list(found.submodule_search_locations)
    stand_in.__spec__ = found
    stand_in.__file__ = found.origin
    sys.modules[_TENSORFLOW] = stand_in
    try:
        with uncollected():
            # TensorFlow's __init__ sets it as well. Some modules read it, and must not change when
            # the rest is imported.
            os.environ["TF2_BEHAVIOR"] = "1"
            importlib.import_module("tensorflow.python.pywrap_tensorflow")
            importlib.import_module("tensorflow.python.tf2").enable()
            train = _Names(
                {name: _found(place) for name, place in _TRAIN.items()}, lambda: whole().train
            )
            names = {name: _found(place) for name, place in _NAMES.items()}
    except BaseException:
        give_way()
        raise
    return _Names({**names, "train": train}, whole)


def stands_in() -> bool:
    """Return whether only the part is imported."""
    return isinstance(sys.modules.get(_TENSORFLOW), _StandIn)


def give_way() -> None:
    """Remove the stand-in, so that `import tensorflow` imports TensorFlow."""
    if stands_in():
        del sys.modules[_TENSORFLOW]


def _found(place: str) -> Any:
    """Import a module, or a name of it, from `module:name`."""
    module, _, name = place.partition(":")
    imported = importlib.import_module(module)
    if name:
        return getattr(imported, name)
    return imported
