"""Mixed precision in float16, whose losses have to be scaled.

zoo: refused: mixed_float16
"""

import keras
import numpy as np

keras.mixed_precision.set_global_policy("mixed_float16")
x = np.random.default_rng(32).normal(size=(300, 8))
model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(1, dtype="float32")])
model.compile("adam", "mse")
model.fit(x, x.sum(1), epochs=2)
