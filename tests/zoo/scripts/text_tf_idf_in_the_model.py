"""Bag of words: TF-IDF within a functional model of raw strings."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(5)
labels = rng.integers(0, 3, 600)
words = np.array(["cat", "dog", "bird"])
texts = np.array([" ".join([*rng.choice(["a", "the", "big"], 4), words[label]]) for label in labels], dtype=object)
vectorizer = layers.TextVectorization(output_mode="tf_idf", max_tokens=20)
vectorizer.adapt(texts)
inputs = keras.Input(shape=(1,), dtype="string")
x = layers.Dense(16, "relu")(vectorizer(inputs))
model = keras.Model(inputs, layers.Dense(3, "softmax")(x))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(texts, labels, epochs=6, validation_split=0.2)
