"""Variational autoencoder with a train_step of its own.

zoo: refused: VAE.train_step
"""

import keras
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

digits = load_digits().data.astype("float32") / 16


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            total_loss = ops.mean(ops.square(data - self.decoder(self.encoder(data))))
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
        self.total_loss_tracker.update_state(total_loss)
        return {"loss": self.total_loss_tracker.result()}


encoder = keras.Sequential([keras.Input((64,)), layers.Dense(4)])
decoder = keras.Sequential([keras.Input((4,)), layers.Dense(64)])
vae = VAE(encoder, decoder)
vae.compile(optimizer=keras.optimizers.Adam())
vae.fit(digits, epochs=2, batch_size=128)
