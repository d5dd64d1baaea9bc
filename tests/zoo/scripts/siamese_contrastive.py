"""Image similarity by a Siamese network with a contrastive loss."""

import keras
import numpy as np
from keras import ops
from sklearn.datasets import load_digits

digits = load_digits()
x, y = digits.images.astype("float32") / 16, digits.target
rng = np.random.default_rng(11)
one, two = rng.integers(0, 1700, 1600), rng.integers(0, 1700, 1600)
same = rng.permutation(1700)[:800]
two[:800] = [rng.choice(np.flatnonzero(y[:1700] == y[first])) for first in one[:800]]
labels = (y[one] != y[two]).astype("float32")
order = rng.permutation(1600)
x_train_1, x_train_2, labels_train = x[one][order], x[two][order], labels[order]


def euclidean_distance(vects):
    x, y = vects
    sum_square = ops.sum(ops.square(x - y), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(sum_square, keras.backend.epsilon()))


input = keras.layers.Input((8, 8, 1))
h = keras.layers.BatchNormalization(momentum=0.9)(input)
h = keras.layers.Conv2D(8, (3, 3), activation="tanh")(h)
h = keras.layers.AveragePooling2D(pool_size=(2, 2))(h)
h = keras.layers.Flatten()(h)
embedding_network = keras.Model(input, keras.layers.Dense(10, activation="tanh")(h))
input_1 = keras.layers.Input((8, 8, 1))
input_2 = keras.layers.Input((8, 8, 1))
tower_1, tower_2 = embedding_network(input_1), embedding_network(input_2)
merge_layer = keras.layers.Lambda(euclidean_distance, output_shape=(1,))([tower_1, tower_2])
normal_layer = keras.layers.BatchNormalization(momentum=0.9)(merge_layer)
output_layer = keras.layers.Dense(1, activation="sigmoid")(normal_layer)
siamese = keras.Model(inputs=[input_1, input_2], outputs=output_layer)


def loss(margin=1):
    def contrastive_loss(y_true, y_pred):
        square_pred = ops.square(y_pred)
        margin_square = ops.square(ops.maximum(margin - (y_pred), 0))
        return ops.mean((1 - y_true) * square_pred + (y_true) * margin_square)

    return contrastive_loss


siamese.compile(loss=loss(margin=1), optimizer="RMSprop", metrics=["accuracy"])
siamese.fit([x_train_1, x_train_2], labels_train, validation_split=0.2, batch_size=16, epochs=6)
