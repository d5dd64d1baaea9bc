"""Tensor2Tensor on current TensorFlow: how it is imported, searched, built and fed.

`bridges` must run before anything of tensor2tensor is imported. `registry` finds models, hparams
sets and problems by name and runs the user's cell. `data` turns a problem into examples.
`trainable` builds the graphs. `optimizer` replaces the part of T2T's optimize that no longer works.
Nothing here knows about VMs or the chief.
"""

from __future__ import annotations
