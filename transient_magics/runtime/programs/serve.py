"""Use the trained model of a run: `python -m ...programs.serve --run FOLDER COMMAND ...`.

`predict INPUTS OUTPUTS` reads arrays by feature name from one .npz file, and writes the model's
outputs to another. `decode INPUTS OUTPUTS` does the same with texts. `export TARGET` writes a
SavedModel. `weights OUTPUTS` writes the weights of a Keras model as arrays.

All of them restore the newest checkpoint in FOLDER, or that of `--step`, or for `decode` the mean
of the newest ones. They run on the CPU, without a cluster. Prints one line of JSON: `{"step": N,
...}`, or `{"error": sentence, "kind": class, ...}` with exit code 1, where the class is one of this
package's errors.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import errors
from ...errors import TrainingError
from ...protocol.run import RunSpec
from ..files.checkpoints import Checkpoints, kept_vocabularies, lay_out_vocabularies
from ..folder import RunFolder
from ..role import take_environment
from ..tf import placement
from ..tf.graph_mode import tensorflow
from ..training.loading import load_model
from ..training.trainable import Trainable
from ..training.user_model.structure import (
    described,
    leaves,
    read_arrays,
    weight_names,
    write_arrays,
)
from ..training.user_model.trainable import OwnModel
from ..training.usercode import to_transient_error

_BATCH = 128

Session = Any
ServingGraph = Any


@contextlib.contextmanager
def restored(
    folder: RunFolder,
    spec: RunSpec,
    steps: Sequence[int],
    data: str | None,
    build: Callable[[Trainable], ServingGraph],
) -> Iterator[tuple[Session, Trainable, ServingGraph]]:
    """Yield a session with the mean values of checkpoints, the model, and its graph.

    Parameters
    ----------
    folder, spec
        Folder and declaration of the run.
    steps
        Steps of the checkpoints.
    data
        Folder of the vocabularies, if they are not beside the checkpoint.
    build
        Builds the graph.
    """
    checkpoints = Checkpoints(folder.checkpoints)
    with tempfile.TemporaryDirectory() as own:
        lay_out_vocabularies(folder.checkpoints, Path(own))
        trainable = load_model(folder, spec, data or own, steps[-1])
        _prepare(trainable, spec, own)
    tf = tensorflow()
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        with placement.cut(spec.ps_shards):
            built = build(trainable)
        _refuse_other_model(tf, checkpoints.prefix(steps[0]))
        saver = checkpoints.saver(steps[0])
        with tf.Session(config=placement.plain_config(spec.threads)) as session:
            session.run(
                [
                    tf.global_variables_initializer(),
                    tf.local_variables_initializer(),
                    tf.tables_initializer(),
                ]
            )
            _restore_mean(tf, session, saver, [str(checkpoints.prefix(step)) for step in steps])
            yield session, trainable, built


def _restore_mean(tf: Any, session: Session, saver: Any, prefixes: Sequence[str]) -> None:
    """Restore the mean of checkpoints; whole numbers (counters) are those of the last one."""
    variables = [
        variable for variable in tf.global_variables() if variable.dtype.base_dtype.is_floating
    ]
    means: list[Any] = []
    for place, prefix in enumerate(prefixes, 1):
        saver.restore(session, prefix)
        if len(prefixes) > 1:
            values = session.run(variables)
            means = [
                mean + (value - mean) / place
                for mean, value in zip(means or values, values, strict=True)
            ]
    for variable, mean in zip(variables, means, strict=False):
        variable.load(mean, session)


def predict(
    folder: RunFolder, spec: RunSpec, step: int, data: str | None, inputs: Path, outputs: Path
) -> None:
    """Write the model's outputs for the arrays in `inputs`, in their order."""
    import numpy

    features = read_arrays(inputs)

    def build(trainable: Trainable) -> ServingGraph:
        return trainable.serving_graph(features)

    answers: list[Any] = []
    with restored(folder, spec, [step], data, build) as (session, trainable, built):
        feeds = _feeds(trainable, built, features)
        for begin in range(0, _count(features), _BATCH):
            part = {key: array[begin : begin + _BATCH] for key, array in feeds.items()}
            answers.append(session.run(dict(built.outputs), part))
    whole: dict[str, Any] = {
        name: numpy.concatenate([answer[name] for answer in answers]) for name in answers[0]
    }
    write_arrays(outputs, whole)


def decode(
    folder: RunFolder,
    spec: RunSpec,
    step: int,
    data: str | None,
    inputs: Path,
    outputs: Path,
    *,
    beam_size: int,
    alpha: float,
    average: int,
) -> None:
    """Write the texts that the model outputs for those in `inputs`, in their order, as `texts`.

    Parameters
    ----------
    folder, spec, step, data
        The run, the step of the checkpoint, and the folder of the vocabularies, if any.
    inputs, outputs
        Files of arrays.
    beam_size, alpha
        Width of the beam search, and its penalty of length.
    average
        Number of checkpoints, up to `step`, whose mean is used.
    """
    import numpy

    kept = Checkpoints(folder.checkpoints).steps()
    steps = [older for older in kept if older <= step][:average]
    if len(steps) < average:
        what = f"only {len(steps)} of {average} checkpoints to average are available"
        raise TrainingError(
            what,
            where="average",
            fix="Average fewer; --keep sets how many checkpoints a run keeps.",
        )
    features = read_arrays(inputs)

    def build(trainable: Trainable) -> ServingGraph:
        return trainable.texts().graph(features, beam_size, alpha)

    decoded = list[str]()
    with restored(folder, spec, steps[::-1], data, build) as (session, trainable, built):
        texts = trainable.texts()
        for begin in range(0, _count(features), texts.batch):
            part = {name: array[begin : begin + texts.batch] for name, array in features.items()}
            tokens = session.run(built.outputs["tokens"], _feeds(trainable, built, part))
            decoded += map(texts.decode, tokens)
    write_arrays(outputs, {"texts": numpy.array(decoded)})


def export(folder: RunFolder, spec: RunSpec, step: int, data: str | None, target: Path) -> None:
    """Write a SavedModel with the signature `serving_default` to `target`, which must not exist."""

    def build(trainable: Trainable) -> ServingGraph:
        return trainable.serving_graph()

    with restored(folder, spec, [step], data, build) as (session, _, built):
        tf = tensorflow()
        saved_model = tf.saved_model
        signature = saved_model.predict_signature_def(dict(built.inputs), dict(built.outputs))
        builder = saved_model.Builder(str(target))
        builder.add_meta_graph_and_variables(
            session,
            [saved_model.SERVING],
            {saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: signature},
            main_op=tf.tables_initializer(),
            clear_devices=True,
            strip_default_attrs=True,
        )
        builder.save()


def weights(folder: RunFolder, spec: RunSpec, step: int, outputs: Path) -> dict[str, Any]:
    """Write a Keras model's weights by name, what its preprocessing layers learned, and two examples.

    The examples are those with which the model was first used, by key.

    Returns
    -------
    dict
        The names of the weights in order, the keys, and how the keys make up the features
        (structure.py).
    """
    trainable = load_model(folder, spec, "", step)
    built = trainable.keras_model if isinstance(trainable, OwnModel) else None
    if not isinstance(trainable, OwnModel) or not built:
        raise TrainingError(
            "the cell defines model_fn instead of a Keras model",
            fix="Use run.predict or run.export.",
        )
    values = Checkpoints(folder.checkpoints).read(step)
    names = weight_names(built.model.weights)
    missing = [name for name in names if name not in values]
    if missing:
        what = f"the checkpoint does not have the model's {missing[0]}"
        raise TrainingError(what, where=f"step {step:,}")
    keys = [key for _, key in leaves(trainable.features)]
    features = dict(zip(keys, (value for _, value in leaves(built.example)), strict=True))
    arrays = {f"weight {name}": _as_float32(values[name]) for name in names}
    vocabularies = {f"learned {name}": value for name, value in trainable.learned.items()}
    write_arrays(outputs, {**features, **arrays, **vocabularies})
    return {"weights": names, "features": keys, "given": described(trainable.features)}


def _as_float32(value: Any) -> Any:
    """Convert bfloat16 to float32, without loss, because NumPy's files have no name for it."""
    if value.dtype.name == "bfloat16":
        return value.astype("float32")
    return value


def _count(features: Mapping[str, Any]) -> int:
    return len(next(iter(features.values())))


def _feeds(
    trainable: Trainable, built: ServingGraph, features: Mapping[str, Any]
) -> dict[Any, Any]:
    """Return what to feed: arrays as the model takes them, texts as token numbers."""
    feeds: dict[Any, Any] = {}
    for name, array in features.items():
        placeholder = built.inputs[name]
        if array.dtype.kind == "U" and placeholder.dtype.is_integer:
            array = trainable.texts().encode(name, list(array))
        feeds[placeholder] = _fit(name, array, placeholder)
    return feeds


def _prepare(trainable: Trainable, spec: RunSpec, own: str) -> None:
    try:
        trainable.prepare()
    except Exception as error:
        if own not in str(error):
            raise
        what = f"{spec.problem} needs the vocabulary that was generated with its data"
        fix = "Name its folder on this machine: data_dir=FOLDER."
        raise TrainingError(what, fix=fix) from error


def _refuse_other_model(tf: Any, prefix: Path) -> None:
    """Raise TrainingError if the checkpoint lacks a variable of the model.

    It would have random values, which the outputs would not show.
    """
    saved = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
    names = (placement.place_in_checkpoint(variable)[0] for variable in tf.trainable_variables())
    missing = [name for name in names if name not in saved]
    if missing:
        what = f"the checkpoint does not have the model's {missing[0]}"
        if missing[1:]:
            what += f" and {len(missing) - 1} more"
        raise TrainingError(what, where=prefix.name)


def _fit(name: str, array: Any, placeholder: Any) -> Any:
    """Return `array` in the shape and type that the model takes.

    Raises TrainingError if the shape differs, or values would change.
    """
    shape = placeholder.shape.as_list()
    kind = placeholder.dtype
    if array.ndim == len(shape) - 1 and shape[-1] == 1:
        array = array[..., None]  # grey images, single labels
    fits = array.ndim == len(shape) and all(
        size in (None, actual) for size, actual in zip(shape, array.shape, strict=True)
    )
    if not fits:
        sizes = ", ".join("any" if size is None else str(size) for size in shape[1:])
        what = f"{name} must be a batch of ({sizes}), but has the shape {array.shape}"
        raise TrainingError(what, fix="The first dimension must count the examples.")
    cast = array.astype(kind.as_numpy_dtype)
    if (kind.is_integer or kind.is_bool) and not (cast == array).all():
        what = f"{name} has values that {kind.name} cannot represent"
        fix = "Pass examples as the problem's generator returns them; the model scales them."
        raise TrainingError(what, fix=fix)
    return cast


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Use the trained model of a run.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--step", type=int)
    parser.add_argument("--data", help="folder of the problem's vocabularies")
    what = parser.add_subparsers(dest="what", required=True)
    for name in ("predict", "decode"):
        asking = what.add_parser(name)
        asking.add_argument("inputs", type=Path)
        asking.add_argument("outputs", type=Path)
        if name == "decode":
            asking.add_argument("--beam-size", type=int, default=1)
            asking.add_argument("--alpha", type=float, default=0.0)
            asking.add_argument("--average", type=int, default=1, metavar="CHECKPOINTS")
    what.add_parser("export").add_argument("target", type=Path)
    what.add_parser("weights").add_argument("outputs", type=Path)
    return parser.parse_args()


def _answer(given: argparse.Namespace) -> Mapping[str, Any]:
    folder = RunFolder(given.run)
    offset = 0
    more = dict[str, Any]()
    try:
        spec = folder.spec()
        offset = spec.line_offset
        step = Checkpoints(folder.checkpoints).find(given.step)
        data = given.data
        if not data and not kept_vocabularies(folder.checkpoints) and spec.data_folder:
            # A folder of the VMs, which this machine may have too.
            data = spec.data_folder if Path(spec.data_folder).is_dir() else None
        if given.what == "weights":
            more = weights(folder, spec, step, given.outputs)
        elif given.what == "export":
            export(folder, spec, step, data, given.target)
        elif given.what == "predict":
            predict(folder, spec, step, data, given.inputs, given.outputs)
        else:
            search = {"beam_size": given.beam_size, "alpha": given.alpha, "average": given.average}
            decode(folder, spec, step, data, given.inputs, given.outputs, **search)
    except Exception as error:  # noqa: BLE001 - user code and TensorFlow raise anything
        traceback.print_exc()
        return errors.to_message(to_transient_error(error, offset))
    return {"step": step, **more}


def main() -> None:
    """Print the answer; exit with 1 if it is an error."""
    given = _arguments()
    take_environment()
    # A GPU of this machine may be busy, and one pass needs none.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    with contextlib.redirect_stdout(sys.stderr):  # the cell may print, and only the answer counts
        answer = _answer(given)
    print(json.dumps(answer), flush=True)
    sys.exit("error" in answer)


if __name__ == "__main__":
    main()
