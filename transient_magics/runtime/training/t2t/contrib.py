"""What T2T takes of tf.contrib, which TensorFlow 2 dropped, from where it lives on: tf-slim and TensorFlow itself."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any, cast

_IN_SLIM = {
    "slim": "tf_slim",
    "slim.python.slim.nets": "tf_slim.nets",
    "slim.python.slim.nets.resnet_v1": "tf_slim.nets.resnet_v1",
    "slim.python.slim.nets.resnet_v2": "tf_slim.nets.resnet_v2",
    "slim.python.slim.nets.vgg": "tf_slim.nets.vgg",
    "layers.python.layers": "tf_slim.layers",
    "framework.python.ops": "tf_slim.ops.arg_scope",
}
"""Modules of tf.contrib, and where the same code is today."""


def supply(tf: Any) -> None:
    """Give T2T's own stand-ins for tf.contrib what they lack.

    They know no optimizers (`sgd`, `rms_prop` would be missing), no layers, no argument scopes (which glow needs) and
    no recurrent cells (which neural_stack needs). Some models (epva, all for VQA) import tf.contrib past them.
    """
    from tensor2tensor.utils import contrib

    classes = {
        "Adagrad": tf.train.AdagradOptimizer,
        "Ftrl": tf.train.FtrlOptimizer,
        "RMSProp": tf.train.RMSPropOptimizer,
        "SGD": tf.train.GradientDescentOptimizer,
    }
    slim, framework = contrib.slim(), cast(Any, contrib.framework())
    layers, cells = _Layers(slim, classes), _Cells(tf)
    framework.arg_scope, framework.add_arg_scope = slim.arg_scope, slim.add_arg_scope
    contrib.layers = lambda: layers
    contrib.framework = lambda msg="": framework
    contrib.rnn = lambda: cells
    # Only now: as long as there is no tf.contrib, T2T, when imported, sees that this is TensorFlow 2.
    package: Any = types.ModuleType("tensorflow.contrib")
    package.rnn, package.slim = cells, slim
    sys.modules[package.__name__] = package
    for name, today in _IN_SLIM.items():
        sys.modules[f"tensorflow.contrib.{name}"] = importlib.import_module(today)


class _Layers:
    """tf.contrib.layers as far as it lives on in tf-slim, with the optimizer classes that T2T registers by name."""

    def __init__(self, slim: Any, classes: dict[str, Any]) -> None:
        self._slim, self.OPTIMIZER_CLS_NAMES, self.optimize_loss = slim, classes, slim.optimize_loss

    def __getattr__(self, name: str) -> Any:
        for place in (self._slim.layers, self._slim):
            if hasattr(place, name):
                return getattr(place, name)
        raise AttributeError(f"tf.contrib.layers.{name} does not exist on current TensorFlow")


class _Cells:
    """tf.contrib.rnn as far as it lives on in tf.nn.rnn_cell, with the convolutional cell that T2T's video models use.

    The cells are tf-keras's, which is imported when the first is asked for.
    """

    def __init__(self, tf: Any) -> None:
        self._tf = tf

    def __getattr__(self, name: str) -> Any:
        found = _conv_lstm_cell(self._tf) if name == "ConvLSTMCell" else getattr(self._tf.nn.rnn_cell, name, None)
        if found is None:
            raise AttributeError(f"tf.contrib.rnn.{name} does not exist on current TensorFlow")
        setattr(self, name, found)
        return found


def _conv_lstm_cell(tf: Any) -> type:
    class ConvLSTMCell(tf.nn.rnn_cell.RNNCell):
        """An LSTM whose inputs and states are images, and whose products are convolutions (X. Shi et al., NIPS 2015).

        Computes what tf.contrib's did, from variables of the same names and shapes. It has no skip connections, which
        T2T does not ask for.
        """

        def __init__(
            self,
            conv_ndims: int,
            input_shape: Any,
            output_channels: int,
            kernel_shape: Any,
            *,
            use_bias: bool = True,
            forget_bias: float = 1.0,
            name: str = "conv_lstm_cell",
        ) -> None:
            super().__init__(name=name)
            if conv_ndims != len(input_shape) - 1:
                raise ValueError(f"Invalid input_shape {input_shape} for conv_ndims={conv_ndims}.")
            self._channels, self._kernel_shape = output_channels, list(kernel_shape)
            self._use_bias, self._forget_bias = use_bias, forget_bias
            self._output = tf.TensorShape([*input_shape[:-1], output_channels])

        @property
        def state_size(self) -> Any:
            return tf.nn.rnn_cell.LSTMStateTuple(self._output, self._output)

        @property
        def output_size(self) -> Any:
            return self._output

        def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
            cell, hidden = state
            both, gates = tf.concat([inputs, hidden], axis=-1), 4 * self._channels
            kernel = tf.get_variable("kernel", [*self._kernel_shape, both.shape.as_list()[-1], gates], both.dtype)
            products = tf.nn.convolution(both, kernel, padding="SAME")
            if self._use_bias:
                products += tf.get_variable("biases", [gates], both.dtype, tf.zeros_initializer())
            enter, new, forget, leave = tf.split(products, 4, axis=-1)
            cell = tf.sigmoid(forget + self._forget_bias) * cell + tf.sigmoid(enter) * tf.tanh(new)
            hidden = tf.tanh(cell) * tf.sigmoid(leave)
            return hidden, tf.nn.rnn_cell.LSTMStateTuple(cell, hidden)

    return ConvLSTMCell
