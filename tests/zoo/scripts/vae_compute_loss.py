"""Variational autoencoder whose compute_loss needs no labels, on a dataset of images alone."""

import keras
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

digits = load_digits().data.astype("float32") / 16
dataset = tf.data.Dataset.from_tensor_slices(digits).shuffle(1024).batch(64)


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(32, "relu"), layers.Dense(8)])
        self.decoder = keras.Sequential([layers.Dense(32, "relu"), layers.Dense(64, "sigmoid")])
        self.loss_tracker = keras.metrics.Mean(name="reconstruction")

    def call(self, x):
        return self.decoder(self.encoder(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = ops.mean(ops.sum(ops.square(x - y_pred), axis=-1))
        self.loss_tracker.update_state(loss)
        return loss


model = Autoencoder()
model.compile(optimizer="adam")
model.fit(dataset, epochs=8)
