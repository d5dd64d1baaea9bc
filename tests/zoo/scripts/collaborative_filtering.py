"""Collaborative filtering: a subclassed model of embeddings."""

import keras
import numpy as np
from keras import layers, ops

rng = np.random.default_rng(8)
num_users, num_movies = 50, 40
EMBEDDING_SIZE = 8
taste = rng.normal(size=(num_users, 3)) @ rng.normal(size=(3, num_movies))
pairs = np.stack([rng.integers(0, num_users, 3000), rng.integers(0, num_movies, 3000)], 1)
ratings = 1 / (1 + np.exp(-taste[pairs[:, 0], pairs[:, 1]]))
x_train, x_val = pairs[:2700], pairs[2700:]
y_train, y_val = ratings[:2700], ratings[2700:]


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        self.user_embedding = layers.Embedding(
            num_users,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-6),
        )
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(num_movies, embedding_size, embeddings_initializer="he_normal")
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs):
        user_vector = self.user_embedding(inputs[:, 0])
        user_bias = self.user_bias(inputs[:, 0])
        movie_vector = self.movie_embedding(inputs[:, 1])
        movie_bias = self.movie_bias(inputs[:, 1])
        dot_user_movie = ops.sum(user_vector * movie_vector, axis=-1, keepdims=True)
        return ops.nn.sigmoid(dot_user_movie + user_bias + movie_bias)


model = RecommenderNet(num_users, num_movies, EMBEDDING_SIZE)
model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(learning_rate=0.01))
history = model.fit(x=x_train, y=y_train, batch_size=64, epochs=8, verbose=1, validation_data=(x_val, y_val))
