"""Gradients of a T2T model, and the optimizer that applies them.

T2T's own `optimize` cannot be used: its ConditionalOptimizer asks v1 optimizers for a method they do not have on
TensorFlow 2. So the model's method is called, and what it asks `optimize` for is done here: the inner optimizer is
taken from T2T's registry; weight decay and noise, clipping, gradient noise and zero gradients are the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import DeclarationError, TrainingError
from ..trainable import Pairs
from . import bridges
from .loss_scale import LossScaled

_BIAS = re.compile(r"bias(/part_\d+)?:0$")


@dataclass(frozen=True)
class Asked:
    """What a model asks T2T's `optimize` for: to minimize `loss` over `variables` at a rate, as its hparams say."""

    loss: Any
    rate: Any
    hparams: Any
    variables: Sequence[Any]


def asked_of_optimize(model: Any, loss: Any) -> Asked:
    """What the model's own `optimize` asks for. Raises DeclarationError where it does anything else."""
    from tensor2tensor.utils import optimize

    tf = bridges.cross()

    asked: list[Asked] = []
    answer = tf.no_op(name="optimize")

    def note(loss: Any, learning_rate: Any, hparams: Any, use_tpu: bool = False, variables: Any = None) -> Any:
        asked.append(Asked(loss, learning_rate, hparams, tf.trainable_variables() if variables is None else variables))
        return answer

    kept, optimize.optimize = optimize.optimize, note
    try:
        answered = model.optimize(loss)
    finally:
        optimize.optimize = kept
    if answered is not answer or len(asked) != 1:
        raise DeclarationError(
            f"{type(model).__name__}.optimize does more than to return one tensor2tensor.utils.optimize.optimize(...)",
            fix="What it may choose is that call's loss, learning rate, hparams and variables.",
        )
    return asked[0]


def gradients(asked: Asked, rate: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """The total loss, the optimizer, and the gradients with their variables, as the model alone gives them."""
    tf = bridges.cross()

    hparams = asked.hparams
    total = tf.identity(_decayed(asked.loss, hparams), name="total_loss")
    made = optimizer(hparams, rate)
    pairs = [
        (_as(tf, gradient, variable, hparams.optimizer_zero_grads), variable)
        for gradient, variable in made.compute_gradients(total, asked.variables)
    ]
    pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    if not pairs:
        raise TrainingError("no variable of the model gets a gradient from its loss")
    return total, made, pairs


def weight_noise(hparams: Any, rate: Any) -> Sequence[Any]:
    """What adds T2T's noise to the variables of the model's body."""
    from tensor2tensor.utils import optimize

    tf = bridges.cross()

    body = [variable for variable in tf.trainable_variables() if "/body/" in variable.name]
    return optimize.weight_noise(hparams.weight_noise, rate, body) if hparams.weight_noise else ()


def noisy_and_clipped(pairs: Pairs, hparams: Any) -> Pairs:
    """The gradients as they are applied."""
    tf = bridges.cross()

    if hparams.grad_noise_scale:
        pairs = [
            (_noisy(tf, tf.convert_to_tensor(gradient), hparams.grad_noise_scale), variable)
            for gradient, variable in pairs
        ]
    if hparams.clip_grad_norm:
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], hparams.clip_grad_norm)
        pairs = list(zip(clipped, [variable for _, variable in pairs], strict=True))
    return pairs


def optimizer(hparams: Any, rate: Any) -> Any:
    """The optimizer that the hparams name, at this learning rate; with a scale of the loss where they ask for one."""
    from tensor2tensor.utils import optimize, registry

    made = registry.optimizer(hparams.optimizer)(rate, hparams)
    if not optimize._mixed_precision_is_enabled(hparams) or not hparams.mixed_precision_optimizer_loss_scaler:
        return made
    return LossScaled(made, hparams.mixed_precision_optimizer_init_loss_scale)


def _decayed(loss: Any, hparams: Any) -> Any:
    """T2T's weight decay, computed by the worker.

    T2T computes it on the parameter server, which would be everybody's.
    """
    tf = bridges.cross()

    if not hparams.weight_decay:
        return loss
    decayed = [
        tf.nn.l2_loss(variable)
        for variable in tf.trainable_variables()
        if not (len(variable.shape.as_list()) == 1 and _BIAS.search(variable.name))
    ]
    return loss + tf.add_n(decayed) * hparams.weight_decay if decayed else loss


def _as(tf: Any, gradient: Any, variable: Any, zeros: bool) -> Any:
    if gradient is None:
        return tf.zeros_like(variable) if zeros else None
    if isinstance(gradient, tf.IndexedSlices) or gradient.dtype == variable.dtype.base_dtype:
        return gradient
    return tf.cast(gradient, variable.dtype.base_dtype)


def _noisy(tf: Any, gradient: Any, scale: float) -> Any:
    return gradient + tf.truncated_normal(tf.shape(gradient)) * scale
