"""A controller on a VM of its cluster: install it, mirror it, attach to it, synchronize its results."""

from __future__ import annotations
