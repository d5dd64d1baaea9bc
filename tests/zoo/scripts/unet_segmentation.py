"""Image segmentation with a U-Net-like network and a PyDataset."""

import keras
import numpy as np
from keras import layers


class Shapes(keras.utils.PyDataset):
    def __init__(self, count, batch_size, seed, **kwargs):
        super().__init__(**kwargs)
        rng = np.random.default_rng(seed)
        self.batch_size = batch_size
        self.images = rng.random((count, 16, 16, 3)).astype("float32")
        self.masks = (self.images.sum(-1) > 1.5).astype("uint8")

    def on_epoch_end(self):
        order = np.random.permutation(len(self.images))
        self.images, self.masks = self.images[order], self.masks[order]

    def __len__(self):
        return len(self.images) // self.batch_size

    def __getitem__(self, idx):
        i = idx * self.batch_size
        return self.images[i : i + self.batch_size], self.masks[i : i + self.batch_size]


def get_model(img_size, num_classes):
    inputs = keras.Input(shape=(*img_size, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
    x = layers.BatchNormalization(momentum=0.9)(x)
    x = layers.Activation("relu")(x)
    previous_block_activation = x
    x = layers.SeparableConv2D(16, 3, padding="same")(x)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    residual = layers.Conv2D(16, 1, strides=2, padding="same")(previous_block_activation)
    x = layers.add([x, residual])
    for filters in [16, 8]:
        x = layers.Activation("relu")(x)
        x = layers.Conv2DTranspose(filters, 3, padding="same")(x)
        x = layers.UpSampling2D(2)(x)
    x = layers.concatenate([x, inputs])
    outputs = layers.Conv2D(num_classes, 3, activation="softmax", padding="same")(x)
    return keras.Model(inputs, outputs)


model = get_model((16, 16), 2)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="sparse_categorical_crossentropy")
callbacks = [keras.callbacks.ModelCheckpoint("segmentation.keras", save_best_only=True)]
model.fit(Shapes(256, 32, 1, workers=2), epochs=8, validation_data=Shapes(64, 32, 2), callbacks=callbacks, verbose=2)
