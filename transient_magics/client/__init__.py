"""The Python interface to clusters and work, for notebooks, scripts and the `transient` program.

A handle reads the journal of its cluster and sends commands to the cluster's controller; it does
not call a cloud. Nothing here imports a cloud client, SSH or TensorFlow, so that the first cell
responds quickly. Each name of the stub (`__init__.pyi`) is imported at its first use.
"""

from __future__ import annotations

from ..imports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
