"""Vision transformer: patches, a layer with a position embedding, attention."""

import keras
from keras import layers, ops
from sklearn.datasets import load_digits

digits = load_digits()
images = digits.images[..., None].astype("float32") / 16
patch_size, num_patches, projection_dim = 2, 16, 24


class Patches(layers.Layer):
    def __init__(self, patch_size):
        super().__init__()
        self.patch_size = patch_size

    def call(self, images):
        patches = ops.image.extract_patches(images, size=self.patch_size)
        input_shape = ops.shape(images)
        return ops.reshape(patches, (input_shape[0], num_patches, patches.shape[-1]))


class PatchEncoder(layers.Layer):
    def __init__(self, num_patches, projection_dim):
        super().__init__()
        self.num_patches = num_patches
        self.projection = layers.Dense(units=projection_dim)
        self.position_embedding = layers.Embedding(input_dim=num_patches, output_dim=projection_dim)

    def call(self, patch):
        positions = ops.expand_dims(ops.arange(start=0, stop=self.num_patches, step=1), axis=0)
        return self.projection(patch) + self.position_embedding(positions)


inputs = keras.Input(shape=(8, 8, 1))
encoded_patches = PatchEncoder(num_patches, projection_dim)(Patches(patch_size)(inputs))
for _ in range(2):
    x1 = layers.LayerNormalization(epsilon=1e-6)(encoded_patches)
    attention_output = layers.MultiHeadAttention(num_heads=2, key_dim=projection_dim, dropout=0.1)(x1, x1)
    x2 = layers.Add()([attention_output, encoded_patches])
    x3 = layers.LayerNormalization(epsilon=1e-6)(x2)
    x3 = layers.Dense(48, activation=keras.activations.gelu)(x3)
    x3 = layers.Dropout(0.1)(x3)
    x3 = layers.Dense(projection_dim, activation=keras.activations.gelu)(x3)
    encoded_patches = layers.Add()([x3, x2])
representation = layers.LayerNormalization(epsilon=1e-6)(encoded_patches)
representation = layers.Flatten()(representation)
representation = layers.Dropout(0.3)(representation)
logits = layers.Dense(10)(representation)
model = keras.Model(inputs=inputs, outputs=logits)
model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=0.003, weight_decay=0.0001),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[
        keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
        keras.metrics.SparseTopKCategoricalAccuracy(5, name="top-5-accuracy"),
    ],
)
model.fit(x=images, y=digits.target, batch_size=64, epochs=5, validation_split=0.1)
