"""The scale of the loss in mixed precision, as Tensor2Tensor has it from tf.contrib: small gradients of float16 are 0.

The loss is multiplied by the scale and the gradients are divided by it. Gradients that are not finite are not applied.
The scale doubles after 2,000 steps that were, and halves after two that were not. It is one for all workers, and a part
of the checkpoint, like any variable; in a synchronous step the mean of all gradients is looked at, once. Unlike in
Tensor2Tensor, a step that is not applied counts as a step.
"""

from __future__ import annotations

from typing import Any

from ...tf.graph_mode import tensorflow
from ..trainable import Pairs

_GROWS_AFTER = 2000
_SHRINKS_AFTER = 2
_FACTOR = 2.0


class LossScaled:
    """The optimizer `made`, with the default graph's one scale, which begins with `initial`."""

    def __init__(self, made: Any, initial: float) -> None:
        tf = tensorflow()
        self._made = made
        with tf.variable_scope("mixed_precision_loss_scale", reuse=tf.AUTO_REUSE):
            self._scale, self._applied, self._refused = (
                tf.get_variable(
                    name, [], initializer=tf.constant_initializer(value), trainable=False, use_resource=True
                )
                for name, value in (("scale", float(initial)), ("applied", 0.0), ("refused", 0.0))
            )

    def compute_gradients(self, loss: Any, variables: Any) -> Pairs:
        """The gradients of `loss`."""
        tf = tensorflow()
        scale = self._scale.read_value()
        pairs = self._made.compute_gradients(loss * tf.cast(scale, loss.dtype), variables)
        return [(None if gradient is None else _over(tf, gradient, scale), variable) for gradient, variable in pairs]

    def apply_gradients(self, pairs: Pairs) -> Any:
        """An operation that applies them if they are finite, and follows the scale."""
        tf = tensorflow()
        values = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient, _ in pairs]
        finite = tf.reduce_all([_finite(tf, value) for value in values])
        applied = tf.cond(finite, lambda: tf.group(self._made.apply_gradients(pairs)), tf.no_op)
        with tf.control_dependencies([applied]):
            return tf.group(*self._followed(tf, finite))

    def _followed(self, tf: Any, finite: Any) -> list[Any]:
        scale = self._scale.read_value()
        applied = tf.where(finite, self._applied.read_value() + 1.0, 0.0)
        refused = self._refused.read_value() + tf.where(finite, 0.0, 1.0)
        grows, shrinks = applied >= _GROWS_AFTER, tf.logical_and(tf.logical_not(finite), refused >= _SHRINKS_AFTER)
        larger = tf.where(tf.is_finite(scale * _FACTOR), scale * _FACTOR, scale)
        changed = tf.where(grows, larger, tf.where(shrinks, tf.maximum(1.0, scale / _FACTOR), scale))
        anew = tf.logical_or(grows, shrinks)
        with tf.control_dependencies([changed, applied, refused]):
            return [
                self._scale.assign(changed, read_value=False),
                self._applied.assign(tf.where(anew, 0.0, applied), read_value=False),
                self._refused.assign(tf.where(anew, 0.0, refused), read_value=False),
            ]


def _finite(tf: Any, value: Any) -> Any:
    """Looked at where the gradient is: in a synchronous step on the parameter server that holds the mean."""
    with tf.device(value.device):
        return tf.reduce_all(tf.is_finite(value))


def _over(tf: Any, gradient: Any, scale: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_over(tf, gradient.values, scale), gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(scale, gradient.dtype)
