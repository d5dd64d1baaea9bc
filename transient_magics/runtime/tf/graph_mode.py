"""TensorFlow's version-1 interface: graphs and sessions, which is how every process of a run uses TensorFlow.

Parameter servers that workers join and leave at any moment exist in graph mode only (placement.py). Outside of a graph
eager execution stays on, unless Tensor2Tensor's bridges were crossed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any, cast

from ...imports import uncollected
from . import comparison, cuda, lean

GPU = "TRANSIENT_GPU"
"""In the environment: build graphs as on a machine with a GPU (1) or without (0), whatever this one has."""

_KERAS = "keras.src.optimizers"


def has_gpu() -> bool:
    """Whether the machine for which graphs are built has a GPU. TensorFlow is not asked: it would take the GPU.

    One that is hidden from this process (CUDA_VISIBLE_DEVICES is -1 or empty) is none, nor one that TensorFlow has not
    the libraries for, as on a desktop where it was installed without them.
    """
    told = os.environ.get(GPU)
    return told == "1" if told else _finds_card() and _has_libraries()


def _finds_card() -> bool:
    return os.path.exists("/proc/driver/nvidia") and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("-1", "")


@functools.cache
def _has_libraries() -> bool:
    return not cuda.missing_library()


_in_use: Any = None


def tensorflow() -> Any:
    """`tensorflow.compat.v1`; imported and set up when it is first asked for. After `run_only` a part of it."""
    global _in_use
    if _in_use is None:
        prepare()
        _in_use = _whole()
    return _in_use


def run_only() -> None:
    """Have `tensorflow` return what runs graphs, which takes a third of the time to import, unless all is there.

    Whatever else is asked of it, and `everything`, imports the rest. Raises ImportError or TrainingError.
    """
    global _in_use
    if _in_use is None:
        prepare()
        _in_use = lean.load(everything)


def everything() -> Any:
    """`tensorflow.compat.v1`, all of it: what builds graphs."""
    global _in_use
    if lean.stands_in():
        lean.give_way()
        _in_use = None
    return tensorflow()


def prepare() -> None:
    """What TensorFlow is to find in the environment when it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # A process would take all of a GPU's memory, of which others may need some. No session is configured yet where a
    # cell's Keras computes at once.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if not _finds_card():
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # do not look for what is not there


def _whole() -> Any:
    with uncollected(), _keras_later():
        tf = importlib.import_module("tensorflow.compat.v1")
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.disable_control_flow_v2()  # operations of loops and conditions are placed one by one, as all others
    # The global step follows the default kind of variable; as a resource variable its reads and increments are ordered.
    tf.enable_resource_variables()
    comparison.compare_by_element()
    return tf


@contextlib.contextmanager
def _keras_later() -> Iterator[None]:
    """Let TensorFlow be imported without Keras, which is almost half of it: it comes when the cell asks for it."""
    if _KERAS in sys.modules:
        yield
        return
    # TensorFlow imports it for its side effects, and goes on where it is not there.
    sys.modules[_KERAS] = cast("Any", None)
    try:
        yield
    finally:
        del sys.modules[_KERAS]
