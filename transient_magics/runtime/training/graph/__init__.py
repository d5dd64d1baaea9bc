"""The graph of a training step around any model: gradients weighted, sent and applied.

`step` builds a step, asynchronous or synchronous, and `state` handles what layers assign. `worker`
is the whole graph of a worker, and `file` stores it for workers that join later. `variables` is the
chief's graph.
"""

from __future__ import annotations
