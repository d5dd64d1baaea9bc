"""Gradients of a T2T model and the operation that applies them.

T2T's own `optimize` cannot be used: its ConditionalOptimizer asks v1 optimizers for a method they do not have on
TensorFlow 2. So the inner optimizer is taken from T2T's registry and the same steps are done here: weight decay and
noise, clipping, gradient noise, zero gradients, the batch-norm updates. New are the divisor of the learning rate and
the share of the gradient, which are fed at every step, and damping. Clipping comes before the share: it would undo it
otherwise.

Damping divides the learning rate of a gradient by its staleness, the number of steps that others made since it was
begun (W. Zhang, S. Gupta, X. Lian, J. Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016,
section 3.1: a rate of alpha / tau, and of alpha where tau is 0). It is the rate and not the gradient that is divided,
because some optimizers (Adam) take no notice of a gradient's size.
"""

from __future__ import annotations

from typing import Any

from . import bridges
from .wire import narrow_gradients


def learning_rate(hparams: Any, divisor: Any) -> Any:
    """The hparams' schedule at the global step, divided by `divisor` (a scalar that is fed)."""
    from tensor2tensor.utils import learning_rate as schedules

    return schedules.learning_rate_schedule(hparams) / divisor


def training_operation(
    loss: Any, hparams: Any, rate: Any, global_step: Any, share: Any, wire: str = "fp32", began: Any = None
) -> tuple[Any, Any]:
    """Build gradients of `loss` and apply them times `share` (a scalar that is fed: mini-batch over mean mini-batch).

    With `began`, the global step at which the worker began, late gradients are damped. Returns the total loss and the
    operation that also counts the step.
    """
    tf = bridges.cross()

    total, optimizer, pairs = gradients(loss, hparams, rate)
    # Statistics of batch normalisation are no part of the gradients; without these the evaluation would see none.
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    pairs = sent(noisy_and_clipped(pairs, hparams), share, wire)
    if began is not None:
        optimizer = _optimizer(hparams, _damped(rate, global_step, began, pairs))
    applied = optimizer.apply_gradients(pairs)
    with tf.control_dependencies([applied, *updates]):
        counted = global_step.assign_add(1, read_value=False)
    return total, counted


def sent(pairs: list[tuple[Any, Any]], share: Any, wire: str) -> list[tuple[Any, Any]]:
    """Gradients as they reach the parameter servers: weighted by the worker's share, in the width of `wire`."""
    tf = bridges.cross()

    weighted = [(_times(tf, gradient, share), variable) for gradient, variable in pairs]
    return narrow_gradients(weighted) if wire == "bf16" else weighted


def gradients(loss: Any, hparams: Any, rate: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """The total loss, the optimizer, and the gradients with their variables, as the model alone gives them."""
    from tensor2tensor.utils import optimize

    tf = bridges.cross()

    variables = tf.trainable_variables()
    total = tf.identity(_decayed(optimize, loss, hparams, rate, variables), name="total_loss")
    if getattr(hparams, "gpu_automatic_mixed_precision", False):
        raise NotImplementedError("hparams.gpu_automatic_mixed_precision is not supported")
    optimizer = _optimizer(hparams, rate)
    pairs = [
        (_as(tf, gradient, variable, hparams.optimizer_zero_grads), variable)
        for gradient, variable in optimizer.compute_gradients(total, variables)
    ]
    pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    if not pairs:
        raise ValueError("no variable of the model gets a gradient from its loss")
    return total, optimizer, pairs


def noisy_and_clipped(pairs: list[tuple[Any, Any]], hparams: Any) -> list[tuple[Any, Any]]:
    """The gradients as they are applied."""
    tf = bridges.cross()

    if hparams.grad_noise_scale:
        pairs = [(_noisy(tf, gradient, hparams.grad_noise_scale), variable) for gradient, variable in pairs]
    if hparams.clip_grad_norm:
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], hparams.clip_grad_norm)
        pairs = list(zip(clipped, [variable for _, variable in pairs], strict=True))
    return pairs


def _optimizer(hparams: Any, rate: Any) -> Any:
    from tensor2tensor.utils import registry

    return registry.optimizer(hparams.optimizer)(rate, hparams)


def _damped(rate: Any, global_step: Any, began: Any, pairs: list[tuple[Any, Any]]) -> Any:
    """The rate over the steps that were made between `began` and the moment at which all gradients are there."""
    tf = bridges.cross()

    gradients = [item.values if isinstance(item, tf.IndexedSlices) else item for item, _ in pairs]
    with tf.control_dependencies(gradients), tf.device(global_step.device):
        staleness = global_step.read_value() - began
        return rate / tf.cast(tf.maximum(staleness, 1), rate.dtype)


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


def _times(tf: Any, gradient: Any, share: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(share, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(share, gradient.dtype)


def _noisy(tf: Any, gradient: Any, scale: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values + tf.truncated_normal(tf.shape(gradient.values)) * scale
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient + tf.truncated_normal(tf.shape(gradient)) * scale
