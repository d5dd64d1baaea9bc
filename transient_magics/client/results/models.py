"""The trained model of a run: predictions, answers to texts, and a SavedModel.

TensorFlow runs in its own process (`runtime.serve`), which restores a checkpoint of the run on this
machine; the cluster may be gone. Arrays are passed as .npz files in a folder that only this user
can read.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import TrainingError, reason_of
from ...protocol import layout
from ...runtime.files.checkpoints import Checkpoints
from ...runtime.training.user_model.structure import (
    INPUTS,
    is_named,
    is_text,
    leaves,
    name_of,
    read_arrays,
    unique,
    write_arrays,
)
from ..commands import fetch, run_model_program

if TYPE_CHECKING:
    from numpy import ndarray

    from ..recorded_run import RecordedRun


def predict(
    run: RecordedRun, inputs: Any, data_dir: str | Path | None, checkpoint: str | int
) -> ndarray | dict[str, ndarray]:
    """Return the predictions for `inputs`: one array, or one by name for several outputs."""
    answers = _ask(run, "predict", inputs, data_dir, checkpoint)
    if len(answers) == 1:
        return next(iter(answers.values()))
    return answers


def decode(
    run: RecordedRun,
    inputs: Any,
    data_dir: str | Path | None,
    checkpoint: str | int,
    beam_size: int,
    alpha: float,
    average: int,
) -> list[str]:
    """Return the answers of averaged checkpoints to texts. Raises the errors of `Run.decode`."""
    for name, value in (("beam_size", beam_size), ("average", average)):
        if not isinstance(value, int) or value < 1:
            raise TrainingError(f"{name} must be a whole number of at least 1, not {value!r}")
    search = [
        "--beam-size",
        str(beam_size),
        "--alpha",
        str(float(alpha)),
        "--average",
        str(average),
    ]
    return [
        str(text) for text in _ask(run, "decode", inputs, data_dir, checkpoint, search)["texts"]
    ]


def _ask(
    run: RecordedRun,
    do: str,
    inputs: Any,
    data_dir: str | Path | None,
    checkpoint: str | int,
    how: Sequence[str] = (),
) -> dict[str, ndarray]:
    """Return the arrays of the model's answer, by name."""
    try:
        import numpy
    except ImportError:
        raise TrainingError(
            f"run.{do} needs NumPy, which is not installed here", fix="Run: pip install numpy"
        ) from None
    if _is_structure(inputs, own=not run.recorded.spec.model):
        given = inputs
    else:
        given = {INPUTS: inputs}
    found = [(name_of(INPUTS, path), value) for path, value in leaves(given)]
    names = unique(name for name, _ in found)
    arrays = {
        name: _array(numpy, name, value) for name, (_, value) in zip(names, found, strict=True)
    }
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or not all(counts.values()):
        lengths = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise TrainingError(
            "All features must have the same number of examples, at least 1",
            where=lengths or "inputs",
        )
    with tempfile.TemporaryDirectory(prefix="transient-") as temporary:
        which = with_checkpoint(run, Path(temporary), checkpoint)
        given_file = Path(temporary) / "inputs.npz"
        answer_file = Path(temporary) / "outputs.npz"
        write_arrays(given_file, arrays)
        words = [*serving_words(which, data_dir), do, *how, str(given_file), str(answer_file)]
        run_model_program(f"A prediction of {run.name}", *words)
        return read_arrays(answer_file)


def _is_structure(inputs: Any, *, own: bool) -> bool:
    """Return whether the inputs are several features: for the cell's `own` model also a tuple."""
    several = (
        own
        and isinstance(inputs, tuple)
        and all(len(getattr(input_, "shape", ())) for input_ in inputs)
    )
    return isinstance(inputs, Mapping) or is_named(inputs) or several


def export(
    run: RecordedRun, target: Path, data_dir: str | Path | None, checkpoint: str | int
) -> Path:
    """Write a SavedModel to `target`, completely or not at all.

    Raises TrainingError if the target exists.
    """
    target = target.absolute()
    _refuse_full(target)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        fresh.mkdir(parents=True)
        # Only its parent must exist: TensorFlow creates the folder.
        fresh.rmdir()
        with tempfile.TemporaryDirectory(prefix="transient-") as temporary:
            which = with_checkpoint(run, Path(temporary), checkpoint)
            run_model_program(
                f"The export of {run.name}", *serving_words(which, data_dir), "export", str(fresh)
            )
        _refuse_full(target)
        fresh.rename(target)  # takes the place of an empty folder
    except OSError as error:
        raise TrainingError(
            f"The model cannot be exported: {reason_of(error)}", where=str(target)
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _refuse_full(target: Path) -> None:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise TrainingError(
            "The file or folder already exists",
            where=str(target),
            fix="Name another folder.",
        )


def serving_words(which: tuple[Path, int], data_dir: str | Path | None) -> list[str]:
    """Return the options of `runtime.serve` for a run and a checkpoint."""
    folder, step = which
    words = ["--run", str(folder), "--step", str(step)]
    if data_dir:
        words += ["--data", str(Path(data_dir).expanduser().absolute())]
    return words


def with_checkpoint(run: RecordedRun, temporary: Path, checkpoint: str | int) -> tuple[Path, int]:
    """Return a folder with a run's declaration, cell and checkpoints, and the checkpoint's step.

    It is the run's own folder, or one filled from its bucket. Raises TrainingError without such a
    checkpoint.
    """
    state = run.recorded
    step = _step_of(run, checkpoint)
    here = Checkpoints(run.directory / layout.CHECKPOINTS).steps()
    newest = step is None and (not state.shipped or here[:1] >= [state.shipped_step or 0])
    if here and (newest or step in here):
        return run.directory, here[0] if step is None else step
    if not state.shipped:
        raise _no_checkpoint(run, step)
    folder = temporary / "run"
    folder.mkdir()
    for name in (layout.RUN, layout.CELL, layout.INCLUDE, layout.WHEELS):
        (folder / name).symlink_to(run.directory / name)
    if (place := run.place) is None:
        raise TrainingError(
            f"The checkpoints of {run.name} are in a bucket that is unknown on this machine",
            where=run.cluster.name,
        )
    fetch(*place, folder, results=False)
    there = Checkpoints(folder / layout.CHECKPOINTS).steps()
    if not there or step not in (None, *there):
        raise _no_checkpoint(run, step)
    return folder, there[0] if step is None else step


def _step_of(run: RecordedRun, checkpoint: str | int) -> int | None:
    """Return the step of a checkpoint; None for the last one."""
    if checkpoint == "last":
        return None
    if checkpoint == "best":
        if (best := run.best) is None:
            declared = run.recorded.spec.objective
            if declared is None:
                fix = "Declare a run with --keep-best METRIC to have one."
            else:
                fix = "Wait for its first evaluation."
            raise TrainingError(
                f"{run.name} has no best checkpoint", where=run.cluster.name, fix=fix
            )
        return best.step
    if isinstance(checkpoint, int) and not isinstance(checkpoint, bool) and checkpoint >= 0:
        return checkpoint
    raise TrainingError(f"checkpoint must be 'last', 'best' or a step, not {checkpoint!r}")


def _no_checkpoint(run: RecordedRun, step: int | None) -> TrainingError:
    when = "" if run.recorded.over else " yet"
    if step is None:
        what = "no checkpoint"
    else:
        what = f"no checkpoint of step {step:,}"
    return TrainingError(f"{run.name} has {what}{when}", where=run.cluster.name)


def _array(numpy: Any, name: str, value: Any) -> ndarray:
    """Return a value as an array; sequences of different lengths are padded with zeros."""
    try:
        array = numpy.asarray(value)
    except ValueError:
        array = _filled_up(numpy, value)
    if array.ndim == 0 or (array.dtype == object and not is_text(array)):
        raise TrainingError(
            f"{name} must be an array of examples",
            fix="Use an array or a list with one entry per example.",
        )
    return array


def _filled_up(numpy: Any, sequences: Sequence[Any]) -> ndarray:
    pieces = [numpy.asarray(sequence) for sequence in sequences]
    if any(piece.ndim != 1 for piece in pieces):
        return numpy.empty((), dtype=object)
    array = numpy.zeros(
        (len(pieces), max(len(piece) for piece in pieces)), numpy.result_type(*pieces)
    )
    for row, piece in zip(array, pieces, strict=True):
        row[: len(piece)] = piece
    return array
