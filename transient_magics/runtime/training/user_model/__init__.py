"""Models and data that a cell defines itself: a Keras model or a model_fn, and its examples.

`trainable` documents the names that the cell defines, `data` turns its input_fn into pipelines, and
`keras_model` turns a Keras model into a model_fn.
"""

from __future__ import annotations
