"""Tickets: several inputs by name, several outputs with their own losses and weights."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(25)
num_tags, num_words, num_departments = 6, 80, 4
department = rng.integers(0, num_departments, 600)
title_data = rng.integers(0, num_words // 4, size=(600, 8)) + department[:, None] * num_words // 4
body_data = rng.integers(0, num_words, size=(600, 12))
tags_data = rng.integers(0, 2, size=(600, num_tags)).astype("float32")
priority_targets = tags_data[:, :1]
dept_targets = keras.utils.to_categorical(department, num_departments)
title_input = keras.Input(shape=(None,), name="title")
body_input = keras.Input(shape=(None,), name="body")
tags_input = keras.Input(shape=(num_tags,), name="tags")
title_features = layers.LSTM(16)(layers.Embedding(num_words, 8)(title_input))
body_features = layers.GlobalMaxPooling1D()(layers.Embedding(num_words, 8)(body_input))
x = layers.concatenate([title_features, body_features, tags_input])
priority_pred = layers.Dense(1, name="priority")(x)
department_pred = layers.Dense(num_departments, name="department")(x)
model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_pred, "department": department_pred},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-2),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"department": ["accuracy"]},
)
model.fit(
    {"title": title_data, "body": body_data, "tags": tags_data},
    {"priority": priority_targets, "department": dept_targets},
    epochs=5,
    batch_size=32,
)
