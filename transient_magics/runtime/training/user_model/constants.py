"""Tensors that the cell computed when it ran, as constants of the graphs that use them.

A table of class weights, say, which a loss multiplies with. TensorFlow takes such tensors into the graphs of its
functions only. Variables outside of the model cannot be had: no parameter server knows them.
"""

from __future__ import annotations

from typing import Any

from ....errors import DeclarationError

_refused = 0


def refusals() -> int:
    """How often a graph was refused what exists outside of graphs only. Datasets can then be made outside of them."""
    return _refused


def keep_as_constants() -> None:
    """Let graphs take in what was computed outside of them. Variables raise DeclarationError. Once per process."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import dtypes, ops

    eager: Any = ops.EagerTensor.__mro__[1]
    converted = eager.__tf_tensor__

    def __tf_tensor__(self: Any, dtype: Any = None, name: str | None = None) -> Any:
        if context.executing_eagerly() or ops.get_default_graph().building_function:
            return converted(self, dtype, name)
        if self.dtype in (dtypes.resource, dtypes.variant):
            global _refused
            _refused += 1
            raise DeclarationError(
                "a variable (or another object) outside of the model is used in it",
                fix="Make it a weight of the model, with a layer's add_weight, or a constant.",
            )
        if dtype is not None and not dtype.is_compatible_with(self.dtype):
            raise ValueError(f"a tensor of {self.dtype.name} was computed where {dtype.name} is needed")
        return self._capture_as_const(name)

    eager.__tf_tensor__ = __tf_tensor__
