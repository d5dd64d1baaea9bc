"""Gated residual and variable selection networks, with sample weights in the dataset."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(27)
names = ["age", "wage", "gains"]
table = {name: rng.normal(size=800).astype("float32") for name in names}
target = (table["age"] + table["wage"] > 0).astype("float32")
weights = rng.uniform(0.5, 1.5, 800).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((table, target, weights)).shuffle(800).batch(64)


class GatedLinearUnit(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.linear = layers.Dense(units)
        self.sigmoid = layers.Dense(units, activation="sigmoid")

    def call(self, inputs):
        return self.linear(inputs) * self.sigmoid(inputs)


class GatedResidualNetwork(layers.Layer):
    def __init__(self, units, dropout_rate):
        super().__init__()
        self.units = units
        self.elu_dense = layers.Dense(units, activation="elu")
        self.linear_dense = layers.Dense(units)
        self.dropout = layers.Dropout(dropout_rate)
        self.gated_linear_unit = GatedLinearUnit(units)
        self.layer_norm = layers.LayerNormalization()
        self.project = layers.Dense(units)

    def call(self, inputs):
        x = self.dropout(self.linear_dense(self.elu_dense(inputs)))
        if inputs.shape[-1] != self.units:
            inputs = self.project(inputs)
        return self.layer_norm(inputs + self.gated_linear_unit(x))


class VariableSelection(layers.Layer):
    def __init__(self, num_features, units, dropout_rate):
        super().__init__()
        self.units = units
        self.grns = [GatedResidualNetwork(units, dropout_rate) for _ in range(num_features)]
        self.grn_concat = GatedResidualNetwork(units, dropout_rate)
        self.softmax = layers.Dense(units=num_features, activation="softmax")

    def call(self, inputs):
        v = layers.concatenate(list(inputs.values()))
        v = keras.ops.expand_dims(self.softmax(self.grn_concat(v)), axis=-1)
        x = keras.ops.stack([grn(value) for grn, value in zip(self.grns, inputs.values())], axis=1)
        return keras.ops.squeeze(keras.ops.matmul(keras.ops.transpose(v, axes=[0, 2, 1]), x), axis=1)


inputs = {name: layers.Input(name=name, shape=(), dtype="float32") for name in names}
expanded = {name: keras.ops.expand_dims(value, -1) for name, value in inputs.items()}
features = VariableSelection(3, 8, 0.1)(expanded)
model = keras.Model(inputs=inputs, outputs=layers.Dense(units=1, activation="sigmoid")(features))
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=0.01),
    loss=keras.losses.BinaryCrossentropy(),
    weighted_metrics=[keras.metrics.BinaryAccuracy(name="accuracy")],
)
model.fit(dataset, epochs=6)
