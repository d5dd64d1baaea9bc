"""The graph of a synchronous step: workers push gradients, the chief takes their mean and applies it once.

Every variable has an accumulator on its own parameter server, so gradients travel as far as in asynchronous training.
Gradients are tagged with a round, and an accumulator drops those of an earlier one. Rounds are like steps, except that
they never go back: after a restore the global step repeats, and a gradient of the variables that were lost must not
pass for one of the step with the same number.

Gradients come multiplied by their weight, the number of examples whose mean they are. One more accumulator takes the
weights themselves, by whose mean the others' means are divided: what is applied is the mean over all examples. It also
counts complete pushes. A worker reaches it after all others, the chief takes from it before all others; so whoever is
counted is in every mean. A worker that dies in the middle of its push has added to some means
and not to others. Each accumulator divides by its own count, so each variable still moves by a mean of gradients of
this very step, only over one batch more or less.

Sparse gradients (of embeddings) travel as they are and become dense on the parameter server. TensorFlow's
SparseConditionalAccumulator would divide each row by the number of workers that touched it: rare rows would move too
far, and the step would not be that of one large batch. The price is that lazy optimizers see dense gradients.

State that layers assign (state.py) has accumulators too. Each worker pushes the new value that it computed, and the
chief assigns the plain mean of these values: every replica counts once, as in Keras's own synchronous training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ...tf.graph_mode import tensorflow
from ..trainable import Objective, Pairs
from .state import State, parts


class Accumulators:
    """Accumulators of a model's variables and states, shared by name between the chief's graph and every worker's."""

    def __init__(self, variables: Sequence[Any], global_step: Any, states: Sequence[State] = ()) -> None:
        tf = tensorflow()
        self.round = tf.placeholder(tf.int64, [], name="round")
        self._variables, self._global_step = variables, global_step
        self._each = [_accumulator(tf, variable) for variable in variables]
        cut = [part for state in states for part in parts(state.variable, state.new)]
        self._states = [(variable, new, _state_accumulator(tf, variable)) for variable, new in cut]
        self._home = global_step.device
        with tf.device(self._home):
            self._complete = tf.ConditionalAccumulator(tf.float32, [], shared_name="transient_complete_pushes")
            self._current = tf.Variable(
                tf.zeros([], tf.int64), trainable=False, collections=[], name="transient_round", use_resource=True
            )
            number = self._current.read_value()
            with tf.control_dependencies([number]):
                # The step is counted before the round ends: a new round never comes with an old step.
                self.position = number, tf.identity(global_step.read_value())

    # --- a worker's side ---------------------------------------------------------------------------------------------
    def push(self, pairs: Pairs, weight: Any) -> Any:
        """An operation that adds the gradients of `pairs`, already times `weight`, and the states.

        They are tagged with the fed round. `seen` is the round just before the push is complete. A round that waits for
        this worker cannot have ended by then; if it has, the gradients came late and were dropped.
        """
        tf = tensorflow()
        pushed: list[Any] = []
        for (gradient, variable), accumulator in zip(pairs, self._each, strict=True):
            with tf.device(variable.device):
                pushed.append(accumulator.apply_grad(tf.convert_to_tensor(gradient), local_step=self.round))
        for variable, new, accumulator in self._states:
            with tf.device(variable.device):
                pushed.append(accumulator.apply_grad(tf.cast(new, accumulator.dtype), local_step=self.round))
        with tf.control_dependencies(pushed), tf.device(self._home):
            self.seen = self._current.read_value()
        with tf.control_dependencies([self.seen]), tf.device(self._home):
            return self._complete.apply_grad(weight, local_step=self.round)

    # --- the chief's side --------------------------------------------------------------------------------------------
    def build_update(self, objective: Objective) -> None:
        """Build what ends a round: take the means, apply them once, count the step, open the next round.

        Noise and clipping come after the mean, as in a step of one process on all batches.
        """
        tf = tensorflow()
        self.needed = tf.placeholder(tf.int32, [], name="needed")
        with tf.device(self._home):
            self.complete = self._complete.num_accumulated()
            weight = tf.maximum(self._complete.take_grad(self.needed), 1e-9)
        means: list[tuple[Any, Any]] = []
        for accumulator, variable in zip(self._each, self._variables, strict=True):
            with tf.control_dependencies([weight]), tf.device(variable.device):
                mean = accumulator.take_grad(self.needed)
                means.append((mean / tf.cast(weight, mean.dtype), variable))
        states = [self._assigned(variable, accumulator, weight) for variable, _, accumulator in self._states]
        applied = objective.optimizer.apply_gradients(objective.finished(means))
        with tf.control_dependencies([applied]):
            disturbed = objective.disturbances()
        with tf.control_dependencies([applied, *states, *disturbed]):
            stepped = self._global_step.assign_add(1, read_value=False)
        with tf.control_dependencies([stepped]):
            opened = self._current.assign(self.round + 1, read_value=False)
        with tf.control_dependencies([opened]):
            self.update = tf.identity(self._global_step.read_value())
        self._build_opening(tf)

    def _assigned(self, variable: Any, accumulator: Any, weight: Any) -> Any:
        tf = tensorflow()
        kind = variable.dtype.base_dtype
        with tf.control_dependencies([weight]), tf.device(variable.device):
            mean = accumulator.take_grad(self.needed)
            if kind.is_integer:
                mean = tf.round(mean)
            value = mean > 0.5 if kind.is_bool else tf.cast(mean, kind)
            return variable.assign(value, read_value=False)

    def _build_opening(self, tf: Any) -> None:
        homes = [(self._home, self._complete)]
        homes += [(variable.device, each) for variable, each in zip(self._variables, self._each, strict=True)]
        homes += [(variable.device, each) for variable, _, each in self._states]
        self._set, self._held, self._discard = [], [], []
        for device, accumulator in homes:
            with tf.device(device):
                self._set.append(accumulator.set_global_step(self.round))
                self._held.append(accumulator.num_accumulated())
                self._discard.append(accumulator.take_grad(1).op)
        self._announce = self._current.assign(self.round, read_value=False)

    def open(self, session: Any) -> None:
        """Start a round later than any before it, with nothing in the accumulators.

        Once the variables hold what they should, and whenever a round may have ended half-way. From the first line on
        no earlier gradient comes in, so what is there then is all that has to go. Workers learn of it last.
        """
        number = {self.round: time.time_ns()}
        session.run(self._set, number)
        held = session.run(self._held)
        if leftovers := [discard for discard, count in zip(self._discard, held, strict=True) if count]:
            session.run(leftovers)
            session.run(self._set, number)  # each take advanced its accumulator
        session.run(self._announce, number)


def _accumulator(tf: Any, variable: Any) -> Any:
    with tf.device(variable.device):
        name = f"transient_gradient/{variable.op.name}"
        return tf.ConditionalAccumulator(variable.dtype.base_dtype, variable.shape, shared_name=name)


def _state_accumulator(tf: Any, variable: Any) -> Any:
    kind = variable.dtype.base_dtype
    wide = tf.float64 if kind.is_integer or kind == tf.float64 else tf.float32  # there are none of whole numbers
    with tf.device(variable.device):
        return tf.ConditionalAccumulator(wide, variable.shape, shared_name=f"transient_state/{variable.op.name}")
