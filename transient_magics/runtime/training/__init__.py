"""What is trained, and how one step of it is built: shared by chief, workers, evaluation and
predictions.

`trainable` is the interface to a model: of Tensor2Tensor's registry (t2t/) or of the cell's own
(user_model/); `define` finds which. graph/ builds a step around it.
"""

from __future__ import annotations
