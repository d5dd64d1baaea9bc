"""An optimizer of the user's own: RMSprop with centralized gradients."""

import keras
from keras import layers, ops
from keras.optimizers import RMSprop
from sklearn.datasets import load_digits


class GCRMSprop(RMSprop):
    def update_step(self, gradient, variable, learning_rate):
        if len(gradient.shape) > 1:
            axis = list(range(len(gradient.shape) - 1))
            gradient -= ops.mean(gradient, axis=axis, keepdims=True)
        super().update_step(gradient, variable, learning_rate)


digits = load_digits()
model = keras.Sequential([layers.Dense(32, activation="relu"), layers.Dense(10, activation="softmax")])
model.compile(loss="sparse_categorical_crossentropy", optimizer=GCRMSprop(learning_rate=1e-3), metrics=["accuracy"])
model.fit(digits.data / 16, digits.target, epochs=5, verbose=1)
