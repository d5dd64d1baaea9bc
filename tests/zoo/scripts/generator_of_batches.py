"""A Python generator of random batches, with steps_per_epoch."""

import keras
import numpy as np


def batches(size):
    rng = np.random.default_rng(34)
    while True:
        x = rng.normal(size=(size, 5)).astype("float32")
        yield x, (x[:, :1] > x[:, 1:2]).astype("float32")


model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
model.fit(batches(32), steps_per_epoch=25, epochs=5, validation_data=batches(64), validation_steps=4)
