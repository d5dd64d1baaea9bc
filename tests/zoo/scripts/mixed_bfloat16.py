"""Mixed precision in bfloat16."""

import keras
import numpy as np

keras.mixed_precision.set_global_policy("mixed_bfloat16")
x = np.random.default_rng(33).normal(size=(600, 8)).astype("float32")
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(1), keras.layers.Activation("linear", dtype="float32")]
)
model.compile(keras.optimizers.Adam(0.01), "mse")
model.fit(x, x.sum(1, keepdims=True), epochs=10, validation_split=0.1)
