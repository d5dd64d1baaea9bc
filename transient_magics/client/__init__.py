"""What people hold in their hands: clusters and runs, from a notebook, a script or the `transient`
program.

A handle reads the cluster's journal and sends commands to its controller; it never talks to a cloud
itself. Nothing here imports a cloud client, SSH or TensorFlow, so that the first cell answers at
once; and each name of the stub (`__init__.pyi`) is imported when it is first used, so that a
notebook loads only what its cells say.
"""

from __future__ import annotations

from ..imports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
