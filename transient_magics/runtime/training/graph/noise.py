"""The part of a worker's graph that measures its gradients, beside the step and with none of its operations after them.

Running it computes the gradient of one more mini-batch and adds it to a sum in the worker's own memory; nothing is
applied, pushed or counted. `runtime.noise` says what for. Only numbers come out, whatever the size of the model.
"""

from __future__ import annotations

from typing import Any

from ...tf.graph_mode import tensorflow
from ..trainable import Pairs


def gradient_sum(pairs: Pairs) -> tuple[Any, Any, Any]:
    """The squared norm of the gradient, that of the sum since the operation was run which is the third.

    They come on the device that is chosen where this is called; the sum is as large as the model.
    """
    tf = tensorflow()

    size = sum(variable.shape.num_elements() for _, variable in pairs)
    flat = [tf.reshape(tf.cast(tf.convert_to_tensor(gradient), tf.float32), [-1]) for gradient, _ in pairs]
    gradient = tf.concat(flat, 0)
    total = tf.Variable(
        tf.zeros([size]), trainable=False, collections=[], name="transient_gradient_sum", use_resource=True
    )
    with tf.control_dependencies([total.assign_add(gradient, read_value=False)]):
        summed = _squared(tf, total.read_value())
    return _squared(tf, gradient), summed, total.assign(tf.zeros([size]), read_value=False)


def _squared(tf: Any, vector: Any) -> Any:
    return 2.0 * tf.nn.l2_loss(vector)
