"""A switch layer that routes tokens to experts, with a loss for their balance."""

import keras
import numpy as np
from keras import layers, ops

rng = np.random.default_rng(28)
x = rng.normal(size=(800, 12)).astype("float32")
y = (np.abs(x[:, 0]) > 0.7).astype("int64")


class Switch(layers.Layer):
    def __init__(self, num_experts, units):
        super().__init__()
        self.num_experts = num_experts
        self.experts = [layers.Dense(units, activation="relu") for _ in range(num_experts)]
        self.router = layers.Dense(num_experts)

    def call(self, inputs):
        probabilities = ops.softmax(self.router(inputs), axis=-1)
        chosen = ops.one_hot(ops.argmax(probabilities, axis=-1), self.num_experts)
        density = ops.mean(chosen, axis=0)
        density_proxy = ops.mean(probabilities, axis=0)
        self.add_loss(0.01 * ops.mean(density * density_proxy) * self.num_experts**2)
        outputs = ops.stack([expert(inputs) for expert in self.experts], axis=1)
        gate = ops.expand_dims(chosen * probabilities, -1)
        return ops.sum(outputs * gate, axis=1)


model = keras.Sequential([layers.Dense(16, "relu"), Switch(4, 16), layers.Dense(2, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, epochs=10, batch_size=32, validation_split=0.2)
