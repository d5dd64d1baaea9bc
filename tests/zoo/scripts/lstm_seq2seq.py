"""Character-level encoder and decoder, whose decoder begins with the encoder's states."""

import keras
import numpy as np

rng = np.random.default_rng(15)
num_tokens, latent_dim = 8, 24
numbers = rng.integers(1, num_tokens, (600, 5))
encoder_input_data = np.eye(num_tokens, dtype="float32")[numbers]
decoder_target_data = encoder_input_data[:, ::-1].copy()
decoder_input_data = np.concatenate([np.zeros((600, 1, num_tokens), "float32"), decoder_target_data[:, :-1]], 1)
encoder_inputs = keras.Input(shape=(None, num_tokens))
encoder = keras.layers.LSTM(latent_dim, return_state=True)
encoder_outputs, state_h, state_c = encoder(encoder_inputs)
encoder_states = [state_h, state_c]
decoder_inputs = keras.Input(shape=(None, num_tokens))
decoder_lstm = keras.layers.LSTM(latent_dim, return_sequences=True, return_state=True)
decoder_outputs, _, _ = decoder_lstm(decoder_inputs, initial_state=encoder_states)
decoder_dense = keras.layers.Dense(num_tokens, activation="softmax")
decoder_outputs = decoder_dense(decoder_outputs)
model = keras.Model([encoder_inputs, decoder_inputs], decoder_outputs)
model.compile(optimizer="rmsprop", loss="categorical_crossentropy", metrics=["accuracy"])
model.fit([encoder_input_data, decoder_input_data], decoder_target_data, batch_size=32, epochs=5, validation_split=0.2)
model.save("s2s_model.keras")
