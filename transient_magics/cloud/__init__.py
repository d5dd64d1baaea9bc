"""Compute Engine and Cloud Storage through Google's own clients, with errors one can act on.

`ComputeEngine` makes, finds, watches and deletes VMs: it takes `VmRequest`s and answers with `Vm`s.
`CloudStorage` keeps objects in buckets, `bounded_token` lets a VM do so in one place. There is no
other door to either; everything that goes wrong arrives as one of the typed errors of
`transient_magics.errors`. Nothing of Google's is imported before the first use: that takes about a
second, and `preload()` lets a process spend it in a thread while it does something else.
"""

from .advice import Chance, Shape
from .engine import ComputeEngine, preload
from .examination.examine import Finding
from .firewall import rules
from .images import BASE_LABEL, FOR_LABEL, GPU_LABEL, LOCK_LABEL, Image
from .storage import BoundedToken, CloudStorage, Reach, Stored, bounded_token
from .values import STOPPED, Vm, VmRequest, request_id

__all__ = [
    "BASE_LABEL",
    "FOR_LABEL",
    "GPU_LABEL",
    "LOCK_LABEL",
    "STOPPED",
    "BoundedToken",
    "Chance",
    "CloudStorage",
    "ComputeEngine",
    "Finding",
    "Image",
    "Reach",
    "Shape",
    "Stored",
    "Vm",
    "VmRequest",
    "bounded_token",
    "preload",
    "request_id",
    "rules",
]
