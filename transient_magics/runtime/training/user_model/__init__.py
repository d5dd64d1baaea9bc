"""What a cell defines itself, for people without Tensor2Tensor: its data, and a Keras model or a
model_fn.

The cell's names and what they mean are in `trainable`; `data` turns its input_fn into pipelines,
`keras_model` turns a Keras model into a model_fn.
"""

from __future__ import annotations
