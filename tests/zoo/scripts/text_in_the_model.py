"""A bidirectional LSTM whose first layer turns texts into tokens."""

import keras
import numpy as np

texts = np.array(["good film", "bad film", "great", "awful"] * 50, dtype=object)
labels = np.array([1, 0, 1, 0] * 50)
vectorize = keras.layers.TextVectorization(max_tokens=100, output_sequence_length=5)
vectorize.adapt(texts)
model = keras.Sequential(
    [
        vectorize,
        keras.layers.Embedding(100, 16, mask_zero=True),
        keras.layers.Bidirectional(keras.layers.LSTM(8)),
        keras.layers.Dense(1),
    ]
)
model.compile(
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    optimizer=keras.optimizers.Adam(1e-2),
    metrics=["accuracy"],
)
model.fit(texts, labels, epochs=4, validation_split=0.1)
print(model.predict(np.array(["good"], dtype=object)))
