"""Transfer learning: augmentation within the model, and a frozen base with batch normalization."""

import keras
from keras import layers
from sklearn.datasets import load_digits

digits = load_digits()
images = (digits.images[..., None] * 16).astype("float32")
base_model = keras.Sequential(
    [keras.Input((8, 8, 1)), layers.Conv2D(24, 3), layers.BatchNormalization(), layers.ReLU()], name="base"
)
base_model.trainable = False
inputs = keras.Input(shape=(8, 8, 1))
x = layers.RandomTranslation(0.1, 0.1)(inputs)
scale_layer = keras.layers.Rescaling(scale=1 / 127.5, offset=-1)
x = scale_layer(x)
x = base_model(x, training=False)
x = keras.layers.Flatten()(x)
x = keras.layers.Dropout(0.2)(x)
outputs = keras.layers.Dense(10)(x)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
model.fit(images, digits.target, epochs=6, validation_split=0.2)
