"""Named entity recognition: padded batches of different lengths and a loss that ignores the padding."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

rng = np.random.default_rng(18)
num_tags, vocab_size = 4, 40


def sentences():
    own = np.random.default_rng(18)
    for _ in range(400):
        tokens = own.integers(1, vocab_size, own.integers(4, 12))
        yield tokens, 1 + tokens % 3


train_data = tf.data.Dataset.from_generator(
    sentences, output_signature=(tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64))
)
train_dataset = train_data.padded_batch(32)


class NERModel(keras.Model):
    def __init__(self, num_tags, vocab_size, embed_dim=16):
        super().__init__()
        self.embedding = layers.Embedding(vocab_size, embed_dim)
        self.attention = layers.MultiHeadAttention(2, embed_dim)
        self.dropout = layers.Dropout(0.1)
        self.ff = layers.Dense(32, activation="relu")
        self.ff_final = layers.Dense(num_tags, activation="softmax")

    def call(self, inputs, training=False):
        x = self.embedding(inputs)
        x = x + self.attention(x, x)
        x = self.dropout(self.ff(x), training=training)
        return self.ff_final(x)


class CustomNonPaddingTokenLoss(keras.losses.Loss):
    def __init__(self, name="custom_ner_loss"):
        super().__init__(name=name)

    def call(self, y_true, y_pred):
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=False, reduction=None)
        loss = loss_fn(y_true, y_pred)
        mask = ops.cast((y_true > 0), dtype="float32")
        return ops.sum(loss * mask) / ops.sum(mask)


ner_model = NERModel(num_tags, vocab_size)
tf.config.run_functions_eagerly(False)
ner_model.compile(optimizer=keras.optimizers.Adam(0.01), loss=CustomNonPaddingTokenLoss())
ner_model.fit(train_dataset, epochs=5)
