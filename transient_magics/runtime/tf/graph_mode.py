"""TensorFlow's version-1 interface: graphs and sessions, which is how every process of a run uses
TensorFlow.

Parameter servers that workers join and leave at any moment exist in graph mode only (placement.py).
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
"""In the environment: build graphs as on a machine with a GPU (1) or without (0), whatever this one
has.
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
"""What TensorFlow opens before it takes a GPU, in its order."""
_NOT_BESIDE = "libcusolver.so.11"
"""The one that it finds through the linker alone."""


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
    """Whether the machine for which graphs are built has a GPU. TensorFlow is not asked: it would
    take the GPU.

    One that is hidden from this process (CUDA_VISIBLE_DEVICES is -1 or empty) is none, nor one that
    TensorFlow has not the libraries for, as on a desktop where it was installed without them.
    """
    told = os.environ.get(GPU)
    if told:
        return told == "1"
    return _finds_card() and _has_libraries()


def _finds_card() -> bool:
    return os.path.exists("/proc/driver/nvidia") and os.environ.get("CUDA_VISIBLE_DEVICES") not in (
        "-1",
        "",
    )


@functools.cache
def _has_libraries() -> bool:
    return not missing_library()


_in_use: Any = None


def tensorflow() -> Any:
    """`tensorflow.compat.v1`; imported and set up when it is first asked for. After `run_only` a
    part of it.
    """
    global _in_use
    if _in_use is None:
        prepare()
        _in_use = _whole()
    return _in_use


def run_only() -> None:
    """Have `tensorflow` return what runs graphs, which takes a third of the time to import, unless
    all is there.

    Whatever else is asked of it, and `everything`, imports the rest. Raises ImportError or
    TrainingError.
    """
    global _in_use
    if _in_use is None:
        prepare()
        _in_use = load_runner(everything)


def everything() -> Any:
    """`tensorflow.compat.v1`, all of it: what builds graphs."""
    global _in_use
    if stands_in():
        give_way()
        _in_use = None
    return tensorflow()


def prepare() -> None:
    """What TensorFlow is to find in the environment when it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # A process would take all of a GPU's memory, of which others may need some. No session is
    # configured yet where a cell's Keras computes at once.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if not _finds_card():
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # do not look for what is not there


def _whole() -> Any:
    with uncollected(), _keras_later():
        tf = importlib.import_module("tensorflow.compat.v1")
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.disable_control_flow_v2()  # operations of loops and conditions are placed one by one, as all others
    # The global step follows the default kind of variable; as a resource variable its reads and
    # increments are ordered.
    tf.enable_resource_variables()
    compare_by_element()
    return tf


@contextlib.contextmanager
def _keras_later() -> Iterator[None]:
    """Let TensorFlow be imported without Keras, which is almost half of it: it comes when the cell
    asks for it.
    """
    if _KERAS in sys.modules:
        yield
        return
    # TensorFlow imports it for its side effects, and goes on where it is not there.
    sys.modules[_KERAS] = cast("Any", None)
    try:
        yield
    finally:
        del sys.modules[_KERAS]


# `==` and `!=` between tensors: element by element, as TensorFlow 2 means them, wherever the cell's
# code runs.
#
# In a version-1 graph TensorFlow compares tensors by identity, without a word: `labels == 0` is
# False there. It does otherwise only in graphs of functions with eager execution around them, whose
# variables live in the process that makes them, and not on parameter servers. So the operators look
# at who asks. TensorFlow itself, Tensor2Tensor and what else was written for graphs rely on
# identity, and keep it; all others were written for TensorFlow 2: the cell, what is sent along,
# what `--pip` installs, Keras 3, and what AutoGraph makes of them. Hashes stay those of identity,
# as version-1 code needs them (feed_dict).


def compare_by_element() -> None:
    """Have the operators of TensorFlow's tensors and variables ask whose code compares. Once per
    process.
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
    """What TensorFlow 2 does, with its own functions; `apart` is its answer on what cannot be
    broadcast.
    """
    from tensorflow.python.framework import errors, override_binary_operator
    from tensorflow.python.ops.ragged import ragged_tensor

    def asked(this: Any, other: Any) -> Any:
        if not _means_elements(sys._getframe(1)):
            return by_identity(this, other)
        if other is None:
            return apart
        if isinstance(this, ragged_tensor.RaggedTensor) or isinstance(
            other, ragged_tensor.RaggedTensor
        ):
            try:
                return ragged(this, other)
            except (errors.InvalidArgumentError, ValueError):
                return apart
        this, other = override_binary_operator.maybe_promote_tensors(this, other)
        return dense(this, other, incompatible_shape_error=False)

    return asked


def _means_elements(frame: Any) -> bool:
    """Whether the code that compares was written for TensorFlow 2. The standard library compares
    for its caller.
    """
    while frame is not None:
        if (answer := _of_file(frame.f_code.co_filename)) is not None:
            return answer
        frame = frame.f_back
    return True


@cache
def _of_file(name: str) -> bool | None:
    if found := _PACKAGE.search(name):
        return found[1] not in _BY_IDENTITY
    return None if name.startswith((_STANDARD, "<")) else True


# Which of CUDA's libraries TensorFlow would not find: without one of them it takes no GPU.
#
# TensorFlow is not asked, for it would take the GPU. Its wheel looks for the libraries beside
# itself, where pip puts them (`locks/cuda.txt`), but for one.


def missing_library(packages: Path | None = None) -> str:
    """The first library that TensorFlow would not find, a clause, or nothing. `packages`: where
    TensorFlow lies.
    """
    if packages is None:
        found = importlib.util.find_spec("tensorflow")
        if found and found.origin:
            packages = Path(found.origin).parents[1]
        else:
            packages = Path()
    for name in _LIBRARIES:
        installed = any(packages.glob(f"nvidia/*/lib/{name}"))
        if installed and name != _NOT_BESIDE:
            continue
        try:
            ctypes.CDLL(name)
        except OSError as error:
            if not str(error).startswith(f"{name}:"):  # it lacks another one itself
                return f"{name} cannot be loaded ({error})"
            where = "is installed where the linker does not look (name its folder in /etc/ld.so.conf.d, run ldconfig)"
            return f"{name} {where if installed else 'is missing'}"
    return ""


# TensorFlow without what builds graphs: enough to read one from a file and to run it, in a third of
# the time.
#
# `import tensorflow` runs more than four thousand modules; some six hundred of them import and run
# graphs. The others are named by the package's own `__init__`. So a stand-in bears that name while
# the few are imported, and whoever asks for anything else gets all of TensorFlow then: the modules
# that are there already become part of it.


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


def load_runner(whole: Callable[[], Any]) -> Any:
    """What graphs are run with, under the names of `tensorflow.compat.v1`, which `whole` imports
    for all the others.

    Raises TrainingError where TensorFlow is there already, or is no package.
    """
    if _TENSORFLOW not in sys.modules:
        found = importlib.util.find_spec(_TENSORFLOW)
    else:
        found = None
    if found is None or not found.submodule_search_locations:
        raise TrainingError("TensorFlow cannot be imported in part", where="lean")
    stand_in = _StandIn(_TENSORFLOW)
    stand_in.__path__ = list(found.submodule_search_locations)
    stand_in.__spec__ = found
    stand_in.__file__ = found.origin
    sys.modules[_TENSORFLOW] = stand_in
    try:
        with uncollected():
            # As TensorFlow's __init__ does: some modules look at it, and must not be another way
            # when the rest comes.
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
    """Whether only the part is there."""
    return isinstance(sys.modules.get(_TENSORFLOW), _StandIn)


def give_way() -> None:
    """Let `import tensorflow` import TensorFlow."""
    if stands_in():
        del sys.modules[_TENSORFLOW]


def _found(place: str) -> Any:
    module, _, name = place.partition(":")
    imported = importlib.import_module(module)
    if name:
        return getattr(imported, name)
    return imported
