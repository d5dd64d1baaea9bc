"""Structured data with FeatureSpace, in a map of the dataset."""

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from keras.utils import FeatureSpace

rng = np.random.default_rng(3)
size = 600
dataframe = pd.DataFrame(
    {
        "age": rng.integers(20, 80, size),
        "chol": rng.normal(240, 40, size),
        "sex": rng.integers(0, 2, size),
        "thal": rng.choice(["fixed", "normal", "reversible"], size),
    }
)
dataframe["target"] = (dataframe.thal != "normal").astype(int)
train_dataframe, val_dataframe = dataframe[:480], dataframe[480:]


def dataframe_to_dataset(dataframe):
    dataframe = dataframe.copy()
    labels = dataframe.pop("target")
    return tf.data.Dataset.from_tensor_slices((dict(dataframe), labels)).shuffle(len(dataframe))


train_ds = dataframe_to_dataset(train_dataframe).batch(32)
val_ds = dataframe_to_dataset(val_dataframe).batch(32)
feature_space = FeatureSpace(
    features={
        "sex": "integer_categorical",
        "thal": "string_categorical",
        "age": "float_discretized",
        "chol": "float_normalized",
    },
    crosses=[("sex", "age")],
    crossing_dim=16,
    output_mode="concat",
)
feature_space.adapt(train_ds.map(lambda x, _: x))
preprocessed_train_ds = train_ds.map(lambda x, y: (feature_space(x), y)).prefetch(tf.data.AUTOTUNE)
preprocessed_val_ds = val_ds.map(lambda x, y: (feature_space(x), y)).prefetch(tf.data.AUTOTUNE)

dict_inputs = feature_space.get_inputs()
encoded_features = feature_space.get_encoded_features()
x = keras.layers.Dense(32, activation="relu")(encoded_features)
x = keras.layers.Dropout(0.5)(x)
predictions = keras.layers.Dense(1, activation="sigmoid")(x)
training_model = keras.Model(inputs=encoded_features, outputs=predictions)
training_model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
inference_model = keras.Model(inputs=dict_inputs, outputs=predictions)
training_model.fit(preprocessed_train_ds, epochs=12, validation_data=preprocessed_val_ds, verbose=2)
