"""Regression of fuel efficiency on a DataFrame with a Normalization layer."""

import keras
import numpy as np
import pandas as pd
from keras import layers

rng = np.random.default_rng(7)
frame = pd.DataFrame(rng.normal(100, 30, size=(500, 4)), columns=["Cylinders", "Horsepower", "Weight", "Year"])
frame["MPG"] = 30 - 0.1 * frame.Weight + 0.05 * frame.Year + rng.normal(size=500)
train_dataset = frame.sample(frac=0.8, random_state=0)
test_dataset = frame.drop(train_dataset.index)
train_features = train_dataset.copy()
test_features = test_dataset.copy()
train_labels = train_features.pop("MPG")
test_labels = test_features.pop("MPG")
normalizer = layers.Normalization(axis=-1)
normalizer.adapt(np.array(train_features))
model = keras.Sequential([normalizer, layers.Dense(32, activation="relu"), layers.Dense(1)])
model.compile(loss="mean_absolute_error", optimizer=keras.optimizers.Adam(0.02))
history = model.fit(train_features, train_labels, epochs=20, validation_split=0.2, verbose=0)
print(model.evaluate(test_features, test_labels))
