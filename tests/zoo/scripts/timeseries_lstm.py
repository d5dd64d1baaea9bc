"""Weather forecasting: timeseries_dataset_from_array, an LSTM, early stopping and a checkpoint."""

import keras
import numpy as np

rng = np.random.default_rng(20)
values = np.stack([np.sin(np.arange(900) / 9), np.cos(np.arange(900) / 9)], 1) + 0.05 * rng.normal(size=(900, 2))
train, val = values[:700], values[700:]
sequence_length = 12
dataset_train = keras.preprocessing.timeseries_dataset_from_array(
    train[:-sequence_length], train[sequence_length:, :1], sequence_length=sequence_length, batch_size=32
)
dataset_val = keras.preprocessing.timeseries_dataset_from_array(
    val[:-sequence_length], val[sequence_length:, :1], sequence_length=sequence_length, batch_size=32
)
for batch in dataset_train.take(1):
    inputs, targets = batch
inputs = keras.layers.Input(shape=(inputs.shape[1], inputs.shape[2]))
lstm_out = keras.layers.LSTM(16)(inputs)
outputs = keras.layers.Dense(1)(lstm_out)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.01), loss="mse")
es_callback = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=5)
modelckpt_callback = keras.callbacks.ModelCheckpoint(
    monitor="val_loss",
    filepath="model_checkpoint.weights.h5",
    verbose=1,
    save_weights_only=True,
    save_best_only=True,
)
history = model.fit(dataset_train, epochs=6, validation_data=dataset_val, callbacks=[es_callback, modelckpt_callback])
