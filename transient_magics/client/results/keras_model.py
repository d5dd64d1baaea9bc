"""The Keras model of a run, in this process: built by its cell, with the weights of a checkpoint.

Nothing that a VM wrote is used as code or configuration. Another process (`runtime.serve`) reads
the checkpoint and returns arrays. This one runs the cell, as each server did, and loads the arrays
if paths, shapes and types are those of the model. The cell runs in its own thread, because Keras
numbers layers in each thread: `dense` is `dense` again, whatever else the notebook has built.
Settings that the cell makes for Keras, such as its float type, end with the thread.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import TrainingError, reason_of
from ...runtime.folder import RunFolder
from ...runtime.phases import Phases
from ...runtime.tf import graph_mode
from ...runtime.training.user_model import preprocessing
from ...runtime.training.user_model.fit import Fit, Recorder
from ...runtime.training.user_model.keras_model import declared_only
from ...runtime.training.user_model.replay import Replay
from ...runtime.training.user_model.structure import read_arrays, rebuilt, weight_names
from ...runtime.training.usercode import provide_packages, run_program, to_transient_error
from ..commands import run_model_program
from .models import serving_words, with_checkpoint

if TYPE_CHECKING:
    from numpy import ndarray

    from ..recorded_run import RecordedRun

_SUFFIX = ".keras"


def keras_model(run: RecordedRun, file: Path | None, checkpoint: str | int) -> Any:
    """Return the compiled model; write it to `file` if that is given.

    Raises TrainingError, CellError or DeclarationError.
    """
    target = file and _checked(file)
    if registered := RunFolder(run.directory).spec().model:
        fix = "Use run.predict or run.export instead."
        raise TrainingError(
            f"{run.name} trains {registered} of Tensor2Tensor, which is not a Keras model", fix=fix
        )
    step, weights, learned, example = _values(run, checkpoint)
    if "tensorflow" not in sys.modules:
        print(f"The model of {run.name} brings TensorFlow into this process.", file=sys.stderr)
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    graph_mode.prepare()
    with ThreadPoolExecutor(1) as own_thread:
        folder = RunFolder(run.directory)
        model = own_thread.submit(_built, folder, learned, example, step).result()
    _load(model, weights, f"step {step:,} of {run.name}")
    if target:
        _save(model, target)
    return model


def _values(
    run: RecordedRun, checkpoint: str | int
) -> tuple[int, Mapping[str, ndarray], Mapping[str, ndarray], Any]:
    """Return the step of a checkpoint, its weights, what layers learned, and two examples."""
    with tempfile.TemporaryDirectory(prefix="transient-") as temporary:
        which = with_checkpoint(run, Path(temporary), checkpoint)
        arrays = Path(temporary) / "weights.npz"
        answer = run_model_program(
            f"The model of {run.name}", *serving_words(which, None), "weights", str(arrays)
        )
        values = read_arrays(arrays)
    weights = {name: values[f"weight {name}"] for name in answer["weights"]}
    learned = {
        name.removeprefix("learned "): value
        for name, value in values.items()
        if name.startswith("learned ")
    }
    return which[1], weights, learned, rebuilt(answer["given"], values)


def _built(folder: RunFolder, learned: Mapping[str, ndarray], example: Any, step: int) -> Any:
    """Return the cell's model in the phase of a checkpoint, called once, so that it has weights."""
    spec = folder.spec()
    provide_packages(folder)

    def build(fit: Fit) -> Sequence[str]:
        _call(fit.model, example)
        return ()

    try:
        later = Phases(folder).until(step)
        recorder = Recorder(Replay(folder, later, build), len(later))
        with _apart(folder.include), declared_only(folder, recorder):
            module = run_program(folder, spec)
            model = vars(module).get("model")
            if recorder.fit:
                model = recorder.fit.model
            assert model is not None
            preprocessing.restore(model, learned)
            _call(model, example)
    except Exception as error:
        raise to_transient_error(error, spec.line_offset) from error
    return model


def _call(model: Any, example: Any) -> None:
    if model._call_has_training_arg:
        model(example, training=False)
    else:
        model(example)


@contextlib.contextmanager
def _apart(include: Path) -> Iterator[None]:
    """Use the modules of the run within the block, and those of the notebook after it."""
    if include.is_dir():
        names = {path.stem for path in include.iterdir()}
    else:
        names = set[str]()
    path = list(sys.path)
    before = _modules(names)
    try:
        yield
    finally:
        _modules(names)
        sys.modules.update(before)
        sys.path[:] = path


def _modules(names: set[str]) -> dict[str, Any]:
    """Remove these modules and their submodules from `sys.modules`, and return them."""
    found = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in found}


def _load(model: Any, values: Mapping[str, ndarray], where: str) -> None:
    """Set the weights of the model to `values`, by path.

    Raises TrainingError, before any is set, if the values belong to another model.
    """
    weights = dict(zip(weight_names(model.weights), model.weights, strict=True))
    only_one_has = sorted(weights.keys() ^ values.keys())
    if only_one_has:
        if only_one_has[0] in weights:
            without = "The checkpoint"
        else:
            without = "The model that the cell builds here"
        raise TrainingError(f"{without} has no variable {only_one_has[0]}", where=where, fix=_SAME)
    # Keras numbers layers in the order of their creation. In a different order, `dense` and
    # `dense_1` would be swapped. A cell that creates layers in the order of a set has another
    # order in each process.
    if list(weights) != list(values):
        raise TrainingError(
            "The cell creates its layers in a different order here", where=where, fix=_SAME
        )
    for path, weight in weights.items():
        built = _kind(weight.shape, weight.dtype)
        saved = _kind(values[path].shape, values[path].dtype)
        if built != saved:
            raise TrainingError(
                f"{path} is {saved} in the checkpoint, but {built} here", where=where, fix=_SAME
            )
    for path, weight in weights.items():
        weight.assign(values[path])


_SAME = "The cell must create the same model on every machine."


def _kind(shape: Any, dtype: Any) -> str:
    name = str(dtype)
    # NumPy has no bfloat16: such weights are stored as float32, which represents them exactly.
    if name == "bfloat16":
        name = "float32"
    return f"{name}{list(shape)}"


def _checked(file: Path) -> Path:
    target = file.absolute()
    if target.suffix != _SUFFIX:
        raise TrainingError(
            f"{file.name} is not a valid name of a Keras model",
            fix=f"Use a name that ends in {_SUFFIX}.",
        )
    if target.exists():
        raise TrainingError("The file already exists", where=str(target), fix="Use another name.")
    return target


def _save(model: Any, target: Path) -> None:
    """Save the model to `target`, completely or not at all; never replace a file."""
    fresh = target.with_name(f".{target.stem}.{os.getpid()}{_SUFFIX}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        model.save(fresh)
        os.link(fresh, target)  # unlike a rename it replaces nothing
    except OSError as error:
        raise TrainingError(
            f"The model cannot be written: {reason_of(error)}", where=str(target)
        ) from error
    finally:
        fresh.unlink(missing_ok=True)
