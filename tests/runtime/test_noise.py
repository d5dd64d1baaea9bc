"""The noise of gradients: the estimate on problems whose noise is known, in the graph, and within its share of time."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.runtime import programs
from tests.runtime.test_own_models import KERAS, OWN, TABLE
from transient_magics.runtime.worker.meter import COUNT, NoiseProbe, estimate

# Examples are points around the origin with a covariance of VARIANCE in each of SIZE directions, the loss is half their
# mean squared distance from the weights: the gradient is weights - mean(points), its noise VARIANCE * SIZE / batch.
SIZE, VARIANCE = 20, 0.5
PROGRAM = """
import json, sys, time
from dataclasses import fields
import numpy as np
from transient_magics.runtime.training.graph.worker import gradient_sum
from transient_magics.runtime.training.graph.worker import WorkerGraph
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.worker.meter import COUNT, NoiseProbe

SIZE, VARIANCE = int(sys.argv[1]), float(sys.argv[2])
tf, random = tensorflow(), np.random.default_rng(1)


def small(sparse):
    with tf.Graph().as_default() as graph:
        points = tf.placeholder(tf.float32, [None, SIZE])
        table = tf.get_variable("table", initializer=np.ones((3, SIZE), "f"), use_resource=True)
        read = tf.identity(table.read_value())
        weights = tf.nn.embedding_lookup(table, tf.fill([tf.shape(points)[0]], 1)) if sparse else read[1]
        loss = tf.reduce_mean(tf.reduce_sum(tf.square(weights - points), axis=1)) / 2
        optimizer = tf.train.GradientDescentOptimizer(1.0)
        pairs = optimizer.compute_gradients(loss, [table])
        assert isinstance(pairs[0][0], tf.IndexedSlices) == sparse
        with tf.device("/cpu:0"):
            squared, summed, cleared = gradient_sum(pairs)
        others = {item.name: None for item in fields(WorkerGraph)}
        measured = {"examples": tf.shape(points)[0], "squared": squared, "summed": summed, "cleared": cleared}
        measured |= {"variables": [] if sparse else [read], "step": optimizer.apply_gradients(pairs)}
        built = WorkerGraph(**{**others, **measured})
        return graph, built, points, table, tf.global_variables_initializer()


def probed(sparse, batches, estimates, moved=False):
    graph, built, points, table, start = small(sparse)
    sizes = [batches[each % len(batches)] for each in range(estimates * COUNT)]
    drawn = [random.normal(0, VARIANCE ** 0.5, (size, SIZE)) for size in sizes]
    with tf.Session(graph=graph) as session:
        session.run(start)
        before = session.run(table)
        probe, found = NoiseProbe(built, 1.0), []

        for number in range(estimates * COUNT):
            if not number % COUNT:
                session.run(start)
            made = probe.measure(session, {points: drawn.pop()})
            if moved:  # this or another worker's step
                session.run(built.step, {points: np.zeros((4, SIZE))})
            assert (made is not None) == ((number + 1) % COUNT == 0)
            found += [made] if made else []
        assert not drawn
        assert moved or (session.run(table) == before).all(), "nothing is applied"
        return [float(np.mean([getattr(each, name) for each in found])) for name in ("squared", "signal", "noise")]


def kept_to(share):
    graph, built, points, table, start = small(False)
    with tf.Session(graph=graph) as session:
        session.run(start)
        never, probe, began = NoiseProbe(built, 0.0), NoiseProbe(built, share), time.monotonic()
        assert not probe.due(0.001), "before the first step"
        for each in (never, probe):
            each.begin(0.2)
        made = estimates = 0
        while estimates < 5:
            time.sleep(0.001)
            assert not never.due(0.001)
            if not probe.due(0.001):
                continue
            if not made % COUNT:
                assert probe.spent + COUNT * 0.001 <= share * (time.monotonic() - began)
                assert not probe.due(0.001, others=10**6), "the others would wait for it too"
            made += 1
            estimates += probe.measure(session, {points: np.zeros((4, SIZE))}) is not None


kept_to(0.1)
uneven = probed(False, [4, 8, 16, 32], 250)
print(json.dumps([probed(False, [16], 250), probed(True, [16], 250), uneven, probed(False, [16], 250, moved=True)]))
"""


# What is still read of the parameter servers where the values of the variables are fed.
READ = """
import json, sys
from pathlib import Path
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.tf import placement
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.loading import load_model
from transient_magics.runtime.training.graph.worker import build

folder, tf = RunFolder(Path(sys.argv[1])), tensorflow()
spec = folder.spec()
trainable = load_model(folder, spec, str(folder.data))
with tf.Graph().as_default():
    trainable.prepare()
    built = build(trainable, trainable.placeholders(), spec, placement.worker_device(7), 2)
fed, found = {value.op for value in built.variables}, set()
waiting = [built.squared.op, built.summed.op]
while waiting:
    operation = waiting.pop()
    if operation not in found and operation not in fed:
        found.add(operation)
        waiting += [*(given.op for given in operation.inputs), *operation.control_inputs]
def reads_of_servers(operation):
    return any(given.dtype == tf.resource and "/job:ps" in given.device for given in operation.inputs)


reads = [each.type for each in found if reads_of_servers(each)]
print(json.dumps({"fed": len(fed), "read": reads}))
"""


@pytest.mark.training
@pytest.mark.parametrize(("cell", "fed", "read"), [(KERAS, 7, []), (TABLE, 1, ["ResourceGather"])])
def test_an_estimate_reads_each_variable_once_and_rows_of_embeddings_for_each_gradient(
    tmp_path: Path, cell: str, fed: int, read: list[str]
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(OWN), encoding="utf-8")
    (tmp_path / "cell.py").write_text(cell, encoding="utf-8")
    assert json.loads(programs.run(READ, tmp_path, own=True).splitlines()[-1]) == {"fed": fed, "read": read}


@pytest.mark.training
def test_the_graph_measures_a_known_noise_and_applies_nothing() -> None:
    """Dense and sparse gradients, mini-batches that differ, and steps between the gradients of an estimate, the first
    of which ends at the minimum: 250 estimates come within 5 %, and in no more time."""
    found = programs.run(PROGRAM, SIZE, VARIANCE, own=True)
    dense, sparse, uneven, moved = json.loads(found.splitlines()[-1])
    for squared, signal, noise in (dense, sparse, uneven, moved):
        assert signal == pytest.approx(SIZE, rel=0.05)  # all weights are one
        assert noise == pytest.approx(VARIANCE * SIZE, rel=0.05)
        assert squared > signal
    assert dense[0] == pytest.approx(SIZE + VARIANCE * SIZE / 16, rel=0.05)


def test_with_a_share_of_one_gradients_are_measured_beside_every_step_from_the_first_one_on() -> None:
    graph: Any = SimpleNamespace(cleared=None, variables=[], squared=None, summed=None, examples=None)
    always, nearly = NoiseProbe(graph, 1.0), NoiseProbe(graph, 0.99)
    assert not always.due(0.001), "before the first step"
    for probe in (always, nearly):
        probe.begin(600.0)
    assert always.due(0.001)
    assert always.due(0.001, others=3)
    assert not nearly.due(0.001), "the first step took longer than all time since"


def gradients(random: np.random.Generator, weights: np.ndarray, batch: int, count: int) -> np.ndarray:
    return weights - random.normal(0, np.sqrt(VARIANCE / batch), (count, SIZE))


def from_norms(found: np.ndarray, batch: float) -> Any:
    return estimate(float((found**2).sum(axis=1).mean()), float((found.mean(axis=0) ** 2).sum()), batch, len(found))


@pytest.mark.parametrize("scale", [1.0, 8.0, 64.0])
@pytest.mark.parametrize(("batch", "count"), [(4, 2), (4, 8), (32, 4), (32, 16)])
def test_the_noise_scale_depends_neither_on_the_batch_nor_on_their_number(scale: float, batch: int, count: int) -> None:
    """Means of enough estimates, whose own error is known: within four of it."""
    random = np.random.default_rng(count)
    weights = np.full(SIZE, np.sqrt(VARIANCE / scale))  # tr(Sigma) / |G|^2 = scale
    made = [from_norms(gradients(random, weights, batch, count), batch) for _ in range(4000)]
    for name, known in (("signal", SIZE * VARIANCE / scale), ("noise", SIZE * VARIANCE)):
        values = np.array([getattr(each, name) for each in made])
        assert abs(values.mean() - known) < 4 * values.std() / np.sqrt(len(made))
        assert values.std() / np.sqrt(len(made)) < 0.25 * known


def test_the_gradients_that_training_applies_would_mislead() -> None:
    """Where a run fluctuates around its minimum, the product of two gradients in a row is below zero, G^2 is not."""
    random, batch, rate = np.random.default_rng(0), 8, 0.3
    weights, before = np.zeros(SIZE), np.zeros(SIZE)
    true, applied, probed = [], [], []
    for _ in range(4000):
        (gradient,) = gradients(random, weights, batch, 1)
        true.append((weights**2).sum())
        applied.append(gradient @ before)
        probed.append(from_norms(gradients(random, weights, batch, COUNT), batch).signal)
        weights, before = weights - rate * gradient, gradient
    assert np.mean(applied) < 0 < np.mean(true)
    assert np.mean(probed) == pytest.approx(np.mean(true), rel=0.05)
