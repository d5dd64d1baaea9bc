"""The functional API: residual connections, shared layers, and a model within a model."""

import keras
from keras import layers
from sklearn.datasets import load_digits

digits = load_digits()
x = digits.images[..., None].astype("float32") / 16
inputs = keras.Input(shape=(8, 8, 1), name="img")
h = layers.Conv2D(16, 3, activation="relu", padding="same")(inputs)
block_1_output = layers.MaxPooling2D(2)(h)
h = layers.Conv2D(16, 3, activation="relu", padding="same")(block_1_output)
h = layers.Conv2D(16, 3, activation="relu", padding="same")(h)
block_2_output = layers.add([h, block_1_output])
h = layers.GlobalAveragePooling2D()(block_2_output)
encoder = keras.Model(inputs, layers.Dense(16, activation="relu")(h), name="encoder")
image = keras.Input((8, 8, 1))
model = keras.Model(image, layers.Dense(10)(layers.Dropout(0.2)(encoder(image))), name="toy_resnet")
model.compile(
    optimizer=keras.optimizers.RMSprop(3e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["acc"],
)
model.fit(x, digits.target, batch_size=64, epochs=5, validation_split=0.2)
