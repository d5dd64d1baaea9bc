"""MLP-Mixer layers with a learning rate that falls on a plateau, and early stopping."""

import keras
from keras import layers
from sklearn.datasets import load_digits

digits = load_digits()
x_train = digits.images.astype("float32")


class MLPMixerLayer(layers.Layer):
    def __init__(self, num_patches, hidden_units, dropout_rate, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mlp1 = keras.Sequential(
            [
                layers.Dense(units=num_patches, activation="gelu"),
                layers.Dense(units=num_patches),
                layers.Dropout(rate=dropout_rate),
            ]
        )
        self.mlp2 = keras.Sequential(
            [layers.Dense(units=num_patches, activation="gelu"), layers.Dense(units=hidden_units)]
        )
        self.normalize = layers.LayerNormalization(epsilon=1e-6)

    def build(self, input_shape):
        return super().build(input_shape)

    def call(self, inputs):
        x = self.normalize(inputs)
        x_channels = keras.ops.transpose(x, axes=(0, 2, 1))
        mlp1_outputs = self.mlp1(x_channels)
        mlp1_outputs = keras.ops.transpose(mlp1_outputs, axes=(0, 2, 1))
        x = mlp1_outputs + inputs
        return x + self.mlp2(self.normalize(x))


inputs = layers.Input(shape=(8, 8))
x = layers.Normalization(mean=5.0, variance=36.0)(inputs)
x = layers.Dense(16)(x)
x = keras.Sequential([MLPMixerLayer(8, 16, 0.1) for _ in range(2)])(x)
representation = layers.GlobalAveragePooling1D()(x)
model = keras.Model(inputs=inputs, outputs=layers.Dense(10)(representation))
model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=0.01, weight_decay=0.0001),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
early_stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=10, restore_best_weights=True)
model.fit(
    x=x_train, y=digits.target, batch_size=64, epochs=6, validation_split=0.1, callbacks=[early_stopping], verbose=0
)
