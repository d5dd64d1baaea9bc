"""Structured data classification: lookups, encodings and normalizations within the model."""

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(2)
size = 1000
dataframe = pd.DataFrame(
    {
        "age": rng.integers(20, 80, size),
        "chol": rng.normal(240, 40, size),
        "cp": rng.integers(0, 5, size),
        "thal": rng.choice(["fixed", "normal", "reversible"], size),
    }
)
dataframe["target"] = ((dataframe.age > 50) & (dataframe.thal != "normal")).astype(int)
val_dataframe = dataframe.sample(frac=0.2, random_state=1337)
train_dataframe = dataframe.drop(val_dataframe.index)


def dataframe_to_dataset(dataframe):
    dataframe = dataframe.copy()
    labels = dataframe.pop("target")
    ds = tf.data.Dataset.from_tensor_slices((dict(dataframe), labels))
    return ds.shuffle(buffer_size=len(dataframe))


train_ds = dataframe_to_dataset(train_dataframe).batch(32)
val_ds = dataframe_to_dataset(val_dataframe).batch(32)


def encode_numerical_feature(feature, name, dataset):
    normalizer = layers.Normalization()
    feature_ds = dataset.map(lambda x, y: tf.expand_dims(x[name], -1))
    normalizer.adapt(feature_ds)
    return normalizer(feature)


def encode_categorical_feature(feature, name, dataset, is_string):
    lookup_class = layers.StringLookup if is_string else layers.IntegerLookup
    lookup = lookup_class(output_mode="binary")
    feature_ds = dataset.map(lambda x, y: tf.expand_dims(x[name], -1))
    lookup.adapt(feature_ds)
    return lookup(feature)


cp = keras.Input(shape=(1,), name="cp", dtype="int64")
thal = keras.Input(shape=(1,), name="thal", dtype="string")
age = keras.Input(shape=(1,), name="age")
chol = keras.Input(shape=(1,), name="chol")
all_inputs = [cp, thal, age, chol]
all_features = layers.concatenate(
    [
        encode_categorical_feature(cp, "cp", train_ds, False),
        encode_categorical_feature(thal, "thal", train_ds, True),
        encode_numerical_feature(age, "age", train_ds),
        encode_numerical_feature(chol, "chol", train_ds),
    ]
)
x = layers.Dense(32, activation="relu")(all_features)
x = layers.Dropout(0.2)(x)
output = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(all_inputs, output)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.fit(train_ds, epochs=10, validation_data=val_ds)
