"""Train one script of the zoo twice, as Python does and as a worker of a run does: `python -m tests.zoo.trial SCRIPT`.

Prints one line of JSON. `plain` has what `model.evaluate` gives after the script's own `model.fit`, and `run` the same
after the run's steps, by one worker in this process. `graph` has what an evaluation of the run gives for the same
weights, and `predicted` the largest difference between a prediction of the run and `model.predict`. A refused script
has `refused` instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.programs import check
from transient_magics.runtime.programs.evaluate import all_batches
from transient_magics.runtime.role import Stopwatch
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.examples import Examples, Source, iterator_of
from transient_magics.runtime.training.graph.file import nodes
from transient_magics.runtime.training.graph.worker import WorkerGraph
from transient_magics.runtime.training.user_model.structure import weight_names
from transient_magics.runtime.training.user_model.trainable import OwnModel
from transient_magics.runtime.worker.graph import GraphMaker

_SEED = 11


def plain(script: str) -> dict[str, Any]:
    """Execute a script; return the metrics of its model after its last `fit`."""
    import keras

    keras.utils.set_random_seed(_SEED)
    last: dict[str, Any] = {}
    fit = keras.Model.fit

    def fit_and_keep(self: Any, *given: Any, **options: Any) -> Any:
        history = fit(self, *given, **{**options, "verbose": 0})
        last.update(model=self, history=history.history)
        return history

    keras.Model.fit = fit_and_keep
    exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
    history = {name: float(values[-1]) for name, values in last["history"].items() if _is_number(values[-1])}
    return {"history": history}


def _is_number(value: Any) -> bool:
    return not getattr(value, "shape", ())


def run(script: str, declared: dict[str, Any]) -> dict[str, Any]:
    """Train a script as a run of one worker; return its metrics, or why it is refused."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place))
        folder.cell.write_text(script, encoding="utf-8")
        (folder.path / "run.json").write_text(
            json.dumps({"name": "run", "train_steps": 3, "seed": _SEED, **declared}), encoding="utf-8"
        )
        answer = _in_child(lambda: check.answer(folder))
        if not answer["ok"]:
            return {"refused": answer["error"], "line": answer["line"]}
        return {"declared": answer["fit"], **_trained(folder, answer["fit"]["steps"])}


def _trained(folder: RunFolder, steps: int) -> dict[str, Any]:
    tf = tensorflow()
    spec = replace(folder.spec(), train_steps=steps)
    made = GraphMaker(folder, spec, 1, Stopwatch(time.time(), ""))
    trainable = made._define()
    assert isinstance(trainable, OwnModel)
    assert trainable.keras_model
    model = trainable.keras_model.model
    finished = made.make(0)
    names = weight_names(model.weights)
    initial = [operation.name for operation in finished.graph.get_operations() if operation.name.endswith("/Assign")]
    graph = _here(finished.graph)
    built = _moved(graph, finished.built, WorkerGraph)
    examples = Examples(_moved(graph, finished.examples, Source))
    with tf.Session(graph=graph) as session:
        session.run(initial)
        session.run(built.tables)
        examples.start(session)
        losses = []
        for _ in range(steps):
            feeds = examples.feeds(finished.examples.batch)
            losses.append(float(session.run([built.loss, built.after, built.step], feeds)[0]))
        examples.stop()
        values = session.run([graph.get_tensor_by_name(f"{name}/Read/ReadVariableOp:0") for name in names])
    for weight, value in zip(model.weights, values, strict=True):
        weight.assign(value)
    return {"losses": [losses[0], losses[-1]], **_evaluated(trainable, names, values)}


def _evaluated(trainable: OwnModel, names: list[str], values: list[Any]) -> dict[str, Any]:
    """Return what Keras and the run's own graphs compute with the trained weights."""
    import numpy

    tf = tensorflow()
    assert trainable.keras_model
    with tf.Graph().as_default(), tf.Session() as session:
        pipeline = trainable.evaluation_pipeline()
        iterator = iterator_of(pipeline.dataset)
        batch = iterator.get_next()
        built = trainable.evaluation_graph(batch)
        _load(session, names, values)
        session.run(iterator.initializer, pipeline.feeds)
        loss = all_batches(session, built, batch, pipeline)[0]
        metrics = {name: float(value) for name, value in session.run(dict(built.values)).items()}
        session.run(iterator.initializer, pipeline.feeds)
        first = {key: session.run(value) for key, value in batch.items()} if len(batch) == 1 else session.run(batch)
    with tf.Graph().as_default(), tf.Session() as session:
        serving = trainable.serving_graph()
        _load(session, names, values)
        keys = {trainable._data.names[key]: key for key in trainable._data.features}
        feeds = {tensor: first[keys[name]] for name, tensor in serving.inputs.items()}
        predicted = list(session.run(dict(serving.outputs), feeds).values())
    keras_model = trainable.keras_model.model
    features, _, _ = trainable._data.structured(first)
    by_keras = _flat(keras_model.predict_on_batch(features))
    difference = max(
        float(numpy.max(numpy.abs(numpy.asarray(ours, float) - numpy.asarray(theirs, float)), initial=0))
        for ours, theirs in zip(predicted, by_keras, strict=True)
    )
    return {"graph": {"loss": loss, **metrics}, "predicted": difference}


def _flat(value: Any) -> list[Any]:
    import keras

    return keras.tree.flatten(value)


def _load(session: Any, names: list[str], values: list[Any]) -> None:
    tf = tensorflow()
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
    variables = {variable.op.name: variable for variable in tf.global_variables()}
    for name, value in zip(names, values, strict=True):
        variables[name].load(value, session)


def _here(graph: Any) -> Any:
    """Return a graph without the devices of a cluster."""
    tf = tensorflow()
    definition = graph.as_graph_def()
    for node in nodes(definition):
        node.device = ""
    with tf.Graph().as_default() as copy:
        tf.import_graph_def(definition, name="")
    return copy


def _moved(graph: Any, parts: Any, kind: Any) -> Any:
    """Return a dataclass of tensors with those of the same names in another graph."""

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {moved(key): moved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [moved(item) for item in value]
        return graph.as_graph_element(value.name) if hasattr(value, "graph") else value

    return kind(**{field.name: moved(getattr(parts, field.name)) for field in fields(parts)})


def _in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what `work` returns in a process of its own: Keras counts the layers of a process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            with os.fdopen(writing, "w", encoding="utf-8") as answer:
                json.dump(work(), answer)
            code = 0
        except BaseException:  # noqa: BLE001 - the process ends here
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)


def main() -> None:
    script = Path(sys.argv[1]).read_text(encoding="utf-8")
    os.chdir(tempfile.mkdtemp())
    with contextlib.redirect_stdout(sys.stderr):
        trained = _in_child(lambda: run(script, {}))
        answer = {**trained, "plain": _in_child(lambda: plain(script))}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
