"""Variational autoencoder by layers: a sampling layer adds the loss, and fit receives no labels.

zoo: random predictions
"""

import keras
from keras import layers, ops
from sklearn.datasets import load_digits

digits = load_digits().data.astype("float32") / 16


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = keras.random.normal(shape=ops.shape(z_mean), seed=self.seed_generator)
        self.add_loss(-0.01 * ops.mean(1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var)))
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


class Reconstruction(layers.Layer):
    def call(self, inputs):
        image, decoded = inputs
        self.add_loss(ops.mean(ops.square(image - decoded)) * 10)
        return decoded


inputs = keras.Input(shape=(64,))
x = layers.Dense(32, activation="relu")(inputs)
z_mean, z_log_var = layers.Dense(4)(x), layers.Dense(4)(x)
z = Sampling()([z_mean, z_log_var])
x = layers.Dense(32, activation="relu")(z)
decoded = layers.Dense(64, activation="sigmoid")(x)
vae = keras.Model(inputs, Reconstruction()([inputs, decoded]))
vae.compile(optimizer=keras.optimizers.Adam(0.005))
vae.fit(digits, epochs=8, batch_size=128)
