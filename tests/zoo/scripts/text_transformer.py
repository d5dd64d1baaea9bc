"""Text classification with a Transformer block of the user's own."""

import keras
import numpy as np
from keras import layers, ops

vocab_size, maxlen, embed_dim, num_heads, ff_dim = 60, 20, 16, 2, 16
rng = np.random.default_rng(12)
y = rng.integers(0, 2, 900)
sequences = [
    np.where(rng.random(n) < 0.3, rng.integers(2 + 20 * label, 22 + 20 * label, n), rng.integers(42, 60, n))
    for n, label in zip(rng.integers(5, 20, 900), y)
]
x = keras.utils.pad_sequences(sequences, maxlen=maxlen)


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        attn_output = self.att(inputs, inputs)
        attn_output = self.dropout1(attn_output)
        out1 = self.layernorm1(inputs + attn_output)
        ffn_output = self.dropout2(self.ffn(out1))
        return self.layernorm2(out1 + ffn_output)


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        maxlen = ops.shape(x)[-1]
        positions = ops.arange(start=0, stop=maxlen, step=1)
        return self.token_emb(x) + self.pos_emb(positions)


inputs = layers.Input(shape=(maxlen,))
x_ = TokenAndPositionEmbedding(maxlen, vocab_size, embed_dim)(inputs)
x_ = TransformerBlock(embed_dim, num_heads, ff_dim)(x_)
x_ = layers.GlobalAveragePooling1D()(x_)
x_ = layers.Dropout(0.1)(x_)
outputs = layers.Dense(2, activation="softmax")(x_)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x[:800], y[:800], batch_size=32, epochs=6, validation_data=(x[800:], y[800:]))
