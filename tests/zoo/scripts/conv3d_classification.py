"""3D image classification, with a schedule of the learning rate."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(23)
labels = rng.integers(0, 2, 240)
scans = rng.normal(size=(240, 8, 8, 8)).astype("float32") + labels[:, None, None, None]
train_loader = tf.data.Dataset.from_tensor_slices((scans, labels))


def train_preprocessing(volume, label):
    return tf.expand_dims(volume, axis=3), label


train_dataset = train_loader.shuffle(len(scans)).map(train_preprocessing).batch(8).prefetch(2)
inputs = keras.Input((8, 8, 8, 1))
x = layers.Conv3D(filters=8, kernel_size=3, activation="relu")(inputs)
x = layers.MaxPool3D(pool_size=2)(x)
x = layers.BatchNormalization(momentum=0.9)(x)
x = layers.GlobalAveragePooling3D()(x)
x = layers.Dropout(0.3)(x)
model = keras.Model(inputs, layers.Dense(units=1, activation="sigmoid")(x), name="3dcnn")
lr_schedule = keras.optimizers.schedules.ExponentialDecay(0.01, decay_steps=100, decay_rate=0.96, staircase=True)
model.compile(loss="binary_crossentropy", optimizer=keras.optimizers.Adam(learning_rate=lr_schedule), metrics=["acc"])
model.fit(train_dataset, epochs=4, shuffle=True, verbose=2)
