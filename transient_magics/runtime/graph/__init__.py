"""The graph of a training step around whatever is trained: counted, divided, weighted, sent, applied.

`training` builds a step; `accumulate` is its synchronous form; `wire` is what crosses to the parameter servers.
"""

from __future__ import annotations
