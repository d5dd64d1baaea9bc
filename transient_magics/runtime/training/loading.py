"""Which model a run trains, and the imports of TensorFlow that this takes."""

from __future__ import annotations

import importlib
import os
from typing import Any

from ...imports import uncollected
from ...protocol.run import RunSpec
from ..folder import RunFolder
from ..tf.graph_mode import everything
from .reproducibility import seed_process
from .trainable import Trainable
from .usercode import provide_packages


def import_tensorflow(spec: RunSpec) -> Any:
    """TensorFlow as the run needs it; the first that a process does with TensorFlow."""
    if not spec.model:
        return everything()
    from .t2t.bridges import cross

    return cross()


def preload(registered: bool) -> None:
    """Import what takes long, for a process that waits for a run of a `registered` model, or of the
    cell's own.
    """
    if not registered:
        everything()
        _keras()
        return
    from .t2t import bridges

    bridges.preload()


def _keras() -> None:
    """Import it, as almost every cell with a model of its own does: 1.2 s of a core, with what it
    looks for itself (scikit-learn, pandas), and a run has at least three processes that run the
    cell.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    with uncollected():
        importlib.import_module("keras")


def load_model(folder: RunFolder, spec: RunSpec, directory: str) -> Trainable:
    """Run the cell, outside of any graph, and find what it is to train. Raises CellError or
    DeclarationError.

    `directory` is where the data are, or are going to be.
    """
    provide_packages(folder)
    import_tensorflow(spec)
    if spec.seed is not None:
        seed_process(spec.seed, "process")
    if not spec.model:
        from .user_model.trainable import OwnModel

        return OwnModel(folder, spec)
    from .t2t.trainable import RegisteredModel

    return RegisteredModel(folder, spec, directory)
