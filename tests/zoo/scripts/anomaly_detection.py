"""Time series anomaly detection: an autoencoder, fitted to its own input."""

import keras
import numpy as np
from keras import layers

TIME_STEPS = 32
series = np.sin(np.arange(1200) / 7) + 0.1 * np.random.default_rng(10).normal(size=1200)


def create_sequences(values, time_steps=TIME_STEPS):
    return np.stack([values[i : i + time_steps] for i in range(len(values) - time_steps + 1)])[..., None]


x_train = create_sequences(series)
model = keras.Sequential(
    [
        layers.Input(shape=(x_train.shape[1], x_train.shape[2])),
        layers.Conv1D(filters=16, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Dropout(rate=0.2),
        layers.Conv1D(filters=8, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=8, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=16, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=1, kernel_size=7, padding="same"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001), loss="mse")
history = model.fit(x_train, x_train, epochs=6, batch_size=64, validation_split=0.1)
