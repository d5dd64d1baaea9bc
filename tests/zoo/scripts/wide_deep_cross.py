"""Wide, deep and cross network on categories and numbers, from a dataset of dicts."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(26)
size = 800
columns = {
    "Elevation": rng.normal(size=size).astype("float32"),
    "Slope": rng.normal(size=size).astype("float32"),
    "Soil": rng.choice(["soil_1", "soil_2", "soil_3"], size).astype(object),
}
target = ((columns["Elevation"] > 0) + (columns["Soil"] == "soil_2")).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((columns, target)).shuffle(800).batch(64)


def encode_inputs(inputs, use_embedding=False):
    encoded_features = []
    for name, value in inputs.items():
        if name == "Soil":
            vocabulary = ["soil_1", "soil_2", "soil_3"]
            lookup = layers.StringLookup(
                vocabulary=vocabulary,
                mask_token=None,
                num_oov_indices=0,
                output_mode="int" if use_embedding else "binary",
            )
            if use_embedding:
                encoded = layers.Embedding(input_dim=len(vocabulary), output_dim=4)(lookup(value))
            else:
                encoded = lookup(keras.ops.expand_dims(value, -1))
        else:
            encoded = keras.ops.expand_dims(value, -1)
        encoded_features.append(encoded)
    return layers.concatenate(encoded_features)


inputs = {name: layers.Input(name=name, shape=(), dtype="string" if name == "Soil" else "float32") for name in columns}
x0 = encode_inputs(inputs, use_embedding=True)
cross = x0
for _ in range(2):
    cross = x0 * layers.Dense(cross.shape[-1])(cross) + cross
cross = layers.BatchNormalization(momentum=0.9)(cross)
deep = x0
for units in [16, 16]:
    deep = layers.Dense(units)(deep)
    deep = layers.BatchNormalization(momentum=0.9)(deep)
    deep = layers.ReLU()(deep)
    deep = layers.Dropout(0.1)(deep)
outputs = layers.Dense(units=3, activation="softmax")(layers.concatenate([cross, deep, encode_inputs(inputs)]))
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
history = model.fit(dataset, epochs=6)
