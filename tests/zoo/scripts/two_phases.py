"""Fine-tuning in a second fit, with another learning rate."""

import keras
import numpy as np

x = np.random.default_rng(41).normal(size=(300, 8)).astype("float32")
base = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu")])
base.trainable = False
model = keras.Sequential([base, keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.05), "mse")
model.fit(x, x.sum(1), epochs=20)
base.trainable = True
model.compile(keras.optimizers.Adam(1e-5), "mse")
model.fit(x, x.sum(1), epochs=2)
