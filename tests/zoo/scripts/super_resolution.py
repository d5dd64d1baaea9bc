"""Image super-resolution: sub-pixel convolution by a custom layer."""

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

images = load_digits().images[..., None].astype("float32") / 16
train_ds = tf.data.Dataset.from_tensor_slices(images[:1500]).batch(50)
valid_ds = tf.data.Dataset.from_tensor_slices(images[1500:]).batch(50)


def process_input(input, input_size):
    return tf.image.resize(input, [input_size, input_size], method="area")


train_ds = train_ds.map(lambda x: (process_input(x, 4), x)).prefetch(buffer_size=32)
valid_ds = valid_ds.map(lambda x: (process_input(x, 4), x)).prefetch(buffer_size=32)


class DepthToSpace(layers.Layer):
    def __init__(self, block_size):
        super().__init__()
        self.block_size = block_size

    def call(self, input):
        batch, height, width, depth = keras.ops.shape(input)
        depth = depth // (self.block_size**2)
        x = keras.ops.reshape(input, [batch, height, width, self.block_size, self.block_size, depth])
        x = keras.ops.transpose(x, [0, 1, 3, 2, 4, 5])
        return keras.ops.reshape(x, [batch, height * self.block_size, width * self.block_size, depth])


conv_args = {"activation": "relu", "kernel_initializer": "orthogonal", "padding": "same"}
inputs = keras.Input(shape=(None, None, 1))
x = layers.Conv2D(16, 3, **conv_args)(inputs)
x = layers.Conv2D(4, 3, **conv_args)(x)
model = keras.Model(inputs, DepthToSpace(2)(x))
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.005), loss=keras.losses.MeanSquaredError())
model.fit(train_ds, epochs=8, validation_data=valid_ds, verbose=2)
