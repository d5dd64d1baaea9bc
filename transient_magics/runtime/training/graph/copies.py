"""The variables of a worker that trains alone: on its own device, and handed to the parameter server now and then.

With nobody to share them, no step need wait for another process. The parameter server stays their home: the worker
begins with what is there, and saved and evaluated is what it has handed over. Each that begins puts its number there;
one whose place another has taken meanwhile, as after a freeze, finds a number that is not its own and hands nothing
over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...tf.graph_mode import tensorflow

_HOME = "/job:ps/task:0"


@dataclass(frozen=True)
class Copies:
    """Operations, to which `number` is fed, that of the worker: `pull` takes the place and the values, `push` hands
    the values over, the global step last; it raises InvalidArgumentError where another has the place."""

    pull: Any
    push: Any
    number: Any


def copies(run: str, variables: Sequence[Any], global_step: Any) -> Copies:
    """Add them to a graph with these variables, all of them on the worker; `global_step` is one of them."""
    tf = tensorflow()
    with tf.device(_HOME):
        owner = tf.Variable(0, trainable=False, collections=[], name=f"transient_owner_{run}", use_resource=True)
        number = tf.placeholder(tf.int32, [], name="transient_number")
        with tf.control_dependencies([owner.assign(number, read_value=False)]):
            there = [_read(tf, variable) for variable in variables]
        mine = tf.debugging.Assert(tf.equal(owner.read_value(), number), [number], name="transient_mine")
    pull = [variable.assign(value, read_value=False) for variable, value in zip(variables, there, strict=True)]
    with tf.control_dependencies([mine]):
        pushed = [_write(tf, variable) for variable in variables if variable is not global_step]
    with tf.control_dependencies(pushed):
        last = _write(tf, global_step)
    return Copies(tf.group(*pull, name="transient_pull"), tf.group(last, name="transient_push"), number)


def _home_of(tf: Any, variable: Any) -> Any:
    """The handle of the variable of this name on the parameter server."""
    here = variable.handle.op
    with tf.device(_HOME):
        return tf.raw_ops.VarHandleOp(
            dtype=variable.dtype.base_dtype,
            shape=variable.shape,
            shared_name=here.get_attr("shared_name").decode(),
            container=here.get_attr("container").decode(),
        )


def _read(tf: Any, variable: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=_home_of(tf, variable), dtype=variable.dtype.base_dtype)


def _write(tf: Any, variable: Any) -> Any:
    with tf.device(variable.device):
        value = variable.read_value()
    return tf.raw_ops.AssignVariableOp(resource=_home_of(tf, variable), value=value)
