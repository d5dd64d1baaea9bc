"""Metrics with a value for each class or threshold."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(30)
x = rng.normal(size=(600, 8)).astype("float32")
y = keras.utils.to_categorical(np.argmax(x[:, :3], 1), 3)
model = keras.Sequential([layers.Dense(16, "relu"), layers.Dense(3, "softmax")])
model.compile(
    keras.optimizers.Adam(0.01),
    "categorical_crossentropy",
    metrics=[keras.metrics.F1Score(average=None), keras.metrics.Precision(thresholds=[0.3, 0.7], name="precision")],
)
model.fit(x, y, epochs=15, validation_split=0.2)
