"""Time series classification with a Transformer."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(21)
y_train = rng.integers(0, 2, 600)
x_train = np.sin(np.linspace(0, 12, 40)[None] * (1 + y_train[:, None])) + 0.3 * rng.normal(size=(600, 40))
x_train = x_train[..., None]


def transformer_encoder(inputs, head_size, num_heads, ff_dim, dropout=0):
    x = layers.MultiHeadAttention(key_dim=head_size, num_heads=num_heads, dropout=dropout)(inputs, inputs)
    x = layers.Dropout(dropout)(x)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    res = x + inputs
    x = layers.Conv1D(filters=ff_dim, kernel_size=1, activation="relu")(res)
    x = layers.Dropout(dropout)(x)
    x = layers.Conv1D(filters=inputs.shape[-1], kernel_size=1)(x)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return x + res


inputs = keras.Input(shape=x_train.shape[1:])
x = layers.Conv1D(8, 5, padding="same")(inputs)
x = transformer_encoder(x, 16, 2, 8, 0.1)
x = layers.GlobalAveragePooling1D(data_format="channels_last")(x)
x = layers.Dense(32, activation="relu")(x)
outputs = layers.Dense(2, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.Adam(learning_rate=3e-3),
    metrics=["sparse_categorical_accuracy"],
)
callbacks = [keras.callbacks.EarlyStopping(patience=10, restore_best_weights=True)]
model.fit(x_train, y_train, validation_split=0.2, epochs=8, batch_size=32, callbacks=callbacks)
