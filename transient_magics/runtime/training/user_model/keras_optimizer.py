"""The optimizer of a compiled Keras model as one of TensorFlow's version-1 optimizers.

Those update a variable on its parameter server with one operation, which is what lets workers apply gradients at the
same time; Keras's own would read, compute and assign, and lose what others did in between. Only optimizers that compute
the same both ways are taken.

Where a batch uses a row of an embedding several times, its gradient is the sum here, whichever optimizer and mode.
Keras on TensorFlow squares and clips the parts of that sum one by one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ....errors import DeclarationError
from ...tf.graph_mode import tensorflow

_CLIPPED = ("clipnorm", "global_clipnorm", "clipvalue")
_UNUSED = ("weight_decay", "use_ema", "amsgrad", "loss_scale_factor", "gradient_accumulation_steps")
_RULE = ("momentum", "nesterov", "beta_1", "beta_2", "epsilon", "rho", "centered")


class KerasOptimizer:
    """An optimizer's rule, learning rate and clipping. Made outside of any graph."""

    def __init__(self, optimizer: Any) -> None:
        """Raises DeclarationError if there is none like it."""
        self._optimizer = optimizer
        # Its get_config would write out its schedule, which needs none of its own.
        self._config = {name: getattr(optimizer, name, None) for name in (*_CLIPPED, *_UNUSED, *_RULE)}
        kind = type(optimizer).__name__
        if kind == "LossScaleOptimizer":
            what = "mixed_float16 needs its loss scaled, which is not supported on parameter servers"
            raise DeclarationError(what, fix="Use mixed_bfloat16.")
        if kind not in _RULES:
            fix = f"Compile the model with {', '.join(_RULES)}, or define model_fn, which may use any of tf.compat.v1."
            raise DeclarationError(f"the Keras optimizer {kind} is not supported on parameter servers", fix=fix)
        if unused := [name for name in _UNUSED if self._config.get(name)]:
            raise DeclarationError(
                f"{unused[0]} of the Keras optimizer {kind} is not supported on parameter servers", fix="Leave it out."
            )
        self._rule = _RULES[kind]
        self._values = [(each, each.numpy()) for each in optimizer.variables]

    def parts(self) -> Mapping[str, Any]:
        """What a model_fn says about its optimizer: see own.trainable. The schedule follows the global step."""
        tf, keras = tensorflow(), importlib.import_module("keras")
        step = tf.train.get_or_create_global_step().read_value()
        iterations = self._optimizer.iterations
        values = [(each, step if each is iterations else tf.constant(value)) for each, value in self._values]
        with keras.StatelessScope(state_mapping=values):
            rate = tf.convert_to_tensor(self._optimizer.learning_rate)
        return {"optimizer": lambda rate: self._rule(rate, self._config), "learning_rate": rate, "clip": self._clip}

    def _clip(self, gradients: list[Any]) -> list[Any]:
        """As Keras does it: one of the three at most."""
        tf, config = tensorflow(), self._config
        if any(config.get(name) for name in _CLIPPED):
            gradients = [_summed(tf, gradient) for gradient in gradients]
        if limit := config.get("clipnorm"):
            return [tf.clip_by_norm(gradient, limit) for gradient in gradients]
        if limit := config.get("global_clipnorm"):
            return tf.clip_by_global_norm(gradients, limit)[0]
        if limit := config.get("clipvalue"):
            return [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]
        return gradients


def _summed(tf: Any, gradient: Any) -> Any:
    """Of an embedding, one gradient for each row, as it is clipped behind a synchronous step, where all are dense."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _sgd(rate: Any, config: Mapping[str, Any]) -> Any:
    train = tensorflow().train
    if not config["momentum"]:
        return train.GradientDescentOptimizer(rate)

    class Momentum(_dense(train.MomentumOptimizer)):
        """Of TensorFlow's two momenta the one that is Keras's: each gradient keeps the learning rate that it had."""

        def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
            from tensorflow.python.ops import gen_training_ops

            kind, momentum = var.dtype.base_dtype, self.get_slot(var, "momentum")
            rate, share = (
                tensorflow().cast(value, kind) for value in (self._learning_rate_tensor, self._momentum_tensor)
            )
            return gen_training_ops.resource_apply_keras_momentum(
                var.handle, momentum.handle, rate, grad, share, use_locking=False, use_nesterov=self._use_nesterov
            )

    return Momentum(rate, config["momentum"], use_nesterov=config["nesterov"], name="KerasMomentum")


def _adam(rate: Any, config: Mapping[str, Any]) -> Any:
    return tensorflow().train.AdamOptimizer(rate, config["beta_1"], config["beta_2"], config["epsilon"])


def _rmsprop(rate: Any, config: Mapping[str, Any]) -> Any:
    class FromZero(_dense(tensorflow().train.RMSPropOptimizer)):
        """TensorFlow's mean squares begin with one, Keras's with zero."""

        def _create_slots(self, var_list: Any) -> None:
            for variable in var_list:
                for name in ("rms", "momentum", *(["mg"] if self._centered else [])):
                    self._zeros_slot(variable, name, self._name)

    return FromZero(rate, config["rho"], config["momentum"], config["epsilon"], centered=config["centered"])


def _dense(optimizer: Any) -> Any:
    """TensorFlow's rules leave a variable's rows alone that have no gradient (of embeddings), Keras's move them too."""

    class Dense(optimizer):
        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
            tf = tensorflow()
            whole = tf.scatter_nd(tf.expand_dims(indices, 1), grad, tf.shape(var, out_type=indices.dtype))
            return self._resource_apply_dense(whole, var)

    return Dense


_RULES: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {"SGD": _sgd, "Adam": _adam, "RMSprop": _rmsprop}
