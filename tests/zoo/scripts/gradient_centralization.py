"""An optimizer of the user's own: RMSprop with centralized gradients."""

import keras
from keras import layers, ops
from keras.optimizers import RMSprop
from sklearn.datasets import load_digits


class GCRMSprop(RMSprop):
    def get_gradients(self, loss, params):
        raise NotImplementedError

    def apply(self, grads, trainable_variables=None):
        centralized = []
        for grad in grads:
            if len(grad.shape) > 1:
                axis = list(range(len(grad.shape) - 1))
                grad -= ops.mean(grad, axis=axis, keepdims=True)
            centralized.append(grad)
        return super().apply(centralized, trainable_variables)


digits = load_digits()
model = keras.Sequential([layers.Dense(32, activation="relu"), layers.Dense(10, activation="softmax")])
model.compile(loss="sparse_categorical_crossentropy", optimizer=GCRMSprop(learning_rate=1e-3), metrics=["accuracy"])
model.fit(digits.data / 16, digits.target, epochs=5, verbose=1)
