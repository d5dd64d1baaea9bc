"""What an evaluation here finds of a checkpoint, beside what Tensor2Tensor's own model function finds of the same one.

`python -m tests.runtime.t2t_evaluation` prints all of it; with `--quick` it is the program of test_t2t_evaluation.py.

Theirs: Problem.input_fn gives the dev split, T2TModel.estimator_model_fn the metrics; only the loop around them, which
was TensorFlow's estimator, is written here. Each model has made a few steps, and has a process of its own. Also: the
mean of two checkpoints that run.decode takes, beside one that is computed from their files.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.runtime import programs

CELL = f"""{(programs.PROJECT / "templates" / "digits.py").read_text(encoding="utf-8")}
from tensor2tensor.data_generators import algorithmic
from tensor2tensor.models import lstm, transformer


@registry.register_problem
class ReverseBits(algorithmic.AlgorithmicReverseBinary40):
    num_shards, train_length, dev_length, train_size, dev_size = 1, 12, 12, 2000, 60


@registry.register_hparams
def transformer_bits():
    hparams = transformer.transformer_tiny()
    hparams.hidden_size, hparams.filter_size, hparams.batch_size, hparams.num_hidden_layers = 32, 64, 256, 1
    return hparams


@registry.register_hparams
def lstm_bits():
    hparams = lstm.lstm_seq2seq()
    hparams.hidden_size, hparams.batch_size = 32, 256
    return hparams
"""
MODELS = [
    ("transformer", "transformer_bits", "reverse_bits"),
    ("resnet", "resnet_digits", "image_digits"),
    ("lstm_seq2seq", "lstm_bits", "reverse_bits"),
    ("basic_fc_relu", "basic_fc_small", "image_digits"),
]
QUICK = MODELS[:2]
STEPS = (3, 6)


def compared(model: str, hparams_set: str, problem: str, found: Any) -> None:
    """Put the largest deviation of each part into the pipe."""
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 1)
        with tempfile.TemporaryDirectory() as place:
            found.send(_compared(Path(place), {"model": model, "hparams_set": hparams_set, "problem": problem}))


def _compared(place: Path, names: dict[str, str]) -> dict[str, float]:
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.programs.evaluate import evaluate
    from transient_magics.runtime.training.loading import load_model

    (place / "cell.py").write_text(CELL, encoding="utf-8")
    declared = {"name": "run-1", "train_steps": STEPS[-1], "eval_batches": 0, **names}
    (place / "run.json").write_text(json.dumps(declared), encoding="utf-8")
    folder = RunFolder(place)
    trainable = load_model(folder, folder.spec(), str(folder.data))
    trainable.generate(str(folder.data), str(place / "temporary"))
    _train(trainable, folder)
    theirs, batches = _by_tensor2tensor(trainable, folder)
    # The cell runs once in a process: what was defined here is what is evaluated.
    import transient_magics.runtime.programs.evaluate as module

    module.load_model = lambda *_: trainable
    ours = evaluate(folder, folder.spec(), None)
    assert (ours["complete"], ours["batches"]) == (True, batches), ours
    part = evaluate(folder, folder.spec().from_dict({**declared, "eval_batches": 1}), None)
    assert (part["batches"], part["complete"]) == (1, batches == 1), part
    assert not ours["undefined"], ours
    deviations = [abs(ours["metrics"][name] - value) / max(1.0, abs(value)) for name, value in theirs.items()]
    mean = _mean_deviation(trainable, folder)
    return {"metrics": float(len(theirs)), "deviation": max(deviations), "mean": mean}


def _train(trainable: Any, folder: Any) -> None:
    from transient_magics.runtime.files.checkpoints import Checkpoints
    from transient_magics.runtime.tf.graph_mode import tensorflow
    from transient_magics.runtime.training.graph.step import training_graph

    tf = tensorflow()
    with tf.Graph().as_default():
        trainable.prepare()
        pipeline = trainable.training_pipeline()
        dataset = pipeline.dataset if pipeline.batched else pipeline.dataset.batch(trainable.batch)
        iterator = tf.data.make_initializable_iterator(dataset)
        built = training_graph(trainable, dict(iterator.get_next()))
        saver = tf.train.Saver(tf.global_variables())
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(iterator.initializer, pipeline.feeds)
            for step in range(1, STEPS[-1] + 1):
                session.run(built.step, {built.divisor: 1.0})
                if step in STEPS:
                    write = lambda prefix: saver.save(session, prefix, write_meta_graph=False)  # noqa: E731
                    Checkpoints(folder.checkpoints).write(step, write)


def _by_tensor2tensor(trainable: Any, folder: Any) -> tuple[dict[str, float], int]:
    """Its metrics by their short names, and of how many batches they are."""
    from transient_magics.runtime.files.checkpoints import Checkpoints
    from transient_magics.runtime.tf.graph_mode import tensorflow
    from transient_magics.runtime.training.t2t.bridges import autograph_off

    tf, definition, batches = tensorflow(), trainable._definition, 0
    mode = tf.estimator.ModeKeys.EVAL
    with tf.Graph().as_default(), autograph_off():
        tf.train.get_or_create_global_step()
        dataset = definition.problem.input_fn(mode, definition.hparams, data_dir=str(folder.data))
        features, labels = tf.data.make_one_shot_iterator(dataset).get_next()
        features = {**features, "targets": labels}
        specification = definition.model.estimator_model_fn(definition.hparams, features, labels, mode)
        operations = {name.rpartition("/")[2]: made for name, made in specification.eval_metric_ops.items()}
        operations = {name: made for name, made in operations.items() if isinstance(made, tuple)}
        step = STEPS[-1]
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            Checkpoints(folder.checkpoints).saver(step).restore(
                session, str(Checkpoints(folder.checkpoints).prefix(step))
            )
            while True:
                try:
                    session.run([update for _, update in operations.values()])
                    batches += 1
                except tf.errors.OutOfRangeError:
                    break
            values = session.run({name: value for name, (value, _) in operations.items()})
    return {name: float(value) for name, value in values.items()}, batches


def _mean_deviation(trainable: Any, folder: Any) -> float:
    from transient_magics.runtime.files.checkpoints import Checkpoints
    from transient_magics.runtime.programs import serve

    serve.load_model = lambda *_: trainable
    files = [Checkpoints(folder.checkpoints).read(step) for step in STEPS]
    build = lambda trainable: trainable.serving_graph()  # noqa: E731
    with serve.restored(folder, folder.spec(), STEPS, str(folder.data), build) as (session, _, _):
        from transient_magics.runtime.tf.graph_mode import tensorflow

        variables = {each.op.name: each for each in tensorflow().trainable_variables()}
        found = session.run(variables)
    assert any((files[0][name] != files[1][name]).any() for name in found)
    return max(float(abs(found[name] - (files[0][name] + files[1][name]) / 2).max(initial=0.0)) for name in found)


def main() -> None:
    """Print the number of metrics, and the largest deviations, relative where a value is above 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two models")
    quick = parser.parse_args().quick
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")
    from transient_magics.runtime.training.t2t import bridges

    bridges.preload()
    processes = multiprocessing.get_context("fork")
    for model, hparams_set, problem in QUICK if quick else MODELS:
        receiver, sender = processes.Pipe(False)
        process = processes.Process(target=compared, args=(model, hparams_set, problem, sender))
        process.start()
        sender.close()
        try:
            answer = receiver.recv()
        except EOFError:
            raise SystemExit(f"{model}: its process died") from None
        process.join()
        print(f"{model}: metrics  {answer['metrics']:.0f}.0")
        print(f"{model}: largest deviation from Tensor2Tensor's  {1e6 * answer['deviation']:.3f} 1e-6")
        print(f"{model}: of the mean of two checkpoints  {1e6 * answer['mean']:.3f} 1e-6", flush=True)


if __name__ == "__main__":
    main()
