"""Masked language modelling with a train_step of its own.

zoo: refused: MaskedLanguageModel.train_step
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

loss_fn = keras.losses.SparseCategoricalCrossentropy(reduction=None)
loss_tracker = keras.metrics.Mean(name="loss")


class MaskedLanguageModel(keras.Model):
    def train_step(self, inputs):
        features, labels, sample_weight = inputs
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, self(features, training=True), sample_weight=sample_weight)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        loss_tracker.update_state(loss, sample_weight=sample_weight)
        return {"loss": loss_tracker.result()}


inputs = layers.Input((8,), dtype="int64")
outputs = layers.Dense(20, activation="softmax")(layers.Embedding(20, 8)(inputs))
bert_masked_model = MaskedLanguageModel(inputs, outputs)
bert_masked_model.compile(optimizer="adam")
tokens = np.random.default_rng(17).integers(0, 20, (200, 8))
mlm_ds = tf.data.Dataset.from_tensor_slices((tokens, tokens, np.ones((200, 8)))).batch(32)
bert_masked_model.fit(mlm_ds, epochs=2)
