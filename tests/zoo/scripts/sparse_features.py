"""Bags of words as a sparse matrix of scikit-learn."""

import keras
import numpy as np
from keras import layers
from sklearn.feature_extraction.text import CountVectorizer

rng = np.random.default_rng(43)
labels = rng.integers(0, 2, 600)
words = np.array([["cold", "snow"], ["warm", "sun"]])
texts = [" ".join([*rng.choice(["it", "is", "very", "today"], 4), *rng.choice(words[n], 2)]) for n in labels]
features = CountVectorizer().fit_transform(texts).astype("float32")
model = keras.Sequential([layers.Dense(16, "relu"), layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
model.fit(features, labels, batch_size=30, epochs=5, validation_split=0.2)
