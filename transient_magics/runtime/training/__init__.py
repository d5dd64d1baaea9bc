"""The model of a run, and the graph of one step: for chief, workers, evaluation and predictions.

`trainable` is the interface to a model, of Tensor2Tensor's registry (t2t/) or of the cell
(user_model/). `loading` loads it, and graph/ builds a step around it.
"""

from __future__ import annotations
