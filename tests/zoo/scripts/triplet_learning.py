"""Metric learning: compute_loss on triplets of images, without labels."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

digits = load_digits()
images, targets = digits.data.astype("float32") / 16, digits.target
rng = np.random.default_rng(39)
anchors = rng.integers(0, len(images), 1000)
positives = np.array([rng.choice(np.flatnonzero(targets == targets[i])) for i in anchors])
negatives = np.array([rng.choice(np.flatnonzero(targets != targets[i])) for i in anchors])
dataset = tf.data.Dataset.from_tensor_slices(((images[anchors], images[positives], images[negatives]),))
dataset = dataset.shuffle(1000).batch(50)


class SiameseModel(keras.Model):
    def __init__(self, embedding, margin=0.5):
        super().__init__()
        self.embedding = embedding
        self.margin = margin

    def call(self, inputs):
        anchor, positive, negative = (self.embedding(image) for image in inputs)
        ap_distance = ops.sum(ops.square(anchor - positive), -1)
        an_distance = ops.sum(ops.square(anchor - negative), -1)
        return ap_distance, an_distance

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        ap_distance, an_distance = y_pred
        return ops.mean(ops.maximum(ap_distance - an_distance + self.margin, 0.0))


embedding = keras.Sequential([layers.Dense(32, "relu"), layers.Dense(16), layers.UnitNormalization()])
siamese_model = SiameseModel(embedding)
siamese_model.compile(optimizer=keras.optimizers.Adam(0.003))
siamese_model.fit(dataset, epochs=6)
