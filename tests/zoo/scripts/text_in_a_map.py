"""Text classification from scratch: the vectorization is a map of the dataset."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(1)
GOOD, BAD = ["good", "great", "fine", "superb"], ["bad", "awful", "poor", "dull"]
COMMON = ["the", "film", "was", "and", "<br />", "story", "actor"]


def review(label):
    words = list(rng.choice(COMMON, 8)) + list(rng.choice(GOOD if label else BAD, 2))
    rng.shuffle(words)
    return " ".join(words)


labels = rng.integers(0, 2, 800)
texts = [review(label) for label in labels]
raw_train_ds = tf.data.Dataset.from_tensor_slices((texts[:640], labels[:640])).shuffle(640).batch(32)
raw_val_ds = tf.data.Dataset.from_tensor_slices((texts[640:], labels[640:])).batch(32)


def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    return tf.strings.regex_replace(lowercase, "<br />", " ")


vectorize_layer = keras.layers.TextVectorization(
    standardize=custom_standardization, max_tokens=1000, output_mode="int", output_sequence_length=12
)
vectorize_layer.adapt(raw_train_ds.map(lambda x, y: x))


def vectorize_text(text, label):
    text = tf.expand_dims(text, -1)
    return vectorize_layer(text), label


train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(buffer_size=10)
val_ds = raw_val_ds.map(vectorize_text).cache().prefetch(buffer_size=10)

inputs = keras.Input(shape=(None,), dtype="int64")
x = layers.Embedding(1000, 16)(inputs)
x = layers.Dropout(0.2)(x)
x = layers.Conv1D(16, 5, padding="valid", activation="relu", strides=2)(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(16, activation="relu")(x)
predictions = layers.Dense(1, activation="sigmoid", name="predictions")(x)
model = keras.Model(inputs, predictions)
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(train_ds, validation_data=val_ds, epochs=8)

inputs = keras.Input(shape=(1,), dtype="string")
end_to_end_model = keras.Model(inputs, model(vectorize_layer(inputs)))
