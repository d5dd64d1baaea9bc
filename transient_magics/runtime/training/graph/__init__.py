"""The graph of a training step around whatever is trained: counted, divided, weighted, sent,
applied.

`step` builds a step, asynchronous or synchronous; `state` is what layers assign. `worker` is all
that a worker runs, and `file` holds that built, for those who join later; `variables` is what the
chief runs.
"""

from __future__ import annotations
