"""`==` and `!=` between tensors: element by element, as TensorFlow 2 means them, wherever the cell's code runs.

In a version-1 graph TensorFlow compares tensors by identity, without a word: `labels == 0` is False there. It does
otherwise only in graphs of functions with eager execution around them, whose variables live in the process that makes
them, and not on parameter servers. So the operators look at who asks. TensorFlow itself, Tensor2Tensor and what else
was written for graphs rely on identity, and keep it; all others were written for TensorFlow 2: the cell, what is sent
along, what `--pip` installs, Keras 3, and what AutoGraph makes of them. Hashes stay those of identity, as version-1
code needs them (feed_dict).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

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


def compare_by_element() -> None:
    """Have the operators of TensorFlow's tensors and variables ask whose code compares. Once per process."""
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
    by_identity: Callable[..., Any], dense: Callable[..., Any], ragged: Callable[..., Any], apart: bool
) -> Callable[[Any, Any], Any]:
    """What TensorFlow 2 does, with its own functions; `apart` is its answer on what cannot be broadcast."""
    from tensorflow.python.framework import errors, override_binary_operator
    from tensorflow.python.ops.ragged import ragged_tensor

    def asked(this: Any, other: Any) -> Any:
        if not _means_elements(sys._getframe(1)):
            return by_identity(this, other)
        if other is None:
            return apart
        if isinstance(this, ragged_tensor.RaggedTensor) or isinstance(other, ragged_tensor.RaggedTensor):
            try:
                return ragged(this, other)
            except (errors.InvalidArgumentError, ValueError):
                return apart
        this, other = override_binary_operator.maybe_promote_tensors(this, other)
        return dense(this, other, incompatible_shape_error=False)

    return asked


def _means_elements(frame: Any) -> bool:
    """Whether the code that compares was written for TensorFlow 2. The standard library compares for its caller."""
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
