"""A callback of the user's own, and a learning rate that falls on a plateau."""

import keras
import numpy as np


class LossAndErrorPrintingCallback(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"The average loss for epoch {epoch} is {logs['loss']:7.2f}.")


x = np.random.default_rng(42).normal(size=(300, 8)).astype("float32")
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
callbacks = [LossAndErrorPrintingCallback(), keras.callbacks.ReduceLROnPlateau(monitor="loss")]
model.fit(x, x.sum(1), epochs=3, callbacks=callbacks)
