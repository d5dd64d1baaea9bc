"""Bidirectional LSTM on padded sequences with a mask."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(13)
y_train = rng.integers(0, 2, 500)
x_train = keras.utils.pad_sequences(
    [rng.integers(1, 30, n) + 10 * label for n, label in zip(rng.integers(3, 15, 500), y_train)], maxlen=15
)
inputs = keras.Input(shape=(None,), dtype="int32")
x = layers.Embedding(50, 16, mask_zero=True)(inputs)
x = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x)
x = layers.Bidirectional(layers.LSTM(8))(x)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=32, epochs=4, validation_data=(x_train[400:], y_train[400:]))
