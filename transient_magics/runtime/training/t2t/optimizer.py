"""Gradients of a T2T model, its optimizer, and the scale of the loss in mixed precision.

T2T's own `optimize` cannot be used: its ConditionalOptimizer calls a method that v1 optimizers do
not have on TensorFlow 2. So the model's method is called, and its request to `optimize` is carried
out here. The inner optimizer comes from T2T's registry; weight decay and noise, clipping, gradient
noise and zero gradients are the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import DeclarationError, TrainingError
from ...tf.graph_mode import tensorflow
from ..trainable import Pairs
from . import bridges

_BIAS = re.compile(r"bias(/part_\d+)?:0$")

_GROWS_AFTER = 2000
_SHRINKS_AFTER = 2
_FACTOR = 2.0


@dataclass(frozen=True)
class Request:
    """A model's request to T2T's `optimize`: to minimize `loss` over `variables`.

    `rate` is the learning rate.
    """

    loss: Any
    rate: Any
    hparams: Any
    variables: Sequence[Any]


def optimize_request(model: Any, loss: Any) -> Request:
    """Return the request of the model's own `optimize` method.

    Raises DeclarationError if the method does anything else.
    """
    from tensor2tensor.utils import optimize

    tf = bridges.cross()

    requests: list[Request] = []
    answer = tf.no_op(name="optimize")

    def note(
        loss: Any, learning_rate: Any, hparams: Any, use_tpu: bool = False, variables: Any = None
    ) -> Any:
        if variables is None:
            variables = tf.trainable_variables()
        requests.append(Request(loss, learning_rate, hparams, variables))
        return answer

    original = optimize.optimize
    optimize.optimize = note
    try:
        result = model.optimize(loss)
    finally:
        optimize.optimize = original
    if result is not answer or len(requests) != 1:
        raise DeclarationError(
            f"{type(model).__name__}.optimize must only return one "
            "tensor2tensor.utils.optimize.optimize(...)",
            fix="It can choose only the loss, learning rate, hparams and variables of that call.",
        )
    return requests[0]


def gradients(request: Request, rate: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """Return the total loss, the optimizer, and the gradients with their variables."""
    tf = bridges.cross()

    hparams = request.hparams
    total = tf.identity(_decayed(request.loss, hparams), name="total_loss")
    made = optimizer(hparams, rate)
    pairs = [
        (_as(tf, gradient, variable, hparams.optimizer_zero_grads), variable)
        for gradient, variable in made.compute_gradients(total, request.variables)
    ]
    pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    if not pairs:
        raise TrainingError("the loss has no gradient for any trainable variable")
    return total, made, pairs


def weight_noise(hparams: Any, rate: Any) -> Sequence[Any]:
    """Return operations that add T2T's noise to the variables of the model's body."""
    from tensor2tensor.utils import optimize

    tf = bridges.cross()

    body = [variable for variable in tf.trainable_variables() if "/body/" in variable.name]
    if hparams.weight_noise:
        return optimize.weight_noise(hparams.weight_noise, rate, body)
    return ()


def noisy_and_clipped(pairs: Pairs, hparams: Any) -> Pairs:
    """Return the gradients with noise and clipping, as they are applied."""
    tf = bridges.cross()

    if hparams.grad_noise_scale:
        pairs = [
            (_noisy(tf, tf.convert_to_tensor(gradient), hparams.grad_noise_scale), variable)
            for gradient, variable in pairs
        ]
    if hparams.clip_grad_norm:
        clipped, _ = tf.clip_by_global_norm(
            [gradient for gradient, _ in pairs], hparams.clip_grad_norm
        )
        pairs = list(zip(clipped, [variable for _, variable in pairs], strict=True))
    return pairs


def optimizer(hparams: Any, rate: Any) -> Any:
    """Return the optimizer that the hparams name, at this learning rate.

    It scales the loss if the hparams have a loss scaler.
    """
    from tensor2tensor.utils import optimize, registry

    made = registry.optimizer(hparams.optimizer)(rate, hparams)
    mixed = optimize._mixed_precision_is_enabled(hparams)
    if mixed and hparams.mixed_precision_optimizer_loss_scaler:
        return LossScaled(made, hparams.mixed_precision_optimizer_init_loss_scale)
    return made


def _decayed(loss: Any, hparams: Any) -> Any:
    """Return the loss with T2T's weight decay, computed by the worker.

    T2T computes it on the parameter server, whose load would grow with the number of workers.
    """
    tf = bridges.cross()

    if not hparams.weight_decay:
        return loss
    decayed = [
        tf.nn.l2_loss(variable)
        for variable in tf.trainable_variables()
        if not (len(variable.shape.as_list()) == 1 and _BIAS.search(variable.name))
    ]
    if decayed:
        return loss + tf.add_n(decayed) * hparams.weight_decay
    return loss


def _as(tf: Any, gradient: Any, variable: Any, zeros: bool) -> Any:
    """Return a gradient in the type of its variable; `zeros` replaces a missing one."""
    if gradient is None:
        if zeros:
            return tf.zeros_like(variable)
        return None
    if isinstance(gradient, tf.IndexedSlices) or gradient.dtype == variable.dtype.base_dtype:
        return gradient
    return tf.cast(gradient, variable.dtype.base_dtype)


def _noisy(tf: Any, gradient: Any, scale: float) -> Any:
    return gradient + tf.truncated_normal(tf.shape(gradient)) * scale


# The scale of the loss in mixed precision, as in tf.contrib: small gradients of float16 would be 0.
#
# The loss is multiplied by the scale, and the gradients are divided by it. Gradients that are not
# finite are not applied. The scale doubles after 2,000 applied steps, and halves after two that
# were not applied. All workers share it, and it is in the checkpoint, like any variable. A
# synchronous step checks the mean of all gradients, once. Unlike in Tensor2Tensor, a step that is
# not applied counts as a step.


class LossScaled:
    """An optimizer with a scaled loss.

    `made` is the inner optimizer. All in a graph share one scale, which begins with `initial`.
    """

    def __init__(self, made: Any, initial: float) -> None:
        tf = tensorflow()
        self._made = made
        with tf.variable_scope("mixed_precision_loss_scale", reuse=tf.AUTO_REUSE):
            self._scale, self._applied, self._refused = (
                tf.get_variable(
                    name,
                    [],
                    initializer=tf.constant_initializer(value),
                    trainable=False,
                    use_resource=True,
                )
                for name, value in (("scale", float(initial)), ("applied", 0.0), ("refused", 0.0))
            )

    def compute_gradients(self, loss: Any, variables: Any) -> Pairs:
        """Return the gradients of `loss`."""
        tf = tensorflow()
        scale = self._scale.read_value()
        pairs = self._made.compute_gradients(loss * tf.cast(scale, loss.dtype), variables)
        return [(_over(tf, gradient, scale), variable) for gradient, variable in pairs]

    def apply_gradients(self, pairs: Pairs) -> Any:
        """Return an operation that applies finite gradients, and updates the scale."""
        tf = tensorflow()
        values = [
            gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            for gradient, _ in pairs
        ]
        finite = tf.reduce_all([_finite(tf, value) for value in values])
        applied = tf.cond(finite, lambda: tf.group(self._made.apply_gradients(pairs)), tf.no_op)
        with tf.control_dependencies([applied]):
            return tf.group(*self._update_scale(tf, finite))

    def _update_scale(self, tf: Any, finite: Any) -> list[Any]:
        scale = self._scale.read_value()
        applied = tf.where(finite, self._applied.read_value() + 1.0, 0.0)
        refused = self._refused.read_value() + tf.where(finite, 0.0, 1.0)
        grows = applied >= _GROWS_AFTER
        shrinks = tf.logical_and(tf.logical_not(finite), refused >= _SHRINKS_AFTER)
        larger = tf.where(tf.is_finite(scale * _FACTOR), scale * _FACTOR, scale)
        shrunk = tf.where(shrinks, tf.maximum(1.0, scale / _FACTOR), scale)
        changed = tf.where(grows, larger, shrunk)
        reset = tf.logical_or(grows, shrinks)
        with tf.control_dependencies([changed, applied, refused]):
            return [
                self._scale.assign(changed, read_value=False),
                self._applied.assign(tf.where(reset, 0.0, applied), read_value=False),
                self._refused.assign(tf.where(reset, 0.0, refused), read_value=False),
            ]


def _finite(tf: Any, value: Any) -> Any:
    """Return whether a gradient is finite, computed where it is.

    In a synchronous step that is the parameter server that has the mean.
    """
    with tf.device(value.device):
        return tf.reduce_all(tf.is_finite(value))


def _over(tf: Any, gradient: Any, scale: Any) -> Any:
    """Return a gradient divided by the scale; None stays None."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            _over(tf, gradient.values, scale), gradient.indices, gradient.dense_shape
        )
    return gradient / tf.cast(scale, gradient.dtype)
