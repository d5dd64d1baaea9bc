"""Multi-label text classification: TF-IDF in a map, labels by a lookup."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(4)
terms = ["cs.LG", "cs.CV", "stat.ML", "cs.AI"]
words = {"cs.LG": "learning", "cs.CV": "image", "stat.ML": "bayes", "cs.AI": "agent"}
chosen = [list(rng.choice(terms, 2, replace=False)) for _ in range(600)]
summaries = [" ".join([*rng.choice(["we", "show", "that"], 5), *(words[term] for term in row)]) for row in chosen]
lookup = keras.layers.StringLookup(output_mode="multi_hot")
lookup.adapt(tf.ragged.constant(chosen))
label_binarized = lookup(np.array(chosen)).numpy()


def make_dataset(first, last):
    dataset = tf.data.Dataset.from_tensor_slices((summaries[first:last], label_binarized[first:last]))
    return dataset.shuffle(500).batch(32)


train_dataset = make_dataset(0, 500)
validation_dataset = make_dataset(500, 600)
text_vectorizer = layers.TextVectorization(max_tokens=50, ngrams=2, output_mode="tf_idf")
text_vectorizer.adapt(train_dataset.map(lambda text, label: text))
train_dataset = train_dataset.map(lambda text, label: (text_vectorizer(text), label))
validation_dataset = validation_dataset.map(lambda text, label: (text_vectorizer(text), label))
shallow_mlp_model = keras.Sequential(
    [layers.Dense(64, activation="relu"), layers.Dense(lookup.vocabulary_size(), activation="sigmoid")]
)
shallow_mlp_model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["binary_accuracy"])
shallow_mlp_model.fit(train_dataset, validation_data=validation_dataset, epochs=6)
