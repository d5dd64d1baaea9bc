"""The model of a run, with the imports of TensorFlow that it needs."""

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
    """Import TensorFlow as the run needs it.

    Call it before anything else uses TensorFlow.
    """
    if not spec.model:
        return everything()
    from .t2t.bridges import cross

    return cross()


def preload(registered: bool) -> None:
    """Import slow modules, in a process that waits for a run.

    `registered`: the run will train a model of Tensor2Tensor's registry, not one of its cell.
    """
    if not registered:
        everything()
        _import_keras()
        return
    from .t2t import bridges

    bridges.preload()


def _import_keras() -> None:
    """Import Keras, which almost every cell with its own model uses.

    The import takes 1.2 s of a core, including the libraries that Keras searches for (scikit-learn,
    pandas). At least three processes of a run execute the cell.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    with uncollected():
        importlib.import_module("keras")


def load_model(
    folder: RunFolder, spec: RunSpec, directory: str, step: int | None = None
) -> Trainable:
    """Run the cell, outside of any graph, and return the model that it trains.

    Parameters
    ----------
    folder, spec
        The run's folder and declaration.
    directory
        The place of the data, which need not exist yet.
    step
        The step of a checkpoint, whose phase is loaded (None: the run's present phase).

    Raises
    ------
    CellError
        For an exception in the cell.
    DeclarationError
        For an unknown or unsupported model, problem or hyperparameter.
    """
    provide_packages(folder)
    import_tensorflow(spec)
    if spec.seed is not None:
        seed_process(spec.seed, "process")
    if not spec.model:
        from .user_model.trainable import OwnModel

        return OwnModel(folder, spec, step)
    from .t2t.trainable import RegisteredModel

    return RegisteredModel(folder, spec, directory)
