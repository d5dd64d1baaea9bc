"""Neural machine translation with a Transformer: two vectorizations, dicts of inputs, cross attention."""

import string

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras.layers import TextVectorization

rng = np.random.default_rng(19)
numbers = ["one", "two", "three", "four", "five", "six"]
zahlen = ["uno", "dos", "tres", "cuatro", "cinco", "seis"]
text_pairs = []
for _ in range(512):
    chosen = rng.integers(0, 6, rng.integers(2, 6))
    text_pairs.append(
        (" ".join(numbers[i] for i in chosen), "[start] " + " ".join(zahlen[i] for i in chosen) + " [end]")
    )
strip_chars = string.punctuation.replace("[", "").replace("]", "")
vocab_size, sequence_length, batch_size = 20, 7, 32


def custom_standardization(input_string):
    return tf.strings.regex_replace(tf.strings.lower(input_string), f"[{strip_chars.replace('^', '')}]", "")


eng_vectorization = TextVectorization(max_tokens=vocab_size, output_mode="int", output_sequence_length=sequence_length)
spa_vectorization = TextVectorization(
    max_tokens=vocab_size, output_sequence_length=sequence_length + 1, standardize="lower"
)
eng_vectorization.adapt([pair[0] for pair in text_pairs])
spa_vectorization.adapt([pair[1] for pair in text_pairs])


def format_dataset(eng, spa):
    eng = eng_vectorization(eng)
    spa = spa_vectorization(spa)
    return ({"encoder_inputs": eng, "decoder_inputs": spa[:, :-1]}, spa[:, 1:])


def make_dataset(pairs):
    eng_texts, spa_texts = zip(*pairs)
    dataset = tf.data.Dataset.from_tensor_slices((list(eng_texts), list(spa_texts)))
    dataset = dataset.batch(batch_size)
    dataset = dataset.map(format_dataset)
    return dataset.cache().shuffle(2048).prefetch(16)


train_ds, val_ds = make_dataset(text_pairs[:448]), make_dataset(text_pairs[448:])


class PositionalEmbedding(layers.Layer):
    def __init__(self, sequence_length, vocab_size, embed_dim, **kwargs):
        super().__init__(**kwargs)
        self.token_embeddings = layers.Embedding(vocab_size, embed_dim)
        self.position_embeddings = layers.Embedding(sequence_length, embed_dim)

    def call(self, inputs):
        positions = ops.arange(0, ops.shape(inputs)[-1], 1)
        return self.token_embeddings(inputs) + self.position_embeddings(positions)

    def compute_mask(self, inputs, mask=None):
        return ops.not_equal(inputs, 0)


class TransformerDecoder(layers.Layer):
    def __init__(self, embed_dim, latent_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention_1 = layers.MultiHeadAttention(num_heads, embed_dim)
        self.attention_2 = layers.MultiHeadAttention(num_heads, embed_dim)
        self.dense_proj = keras.Sequential([layers.Dense(latent_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm_1 = layers.LayerNormalization()
        self.layernorm_2 = layers.LayerNormalization()
        self.layernorm_3 = layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        inputs, encoder_outputs = inputs
        inputs_padding_mask, encoder_outputs_padding_mask = (None, None) if mask is None else mask
        out_1 = self.layernorm_1(
            inputs + self.attention_1(inputs, inputs, use_causal_mask=True, query_mask=inputs_padding_mask)
        )
        attention_output_2 = self.attention_2(
            out_1,
            encoder_outputs,
            encoder_outputs,
            query_mask=inputs_padding_mask,
            key_mask=encoder_outputs_padding_mask,
        )
        out_2 = self.layernorm_2(out_1 + attention_output_2)
        return self.layernorm_3(out_2 + self.dense_proj(out_2))


embed_dim = 24
encoder_inputs = keras.Input(shape=(None,), dtype="int64", name="encoder_inputs")
encoder_outputs = PositionalEmbedding(sequence_length, vocab_size, embed_dim)(encoder_inputs)
decoder_inputs = keras.Input(shape=(None,), dtype="int64", name="decoder_inputs")
x = PositionalEmbedding(sequence_length, vocab_size, embed_dim)(decoder_inputs)
x = TransformerDecoder(embed_dim, 48, 2)([x, encoder_outputs])
x = layers.Dropout(0.1)(x)
decoder_outputs = layers.Dense(vocab_size, activation="softmax")(x)
transformer = keras.Model({"encoder_inputs": encoder_inputs, "decoder_inputs": decoder_inputs}, decoder_outputs)
transformer.compile(
    keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=0),
    metrics=["accuracy"],
)
transformer.fit(train_ds, epochs=6, validation_data=val_ds)
