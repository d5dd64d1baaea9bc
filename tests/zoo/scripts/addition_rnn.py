"""Sequence to sequence learning for adding numbers."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(14)
chars = "0123456789+ "


def encode(text, length):
    x = np.zeros((length, len(chars)))
    for i, c in enumerate(text.ljust(length)):
        x[i, chars.index(c)] = 1
    return x


pairs = rng.integers(0, 10, (1500, 2))
x = np.array([encode(f"{a}+{b}", 3) for a, b in pairs])
y = np.array([encode(str(a + b), 2) for a, b in pairs])
split_at = len(x) - len(x) // 10
model = keras.Sequential()
model.add(layers.Input((3, len(chars))))
model.add(layers.LSTM(32))
model.add(layers.RepeatVector(2))
for _ in range(1):
    model.add(layers.LSTM(32, return_sequences=True))
model.add(layers.Dense(len(chars), activation="softmax"))
model.compile(loss="categorical_crossentropy", optimizer=keras.optimizers.Adam(0.01), metrics=["accuracy"])
model.fit(x[:split_at], y[:split_at], batch_size=32, epochs=5, validation_data=(x[split_at:], y[split_at:]))
