"""Tensor2Tensor on current TensorFlow: the only place that knows how it is bridged, found, built
and fed.

`bridges` must have been crossed before anything of tensor2tensor is imported; `registry` finds
models, hparams sets and problems by name and runs the user's cell; `data` turns a problem into
examples; `graph` builds the training and evaluation graphs; `optimizer` replaces the part of T2T's
optimize that no longer works. Nothing here knows about VMs or the chief.
"""

from __future__ import annotations
