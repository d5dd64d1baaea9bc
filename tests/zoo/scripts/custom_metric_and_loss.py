"""A metric class, a loss function with a closure, and a regularizer of the user's own."""

import keras
import numpy as np
from keras import layers, ops

rng = np.random.default_rng(31)
x = rng.normal(size=(700, 6)).astype("float32")
y = (x[:, :1] * 2 - x[:, 1:2]).astype("float32")


class RSquare(keras.metrics.Metric):
    def __init__(self, name="r_square", **kwargs):
        super().__init__(name=name, **kwargs)
        self.residual = self.add_variable(shape=(), initializer="zeros", name="residual")
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.residual.assign_add(ops.sum(ops.square(y_true - y_pred)))
        self.total.assign_add(ops.sum(ops.square(y_true)))

    def result(self):
        return 1 - self.residual / self.total

    def reset_state(self):
        self.residual.assign(0.0)
        self.total.assign(0.0)


def quantile_loss(quantile):
    def loss(y_true, y_pred):
        error = y_true - y_pred
        return ops.mean(ops.maximum(quantile * error, (quantile - 1) * error), axis=-1)

    return loss


class OrthogonalRegularizer(keras.regularizers.Regularizer):
    def __call__(self, weight):
        gram = ops.matmul(ops.transpose(weight), weight)
        return 1e-4 * ops.sum(ops.square(gram - ops.eye(gram.shape[0])))


model = keras.Sequential([layers.Dense(16, "relu", kernel_regularizer=OrthogonalRegularizer()), layers.Dense(1)])
model.compile(optimizer="nadam", loss=quantile_loss(0.6), metrics=[RSquare(), "mae"])
model.fit(x, y, epochs=10, validation_split=0.1)
