"""How much memory a worker may have. The agent needs it too, and imports nothing of Dask."""

from __future__ import annotations

import os

from ....protocol.dask.spec import DaskSpec

_SHARE, TERMINATE_SHARE = 0.9, 0.95


def limit(spec: DaskSpec) -> int:
    """Bytes: what was declared, or nine tenths of what the VM has. Results are spilled to disk from 60 % of it on."""
    return spec.memory_bytes or int(_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
