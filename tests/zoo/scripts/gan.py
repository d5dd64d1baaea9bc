"""A generative adversarial network with two optimizers and a train_step of its own.

zoo: refused: GAN.train_step
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator, self.generator, self.latent_dim = discriminator, generator, latent_dim

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, real):
        noise = tf.random.normal((tf.shape(real)[0], self.latent_dim))
        with tf.GradientTape() as tape:
            fake = self.discriminator(self.generator(noise))
            loss = self.loss_fn(tf.zeros_like(fake), fake) + self.loss_fn(tf.ones_like(fake), self.discriminator(real))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"d_loss": loss}


discriminator = keras.Sequential([keras.Input((20,)), layers.Dense(1)])
generator = keras.Sequential([keras.Input((4,)), layers.Dense(20)])
gan = GAN(discriminator=discriminator, generator=generator, latent_dim=4)
gan.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
dataset = tf.data.Dataset.from_tensor_slices(np.random.rand(300, 20).astype("float32")).batch(32)
gan.fit(dataset, epochs=1)
