"""The graph of a training step around whatever is trained: counted, divided, weighted, sent, applied.

`training` builds a step; `accumulate` is its synchronous form; `wire` is what crosses to the parameter servers.
`worker` is all that a worker runs, and `file` holds that built, for those who join later.
"""

from __future__ import annotations
