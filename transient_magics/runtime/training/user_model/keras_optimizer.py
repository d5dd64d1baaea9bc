"""The optimizer of a compiled Keras model, as one of TensorFlow's version-1 optimizers.

Several workers apply gradients to the same variables at the same time. SGD, Adam, AdamW and RMSprop
have an operation of TensorFlow that updates a variable on its parameter server without losing
concurrent updates. For every other Keras optimizer, the parameter server computes Keras's own
`update_step`, one worker after the other for each variable (a critical section). That is slower;
by how much was not measured.

Where a batch uses a row of an embedding several times, its gradient is the sum of the parts. Keras
on TensorFlow squares and clips these parts separately.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....errors import DeclarationError
from ...tf.graph_mode import tensorflow

_CLIPPED = ("clipnorm", "global_clipnorm", "clipvalue")
_UNUSED = ("use_ema", "loss_scale_factor", "gradient_accumulation_steps")
_UNCALLED = ("apply", "apply_gradients", "stateless_apply", "assign", "finalize_variable_values")
"""Methods of an optimizer in whose place parameter servers do their own work."""
_RULE = ("momentum", "nesterov", "beta_1", "beta_2", "epsilon", "rho", "centered")
_FUSED = ("SGD", "Adam", "AdamW", "RMSprop")
_UNSUPPORTED: Mapping[str, str] = {
    "MultiOptimizer": "Compile the model with one optimizer for all variables.",
    "ScheduleFreeAdamW": "Use AdamW.",
}
"""Optimizers that keep values besides those of each variable, and what to use instead."""


class KerasOptimizer:
    """The rule, learning rate and clipping of a Keras optimizer. Create it outside of any graph.

    Parameters
    ----------
    optimizer
        The optimizer of a compiled model.
    begin
        The step of the run with which the optimizer began.

    Raises
    ------
    DeclarationError
        If parameter servers cannot apply it.
    """

    def __init__(self, optimizer: Any, begin: int = 0) -> None:
        self._optimizer = optimizer
        self._first_step = begin
        # Attributes rather than get_config, which a schedule of the user need not have.
        self._config = {
            name: getattr(optimizer, name, None)
            for name in (*_CLIPPED, *_UNUSED, *_RULE, "weight_decay", "amsgrad")
        }
        kind = type(optimizer).__name__
        if kind == "LossScaleOptimizer":
            raise DeclarationError(
                "mixed_float16 needs loss scaling, which is not supported on parameter servers",
                fix="Use mixed_bfloat16.",
            )
        if kind in _UNSUPPORTED:
            raise DeclarationError(
                f"the Keras optimizer {kind} is not supported on parameter servers",
                fix=_UNSUPPORTED[kind],
            )
        overridden = [name for name in _UNCALLED if _is_of_user(type(optimizer), name)]
        if overridden:
            raise DeclarationError(
                f"{kind}.{overridden[0]} is not called in a run",
                fix="Override update_step, which parameter servers call for each variable.",
            )
        unused = [name for name in _UNUSED if self._config.get(name)]
        if unused:
            raise DeclarationError(
                f"{unused[0]} of the Keras optimizer {kind} is not supported on parameter servers",
                fix="Leave it out.",
            )
        own_kind = type(optimizer) is getattr(
            importlib.import_module("keras.optimizers"), kind, None
        )
        self.fused = own_kind and kind in _FUSED and not self._config.get("amsgrad")
        self._kind = kind
        self._values = [(variable, variable.numpy()) for variable in optimizer.variables]
        self._weights: Mapping[str, Any] = {}
        self._states: Mapping[str, list[Any]] = {}
        self._begin: Mapping[str, list[Any]] = {}

    def build(self, weights: Mapping[str, Any]) -> None:
        """Learn the trained Keras weights by the names that their variables have in a graph."""
        self._weights = weights
        if any(weight.constraint is not None for weight in weights.values()):
            self.fused = False
        if self.fused:
            return
        self._optimizer.build(list(weights.values()))
        _make_stateless(self._optimizer, list(weights.values()))
        self._states = {
            name: _states_of(self._optimizer, weight) for name, weight in weights.items()
        }
        self._begin = {
            name: [state.numpy() for state in states] for name, states in self._states.items()
        }
        self._values = [(variable, variable.numpy()) for variable in self._optimizer.variables]

    def parts(self) -> Mapping[str, Any]:
        """Return the optimizer's part of a model_fn's answer (trainable.py).

        A schedule follows the optimizer's own steps.
        """
        tf = tensorflow()
        step = tf.train.get_or_create_global_step().read_value() - self._first_step
        with self._at(step):
            rate = tf.convert_to_tensor(self._optimizer.learning_rate)
        return {
            "optimizer": lambda rate: self._rule(rate, step),
            "learning_rate": rate,
            "clip": self._clip,
        }

    def _at(self, step: Any, changed: Sequence[tuple[Any, Any]] = ()) -> Any:
        """Return a scope with the optimizer's values at a step, and those changed."""
        tf = tensorflow()
        keras = importlib.import_module("keras")
        iterations = self._optimizer.iterations
        replaced = {id(variable) for variable, _ in changed}
        values: list[tuple[Any, Any]] = [(iterations, tf.cast(step, iterations.dtype))]
        for variable, value in self._values:
            if variable is not iterations and id(variable) not in replaced and value.ndim == 0:
                values.append((variable, tf.constant(value)))
        return keras.StatelessScope(state_mapping=[*values, *changed])

    def _rule(self, rate: Any, step: Any) -> Any:
        if not self.fused:
            return _own_rule(self, rate, step)
        make = {"SGD": _sgd, "Adam": _adam, "AdamW": _adam, "RMSprop": _rmsprop}[self._kind]
        return make(rate, self._config, self._decay)

    def _decay(self, variable: Any) -> float:
        """Return the weight decay of a variable; 0 if it has none."""
        decay = self._config.get("weight_decay")
        if not decay:
            return 0.0
        weight = self._weights[variable_name(variable)]
        return float(decay) if self._optimizer._use_weight_decay(weight) else 0.0

    def updated(
        self, variable: Any, value: Any, states: Sequence[Any], gradient: Any, rate: Any, step: Any
    ) -> tuple[Any, list[Any]]:
        """Return the new value of a variable and of its states, by Keras's own `update_step`."""
        tf = tensorflow()
        name = variable_name(variable)
        weight = self._weights[name]
        optimizer = self._optimizer
        rate = tf.cast(rate, value.dtype)
        decay = self._decay(variable)
        if decay:
            value -= value * tf.cast(decay, value.dtype) * rate
        own = list(zip(self._states[name], states, strict=True))
        changed = [(weight, value), *own]
        for state, current in own:
            if state is getattr(optimizer, "_u_product", None):
                # Nadam multiplies this product in a method that TensorFlow's optimizers override.
                count = tf.cast(step + 1, value.dtype)
                factor = optimizer.beta_1 * (1.0 - 0.5 * tf.pow(tf.cast(0.96, value.dtype), count))
                changed = [
                    (target, current * factor if target is state else other)
                    for target, other in changed
                ]
        with self._at(step, changed) as scope:
            optimizer.update_step(gradient, weight, rate)
        after = scope.get_current_value(weight)
        if weight.constraint is not None:
            after = weight.constraint(after)
        return after, [scope.get_current_value(state) for state in self._states[name]]

    def states(self, variable: Any) -> list[Any]:
        """Return the values with which the states of a variable begin."""
        return self._begin[variable_name(variable)]

    def _clip(self, gradients: list[Any]) -> list[Any]:
        """Clip gradients as Keras does, by one of the three limits at most."""
        tf = tensorflow()
        config = self._config
        if any(config.get(name) for name in _CLIPPED):
            gradients = [summed(gradient) for gradient in gradients]
        if limit := config.get("clipnorm"):
            return [tf.clip_by_norm(gradient, limit) for gradient in gradients]
        if limit := config.get("global_clipnorm"):
            return tf.clip_by_global_norm(gradients, limit)[0]
        if limit := config.get("clipvalue"):
            return [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]
        return gradients


def _is_of_user(kind: type, name: str) -> bool:
    """Return whether a class outside of Keras defines the method `name` of an optimizer."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    return owner is not None and not owner.__module__.startswith("keras.")


def variable_name(variable: Any) -> str:
    """Return the name of a graph's variable, without that of its part if it is cut."""
    name = variable.op.name
    head, _, last = name.rpartition("/")
    return head if last.startswith("part_") else name


def summed(gradient: Any) -> Any:
    """Return the gradient with one entry for each row of an embedding.

    That is how it is clipped after a synchronous step, in which all gradients are dense.
    """
    tf = tensorflow()
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _make_stateless(optimizer: Any, weights: Sequence[Any]) -> None:
    """Let a built optimizer work on Keras variables, so that a StatelessScope sees what it assigns.

    Optimizers of Keras's TensorFlow backend work on the variables of TensorFlow below them.
    """
    base = importlib.import_module("keras.src.optimizers.base_optimizer").BaseOptimizer
    for name in ("assign", "assign_add", "assign_sub"):
        object.__setattr__(optimizer, name, types.MethodType(getattr(base, name), optimizer))
    indices = {id(weight): optimizer._get_variable_index(weight) for weight in weights}

    def index_of(weight: Any) -> int:
        return indices[id(weight)]

    object.__setattr__(optimizer, "_get_variable_index", index_of)


def _states_of(optimizer: Any, weight: Any) -> list[Any]:
    """Return the variables of a built optimizer that the update of one weight assigns."""
    keras = importlib.import_module("keras")
    with keras.StatelessScope() as scope:
        optimizer.update_step(keras.ops.zeros(weight.shape, weight.dtype), weight, 0.0)
        updated = list(scope.state_mapping)
    found = [
        variable
        for variable in _variables_of(optimizer)
        if id(variable) in updated and variable is not weight
    ]
    product = getattr(optimizer, "_u_product", None)
    return [*found, product] if product is not None else found


def _variables_of(optimizer: Any) -> list[Any]:
    """Return all variables of an optimizer, also those in lists that Keras does not track."""
    keras = importlib.import_module("keras")
    found: dict[int, Any] = {id(variable): variable for variable in optimizer.variables}
    for value in vars(optimizer).values():
        for variable in value if isinstance(value, list | tuple) else [value]:
            if isinstance(variable, keras.Variable):
                found[id(variable)] = variable
    return list(found.values())


def _own_rule(kept: KerasOptimizer, rate: Any, step: Any) -> Any:
    """Return an optimizer that computes Keras's own update on the device of each variable."""
    tf = tensorflow()

    class OwnRule(tf.train.Optimizer):
        """Updates a variable and its states in a critical section on their parameter server."""

        def __init__(self) -> None:
            super().__init__(use_locking=True, name=kept._kind)

        def _create_slots(self, var_list: Any) -> None:
            for variable in var_list:
                for number, value in enumerate(kept.states(variable)):
                    self._create_state(variable, number, value)

        def _create_state(self, variable: Any, number: int, value: Any) -> None:
            if value.shape == tuple(variable.shape.as_list()):
                shape = variable.shape
            else:
                shape = tf.TensorShape(value.shape)

            def initial(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
                # All optimizers of Keras begin with one number for the whole state.
                first = value.flat[0] if value.size else 0
                return tf.fill(shape, tf.constant(first, dtype))

            self._get_or_make_slot_with_initializer(
                variable, initial, shape, tf.as_dtype(value.dtype), f"state_{number}", self._name
            )

        def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
            from tensorflow.python.framework import ops

            slots = [
                self.get_slot(var, f"state_{number}") for number in range(len(kept.states(var)))
            ]

            def update() -> Any:
                value = var.read_value()
                states = [slot.read_value() for slot in slots]
                after, new = kept.updated(var, value, states, grad, rate, step)
                with tf.control_dependencies([after, *new]):
                    done = [var.assign(after, read_value=False)]
                    for slot, state in zip(slots, new, strict=True):
                        done.append(slot.assign(tf.reshape(state, slot.shape), read_value=False))
                with tf.control_dependencies(done):
                    return tf.constant(0)

            with (
                ops.colocate_with(None, ignore_existing=True),
                tf.device(var.device),
                tf.control_dependencies([grad, rate]),
            ):
                section = tf.CriticalSection(shared_name=f"{var.op.name}/update")
                return section.execute(update).op

        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
            return self._resource_apply_dense(_whole(grad, var, indices), var)

    return OwnRule()


def _whole(gradient: Any, variable: Any, indices: Any) -> Any:
    tf = tensorflow()
    shape = tf.shape(variable, out_type=indices.dtype)
    return tf.scatter_nd(tf.expand_dims(indices, 1), gradient, shape)


Decay = Callable[[Any], float]


def _sgd(rate: Any, config: Mapping[str, Any], decay: Decay) -> Any:
    train = tensorflow().train
    if not config["momentum"]:
        return _decaying(train.GradientDescentOptimizer, rate, decay)(rate)

    class Momentum(_dense(train.MomentumOptimizer)):
        """Keras's momentum, in which each gradient keeps the learning rate that it had."""

        def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
            from tensorflow.python.ops import gen_training_ops

            kind = var.dtype.base_dtype
            momentum = self.get_slot(var, "momentum")
            cast = tensorflow().cast
            return gen_training_ops.resource_apply_keras_momentum(
                var.handle,
                momentum.handle,
                cast(self._learning_rate_tensor, kind),
                grad,
                cast(self._momentum_tensor, kind),
                use_locking=False,
                use_nesterov=self._use_nesterov,
            )

    return _decaying(Momentum, rate, decay)(
        rate, config["momentum"], use_nesterov=config["nesterov"], name="KerasMomentum"
    )


def _adam(rate: Any, config: Mapping[str, Any], decay: Decay) -> Any:
    kind = _decaying(tensorflow().train.AdamOptimizer, rate, decay)
    return kind(rate, config["beta_1"], config["beta_2"], config["epsilon"])


def _rmsprop(rate: Any, config: Mapping[str, Any], decay: Decay) -> Any:
    class FromZero(_dense(tensorflow().train.RMSPropOptimizer)):
        """RMSprop whose mean squares begin with zero as Keras's do, and not with one."""

        def _create_slots(self, var_list: Any) -> None:
            for variable in var_list:
                for name in ("rms", "momentum", *(["mg"] if self._centered else [])):
                    self._zeros_slot(variable, name, self._name)

    return _decaying(FromZero, rate, decay)(
        rate, config["rho"], config["momentum"], config["epsilon"], centered=config["centered"]
    )


def _dense(optimizer: Any) -> Any:
    """Return the optimizer with Keras's rule, which also moves rows without a gradient."""

    class Dense(optimizer):
        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
            return self._resource_apply_dense(_whole(grad, var, indices), var)

    return Dense


def _decaying(optimizer: Any, rate: Any, decay: Decay) -> Any:
    """Return the optimizer with weight decay before each update, decoupled from the gradient.

    The decay is subtracted in one operation, so that no concurrent update is lost.
    """

    class Decaying(optimizer):
        def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
            with tensorflow().control_dependencies(self._decayed(var)):
                return super()._resource_apply_dense(grad, var)

        def _resource_apply_sparse_duplicate_indices(
            self, grad: Any, handle: Any, indices: Any
        ) -> Any:
            with tensorflow().control_dependencies(self._decayed(handle)):
                return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)

        def _decayed(self, var: Any) -> list[Any]:
            share = decay(var)
            if not share:
                return []
            tf = tensorflow()
            value = var.read_value()
            lost = value * tf.cast(share, value.dtype) * tf.cast(rate, value.dtype)
            return [var.assign_sub(lost, read_value=False)]

    return Decaying
