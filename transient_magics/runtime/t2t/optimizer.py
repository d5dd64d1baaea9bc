"""Gradients of a T2T model, and the optimizer that applies them.

T2T's own `optimize` cannot be used: its ConditionalOptimizer asks v1 optimizers for a method they do not have on
TensorFlow 2. So the inner optimizer is taken from T2T's registry and the same steps are done here: weight decay and
noise, clipping, gradient noise, zero gradients.
"""

from __future__ import annotations

from typing import Any

from ...errors import TrainingError
from ..trainable import Pairs
from . import bridges


def learning_rate(hparams: Any, divisor: Any) -> Any:
    """The hparams' schedule at the global step, divided by `divisor` (a scalar that is fed)."""
    from tensor2tensor.utils import learning_rate as schedules

    return schedules.learning_rate_schedule(hparams) / divisor


def gradients(loss: Any, hparams: Any, rate: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """The total loss, the optimizer, and the gradients with their variables, as the model alone gives them."""
    from tensor2tensor.utils import optimize

    tf = bridges.cross()

    variables = tf.trainable_variables()
    total = tf.identity(_decayed(optimize, loss, hparams, rate, variables), name="total_loss")
    if getattr(hparams, "gpu_automatic_mixed_precision", False):
        raise NotImplementedError("hparams.gpu_automatic_mixed_precision is not supported")
    made = optimizer(hparams, rate)
    pairs = [
        (_as(tf, gradient, variable, hparams.optimizer_zero_grads), variable)
        for gradient, variable in made.compute_gradients(total, variables)
    ]
    pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    if not pairs:
        raise TrainingError("no variable of the model gets a gradient from its loss")
    return total, made, pairs


def noisy_and_clipped(pairs: Pairs, hparams: Any) -> Pairs:
    """The gradients as they are applied."""
    tf = bridges.cross()

    if hparams.grad_noise_scale:
        pairs = [(_noisy(tf, gradient, hparams.grad_noise_scale), variable) for gradient, variable in pairs]
    if hparams.clip_grad_norm:
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], hparams.clip_grad_norm)
        pairs = list(zip(clipped, [variable for _, variable in pairs], strict=True))
    return pairs


def optimizer(hparams: Any, rate: Any) -> Any:
    """The optimizer that the hparams name, at this learning rate."""
    from tensor2tensor.utils import registry

    return registry.optimizer(hparams.optimizer)(rate, hparams)


def _decayed(optimize: Any, loss: Any, hparams: Any, rate: Any, variables: list[Any]) -> Any:
    """T2T's weight decay, computed by the worker.

    T2T computes it on the parameter server, which would be everybody's.
    """
    tf = bridges.cross()

    noise = optimize.weight_noise(hparams.weight_noise, rate, [item for item in variables if "/body/" in item.name])
    with tf.control_dependencies(noise):
        loss = tf.identity(loss)
    if not hparams.weight_decay:
        return loss
    decayed = [
        tf.nn.l2_loss(variable)
        for variable in variables
        if not (len(variable.shape.as_list()) == 1 and variable.name.endswith("bias:0"))
    ]
    return loss + tf.add_n(decayed) * hparams.weight_decay if decayed else loss


def _as(tf: Any, gradient: Any, variable: Any, zeros: bool) -> Any:
    if gradient is None:
        return tf.zeros_like(variable) if zeros else None
    if isinstance(gradient, tf.IndexedSlices) or gradient.dtype == variable.dtype.base_dtype:
        return gradient
    return tf.cast(gradient, variable.dtype.base_dtype)


def _noisy(tf: Any, gradient: Any, scale: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values + tf.truncated_normal(tf.shape(gradient.values)) * scale
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient + tf.truncated_normal(tf.shape(gradient)) * scale
