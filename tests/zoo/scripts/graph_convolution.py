"""Node classification: a graph that the layer keeps as a constant, nodes by their numbers."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

rng = np.random.default_rng(38)
num_nodes = 300
classes = rng.integers(0, 3, num_nodes)
node_features = rng.normal(size=(num_nodes, 8)).astype("float32") + np.eye(3, 8, dtype="float32")[classes]
edges = np.array([(a, b) for a, b in rng.integers(0, num_nodes, (3000, 2)) if classes[a] == classes[b]]).T


class GraphConvLayer(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.prepare = layers.Dense(units, activation="gelu")
        self.update = layers.Dense(units, activation="gelu")

    def call(self, inputs):
        nodes, edges = inputs
        messages = self.prepare(ops.take(nodes, edges[1], axis=0))
        summed = ops.segment_sum(messages, edges[0], num_segments=num_nodes)
        return self.update(ops.concatenate([nodes, summed], axis=1))


class GNNNodeClassifier(keras.Model):
    def __init__(self, graph_info):
        super().__init__()
        nodes, edges = graph_info
        self.nodes = tf.constant(nodes)
        self.edges = tf.constant(edges)
        self.conv = GraphConvLayer(16)
        self.compute_logits = layers.Dense(3)

    def call(self, input_node_indices):
        x = self.conv((self.nodes, self.edges))
        return self.compute_logits(ops.take(x, input_node_indices, axis=0))


model = GNNNodeClassifier((node_features, edges))
model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
model.fit(x=np.arange(num_nodes), y=classes, epochs=8, batch_size=50)
