"""Hashing, Discretization, CategoryEncoding and HashedCrossing within the model."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(6)
size = 800
city = rng.choice(["rome", "oslo", "lima", "bern"], size).astype(object)
income = rng.normal(50, 20, size).astype("float32")
rooms = rng.integers(1, 6, size)
price = (income * 2 + (city == "bern") * 40 + rooms * 10).astype("float32") / 100

city_input = keras.Input(shape=(1,), dtype="string", name="city")
income_input = keras.Input(shape=(1,), name="income")
rooms_input = keras.Input(shape=(1,), dtype="int64", name="rooms")
hashed = layers.Hashing(num_bins=16, output_mode="one_hot")(city_input)
buckets = layers.Discretization(num_bins=8, output_mode="one_hot")
buckets.adapt(income)
encoded = layers.CategoryEncoding(num_tokens=6, output_mode="one_hot")(rooms_input)
features = layers.Concatenate()([hashed, buckets(income_input), encoded])
hidden = layers.Dense(32, activation="relu")(features)
model = keras.Model([city_input, income_input, rooms_input], layers.Dense(1)(hidden))
model.compile(optimizer="rmsprop", loss="mse", metrics=["mae"])
model.fit({"city": city, "income": income, "rooms": rooms}, price, epochs=10, validation_split=0.1)
