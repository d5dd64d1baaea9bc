"""FNet: mixing of tokens by Fourier transforms, with a loss from logits."""

import keras
import numpy as np
from keras import layers, ops

rng = np.random.default_rng(37)
y = rng.integers(0, 2, 500)
x = rng.integers(1, 20, (500, 12)) + 20 * (rng.random((500, 12)) < 0.4 * y[:, None])


class FNetEncoder(layers.Layer):
    def __init__(self, embed_dim, dense_dim, **kwargs):
        super().__init__(**kwargs)
        self.dense_proj = keras.Sequential([layers.Dense(dense_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm_1 = layers.LayerNormalization()
        self.layernorm_2 = layers.LayerNormalization()

    def call(self, inputs):
        fft_result = ops.fft2((inputs, ops.zeros_like(inputs)))
        proj_input = self.layernorm_1(inputs + fft_result[0])
        return self.layernorm_2(proj_input + self.dense_proj(proj_input))


inputs = keras.Input(shape=(12,), dtype="int64")
h = layers.Embedding(40, 16)(inputs)
h = FNetEncoder(16, 32)(h)
h = layers.GlobalMaxPooling1D()(h)
model = keras.Model(inputs, layers.Dense(2)(h))
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, y, epochs=6, batch_size=25, validation_split=0.2)
