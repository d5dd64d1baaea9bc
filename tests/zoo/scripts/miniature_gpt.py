"""Text generation with a miniature GPT: a causal mask, two outputs, and a loss for one of them."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras.layers import TextVectorization

rng = np.random.default_rng(16)
words = ["the", "cat", "sat", "on", "a", "mat", "and", "slept"]
texts = [" ".join(words[(start + i) % len(words)] for i in range(9)) for start in rng.integers(0, 8, 512)]
maxlen, vocab_size, embed_dim = 8, 20, 16
vectorize_layer = TextVectorization(max_tokens=vocab_size - 1, output_mode="int", output_sequence_length=maxlen + 1)
text_ds = tf.data.Dataset.from_tensor_slices(texts).shuffle(buffer_size=256).batch(32)
vectorize_layer.adapt(text_ds)
vocab = vectorize_layer.get_vocabulary()


def prepare_lm_inputs_labels(text):
    text = tf.expand_dims(text, -1)
    tokenized_sentences = vectorize_layer(text)
    return tokenized_sentences[:, :-1], tokenized_sentences[:, 1:]


text_ds = text_ds.map(prepare_lm_inputs_labels, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def causal_attention_mask(batch_size, n_dest, n_src, dtype):
    i = ops.arange(n_dest)[:, None]
    j = ops.arange(n_src)
    m = i >= j - n_src + n_dest
    mask = ops.cast(m, dtype)
    mask = ops.reshape(mask, [1, n_dest, n_src])
    return ops.broadcast_to(mask, (batch_size, n_dest, n_src))


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads, embed_dim)
        self.ffn = keras.Sequential([layers.Dense(32, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs):
        input_shape = ops.shape(inputs)
        batch_size, seq_len = input_shape[0], input_shape[1]
        causal_mask = causal_attention_mask(batch_size, seq_len, seq_len, "bool")
        out1 = self.layernorm1(inputs + self.att(inputs, inputs, attention_mask=causal_mask))
        return self.layernorm2(out1 + self.ffn(out1))


inputs = layers.Input(shape=(maxlen,), dtype="int32")
x = layers.Embedding(vocab_size, embed_dim)(inputs) + layers.Embedding(maxlen, embed_dim)(ops.arange(0, maxlen, 1))
x = TransformerBlock(embed_dim, 2)(x)
outputs = layers.Dense(vocab_size)(x)
model = keras.Model(inputs=inputs, outputs=[outputs, x])
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss=[loss_fn, None])
model.fit(text_ds, verbose=2, epochs=5)
