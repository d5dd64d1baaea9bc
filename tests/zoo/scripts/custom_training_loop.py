"""A training loop with GradientTape.

zoo: refused: the cell does not train a model
"""

import keras
import numpy as np
import tensorflow as tf

x = np.random.default_rng(35).normal(size=(200, 5)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).batch(32)
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(learning_rate=1e-2)
loss_fn = keras.losses.MeanSquaredError()
for _epoch in range(2):
    for x_batch, y_batch in dataset:
        with tf.GradientTape() as tape:
            loss_value = loss_fn(y_batch, model(x_batch, training=True))
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply(grads, model.trainable_weights)
