"""Convolutional autoencoder that removes noise from images."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

rng = np.random.default_rng(9)
images = (load_digits().images.astype("float32") / 16)[..., None]
noisy = np.clip(images + 0.3 * rng.normal(size=images.shape), 0, 1)
input = layers.Input(shape=(8, 8, 1))
x = layers.Conv2D(16, (3, 3), activation="relu", padding="same")(input)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2DTranspose(16, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
autoencoder = keras.Model(input, x)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
autoencoder.fit(
    x=noisy[:1500],
    y=images[:1500],
    epochs=4,
    batch_size=64,
    shuffle=True,
    validation_data=(noisy[1500:], images[1500:]),
)
