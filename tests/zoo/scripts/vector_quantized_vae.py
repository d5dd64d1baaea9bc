"""Vector-quantized autoencoder: a straight-through layer with losses of its own."""

import keras
from keras import layers, ops
from sklearn.datasets import load_digits

digits = load_digits().images[..., None].astype("float32") / 16


class VectorQuantizer(layers.Layer):
    def __init__(self, num_embeddings, embedding_dim, beta=0.25, **kwargs):
        super().__init__(**kwargs)
        self.embedding_dim = embedding_dim
        self.num_embeddings = num_embeddings
        self.beta = beta
        self.embeddings = self.add_weight(
            shape=(embedding_dim, num_embeddings), initializer="random_uniform", trainable=True, name="embeddings_vqvae"
        )

    def call(self, x):
        input_shape = ops.shape(x)
        flattened = ops.reshape(x, [-1, self.embedding_dim])
        similarity = ops.matmul(flattened, self.embeddings)
        distances = ops.sum(flattened**2, axis=1, keepdims=True) + ops.sum(self.embeddings**2, axis=0) - 2 * similarity
        encodings = ops.one_hot(ops.argmin(distances, axis=1), self.num_embeddings)
        quantized = ops.reshape(ops.matmul(encodings, ops.transpose(self.embeddings)), input_shape)
        commitment_loss = ops.mean((ops.stop_gradient(quantized) - x) ** 2)
        codebook_loss = ops.mean((quantized - ops.stop_gradient(x)) ** 2)
        self.add_loss(self.beta * commitment_loss + codebook_loss)
        return x + ops.stop_gradient(quantized - x)


encoder_inputs = keras.Input(shape=(8, 8, 1))
x = layers.Conv2D(16, 3, activation="relu", strides=2, padding="same")(encoder_inputs)
x = layers.Conv2D(8, 1, padding="same")(x)
x = VectorQuantizer(16, 8, name="vector_quantizer")(x)
x = layers.Conv2DTranspose(16, 3, activation="relu", strides=2, padding="same")(x)
model = keras.Model(encoder_inputs, layers.Conv2DTranspose(1, 3, padding="same")(x))
model.compile(optimizer=keras.optimizers.Adam(0.005), loss="mse")
model.fit(digits, digits, epochs=5, batch_size=64)
