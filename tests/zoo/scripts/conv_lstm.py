"""Next-frame video prediction with convolutional LSTMs."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(22)
frames = np.zeros((120, 7, 8, 8, 1), "float32")
for video, (row, column) in zip(frames, rng.integers(0, 8, (120, 2))):
    for time in range(7):
        video[time, row, (column + time) % 8] = 1
x_train, y_train = frames[:100, :-1], frames[:100, 1:]
x_val, y_val = frames[100:, :-1], frames[100:, 1:]
inp = layers.Input(shape=(None, *x_train.shape[2:]))
x = layers.ConvLSTM2D(filters=8, kernel_size=(3, 3), padding="same", return_sequences=True, activation="relu")(inp)
x = layers.BatchNormalization(momentum=0.9)(x)
x = layers.Conv3D(filters=1, kernel_size=(3, 3, 3), activation="sigmoid", padding="same")(x)
model = keras.models.Model(inp, x)
model.compile(loss=keras.losses.binary_crossentropy, optimizer=keras.optimizers.Adam(0.01))
model.fit(x_train, y_train, batch_size=10, epochs=6, validation_data=(x_val, y_val))
