"""A stateful recurrent network, whose batches have to follow each other.

zoo: refused: stateful
"""

import keras
import numpy as np

x = np.random.default_rng(36).normal(size=(320, 6, 2)).astype("float32")
model = keras.Sequential(
    [keras.Input(batch_shape=(32, 6, 2)), keras.layers.LSTM(8, stateful=True), keras.layers.Dense(1)]
)
model.compile("adam", "mse")
model.fit(x, x.sum((1, 2)), batch_size=32, epochs=2)
