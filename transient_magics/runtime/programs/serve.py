"""Use the trained model of a run: `python -m ...programs.serve --run FOLDER
predict|decode|export|weights ...`.

`predict INPUTS OUTPUTS` reads arrays by feature name from one .npz file and writes the model's
answers to another; `decode INPUTS OUTPUTS` does the same with the texts that the model writes;
`export TARGET` writes a SavedModel; `weights OUTPUTS` writes the weights of a Keras model as
arrays. All restore the newest checkpoint in FOLDER (or that of `--step`; or, to decode, the mean of
the newest), on the CPU, without any cluster. Prints one line of JSON: `{"step": N, ...}`, or
`{"error": sentence, "kind": class, ...}` with exit code 1, where the class is one of this package's
errors.
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
    """A session in which what `build` builds has the mean values of the checkpoints at `steps`.
    `data`: where vocabularies are, if not beside the checkpoint.
    """
    checkpoints = Checkpoints(folder.checkpoints)
    with tempfile.TemporaryDirectory() as own:
        lay_out_vocabularies(folder.checkpoints, Path(own))
        trainable = load_model(folder, spec, data or own)
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
    """Numbers that are no fractions (counters) are those of the last one."""
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
    """Write the model's answers to the arrays of `inputs`, in their order."""
    import numpy

    given = read_arrays(inputs)
    with restored(
        folder, spec, [step], data, lambda trainable: trainable.serving_graph(given)
    ) as found:
        session, trainable, built = found
        fed = _fed(trainable, built, given)
        answers = [
            session.run(
                dict(built.outputs),
                {key: array[begin : begin + _BATCH] for key, array in fed.items()},
            )
            for begin in range(0, _count(given), _BATCH)
        ]
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
    """Write the texts with which the model answers those of `inputs`, in their order, as `texts`.

    The model is the mean of so many checkpoints up to `step`.
    """
    import numpy

    steps = [each for each in Checkpoints(folder.checkpoints).steps() if each <= step][:average]
    if len(steps) < average:
        what = f"{len(steps)} of the {average} checkpoints are here whose mean is wanted"
        raise TrainingError(what, where="average", fix="A run keeps as many as --keep says.")
    given = read_arrays(inputs)
    decoded = list[str]()
    build = lambda trainable: trainable.texts().graph(given, beam_size, alpha)  # noqa: E731
    with restored(folder, spec, steps[::-1], data, build) as found:
        session, trainable, built = found
        texts = trainable.texts()
        for begin in range(0, _count(given), texts.batch):
            part = {name: array[begin : begin + texts.batch] for name, array in given.items()}
            tokens = session.run(built.outputs["tokens"], _fed(trainable, built, part))
            decoded += map(texts.decode, tokens)
    write_arrays(outputs, {"texts": numpy.array(decoded)})


def export(folder: RunFolder, spec: RunSpec, step: int, data: str | None, target: Path) -> None:
    """Write a SavedModel with the signature `serving_default` to `target`, which must not exist."""
    with restored(folder, spec, [step], data, lambda trainable: trainable.serving_graph()) as (
        session,
        _,
        built,
    ):
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
    """Write a Keras model's weights by their names, and features of two examples, all zeros, by
    their keys.

    Returns the names, those of weights in order, and how the keys make up the features
    (structure.py).
    """
    trainable = load_model(folder, spec, "")
    if not isinstance(trainable, OwnModel) or not (built := trainable.keras_model):
        raise TrainingError(
            "the cell defines model_fn, and no Keras model",
            fix="run.predict and run.export use it.",
        )
    values = Checkpoints(folder.checkpoints).read(step)
    names = weight_names(built.model.weights)
    if missing := [name for name in names if name not in values]:
        raise TrainingError(
            f"the checkpoint does not hold the model's {missing[0]}", where=f"step {step:,}"
        )
    keys = [key for _, key in leaves(trainable.features)]
    features = dict(zip(keys, (value for _, value in leaves(built.example)), strict=True))
    write_arrays(
        outputs, {**features, **{f"weight {name}": _as_numpy_knows(values[name]) for name in names}}
    )
    return {"weights": names, "features": keys, "given": described(trainable.features)}


def _as_numpy_knows(value: Any) -> Any:
    """bfloat16, a kind that its files cannot name, as float32, which holds it exactly."""
    if value.dtype.name == "bfloat16":
        return value.astype("float32")
    return value


def _count(given: Mapping[str, Any]) -> int:
    return len(next(iter(given.values())))


def _fed(trainable: Trainable, built: ServingGraph, given: Mapping[str, Any]) -> dict[Any, Any]:
    """What to feed: arrays as the model takes them, texts as token numbers."""
    fed: dict[Any, Any] = {}
    for name, array in given.items():
        placeholder = built.inputs[name]
        if array.dtype.kind == "U" and placeholder.dtype.is_integer:
            array = trainable.texts().encode(name, list(array))
        fed[placeholder] = _fitting(name, array, placeholder)
    return fed


def _prepare(trainable: Trainable, spec: RunSpec, own: str) -> None:
    try:
        trainable.prepare()
    except Exception as error:
        if own not in str(error):
            raise
        what = f"{spec.problem} needs a vocabulary that was made with its data"
        raise TrainingError(
            what, fix="Say where it is on this machine: data_dir=FOLDER."
        ) from error


def _refuse_other_model(tf: Any, prefix: Path) -> None:
    """What the checkpoint does not hold would be random numbers, and nobody would see it in the
    answers.
    """
    known = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
    names = (placement.place_in_checkpoint(variable)[0] for variable in tf.trainable_variables())
    missing = [name for name in names if name not in known]
    if missing:
        what = f"the checkpoint does not hold the model's {missing[0]}"
        raise TrainingError(
            what + (f" and {len(missing) - 1} more" if missing[1:] else ""), where=prefix.name
        )


def _fitting(name: str, array: Any, placeholder: Any) -> Any:
    """`array` as the model takes it; whole numbers stay what they are, or it is an error."""
    wanted = placeholder.shape.as_list()
    kind = placeholder.dtype
    if array.ndim == len(wanted) - 1 and wanted[-1] == 1:
        array = array[..., None]  # grey images, single labels
    fits = array.ndim == len(wanted) and all(
        size in (None, there) for size, there in zip(wanted, array.shape, strict=True)
    )
    if not fits:
        shape = ", ".join("any" if size is None else str(size) for size in wanted[1:])
        what = f"{name} has the shape {array.shape}, where a batch of ({shape}) is needed"
        raise TrainingError(what, fix="The first dimension counts the examples.")
    if kind.is_integer or kind.is_bool:
        cast = array.astype(kind.as_numpy_dtype)
        if not (cast == array).all():
            what = f"{name} holds values that are no {kind.name}"
            raise TrainingError(
                what, fix="Give examples as the problem's generator does; the model scales them."
            )
        return cast
    return array.astype(kind.as_numpy_dtype)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Use the trained model of a run.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--step", type=int)
    parser.add_argument("--data", help="folder with the problem's vocabularies")
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
        steps = Checkpoints(folder.checkpoints).steps()
        if not steps or given.step not in (None, *steps):
            raise TrainingError("there is no checkpoint to restore", where=str(folder.checkpoints))
        if given.step is None:
            step = steps[0]
        else:
            step = given.step
        # it was the VMs' place
        if spec.data_folder and Path(spec.data_folder).is_dir():
            there = spec.data_folder
        else:
            there = None
        data = given.data or (None if kept_vocabularies(folder.checkpoints) else there)
        if given.what == "weights":
            more = weights(folder, spec, step, given.outputs)
        elif given.what == "export":
            export(folder, spec, step, data, given.target)
        elif given.what == "predict":
            predict(folder, spec, step, data, given.inputs, given.outputs)
        else:
            search = {"beam_size": given.beam_size, "alpha": given.alpha, "average": given.average}
            decode(folder, spec, step, data, given.inputs, given.outputs, **search)
    except Exception as error:  # noqa: BLE001 - user code and TensorFlow raise anything; it is told in one line
        traceback.print_exc()
        return errors.to_message(to_transient_error(error, offset))
    return {"step": step, **more}


def main() -> None:
    """Print the answer; exit with 0 if all is written."""
    given = _arguments()
    take_environment()
    os.environ["CUDA_VISIBLE_DEVICES"] = (
        "-1"  # a GPU of this machine may be busy, and one pass needs none
    )
    with contextlib.redirect_stdout(sys.stderr):  # whatever the cell prints is not the answer
        answer = _answer(given)
    print(json.dumps(answer), flush=True)
    sys.exit("error" in answer)


if __name__ == "__main__":
    main()
