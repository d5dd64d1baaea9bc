"""Constraints of kernels and biases, also of a weight of the user's own."""

import keras
import numpy as np
from keras import layers, ops

rng = np.random.default_rng(29)
x = rng.random((600, 10)).astype("float32")
y = x @ rng.random((10, 1)).astype("float32")


class WeightedSum(layers.Layer):
    def build(self, input_shape):
        self.kernel = self.add_weight(
            shape=(input_shape[-1], 1), constraint=keras.constraints.NonNeg(), initializer="ones", name="kernel"
        )

    def call(self, inputs):
        return ops.matmul(inputs, self.kernel)


model = keras.Sequential(
    [layers.Dense(10, kernel_constraint=keras.constraints.MaxNorm(2.0), bias_constraint="unit_norm"), WeightedSum()]
)
model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")
model.fit(x, y, epochs=12, batch_size=30)
