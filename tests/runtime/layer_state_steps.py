"""What becomes of the state that layers assign in a step of several workers; the argument names the check.

A program of its own, because TensorFlow is not imported into the process of the tests. Nothing listens here.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.tf.placement import cut
from transient_magics.runtime.training.graph import state
from transient_magics.runtime.training.graph.step import Accumulators, cross_once
from transient_magics.runtime.training.trainable import Objective

MOMENTA = (0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0)
WORKERS = (1, 2, 3, 4, 8, 17, 32)
SIZE = 3


def variable(tf: Any, name: str, kind: Any = None, shape: Sequence[int] = (SIZE,)) -> tuple[Any, Any]:
    """A variable that begins with zeros, and the value that a step reads of it."""
    kind = kind or tf.float32
    made = tf.get_variable(name, list(shape), kind, tf.zeros_initializer(), trainable=False, use_resource=True)
    return made, tf.convert_to_tensor(made)


def forms(tf: Any) -> None:
    """Moving averages and sums are recognised however they are written, and nothing else is."""
    _, old = variable(tf, "old")
    batch = tf.placeholder(tf.float32, [None, SIZE])
    mean, first = tf.reduce_mean(batch, 0), tf.placeholder(tf.bool, [])
    half = tf.cast(0.5, tf.bfloat16)
    relaxed = [old]
    for _ in range(300):  # each is used twice by the next
        relaxed.append(relaxed[-1] + 0.1 * (mean - relaxed[-1]))
    shares = {
        0.75: [
            old * 0.75 + mean * 0.25,
            0.25 * mean + 0.75 * old,
            old + 0.25 * (mean - old),
            old - (old - mean) * 0.25,
            old - (old - mean) / 4.0,
            tf.add_n([old, 0.25 * mean, -0.25 * old]),
            tf.stop_gradient(tf.identity(old) * 0.75 + mean),
            -(-old * 0.75 - mean),
            0.75 * old + 0.25 * tf.one_hot(tf.argmin(tf.abs(old - mean)), SIZE),
        ],
        0.9**60: [relaxed[60]],
        0.5: [tf.cast(tf.cast(old, tf.bfloat16) * half + tf.cast(mean, tf.bfloat16), tf.float32)],
        1.0: [old + mean, old + tf.reduce_sum(batch, 0) * 2.0, old + 1.0, old - mean],
        0.0: [mean, tf.ones([SIZE]), batch[0]],
    }
    assigned = [
        tf.maximum(old, mean),
        tf.where(first, old, mean),
        old * old,
        old * tf.reduce_mean(old),
        mean / (1.0 + old),
        tf.tanh(old),
        old + 0.9 * tf.reduce_mean(batch - old, 0),  # added up over workers, it would diverge
        tf.where_v2(mean > old, mean, old),
        relaxed[300],
        tf.concat([old[1:], mean[:1]], 0),
    ]
    for share, written in shares.items():
        for number, new in enumerate(written):
            change = state._change(_like(tf.float32), new, [old])
            assert change is not None, (share, number)
            assert abs(change.share - share) < 1e-6, (share, number, change.share)
    for number, new in enumerate(assigned):
        assert state._change(_like(tf.float32), new, [old]) is None, number

    kept = state._change(_like(tf.float32), tf.where_v2(first, 0.75 * old + mean, old), [old])
    begun = state._change(_like(tf.float32), tf.where_v2(first, mean, 0.75 * old + mean), [old])
    assert kept is not None
    assert begun is not None
    with tf.Session() as session:
        assert [session.run(kept.share, {first: each}) for each in (True, False)] == [0.75, 1.0]
        assert [session.run(begun.share, {first: each}) for each in (True, False)] == [0.0, 0.75]

    _, whole = variable(tf, "whole", tf.int64, ())
    counted = state._change(_like(tf.int64), whole + 1, [whole])
    assert counted is not None
    assert counted.share == 1
    at_times = state._change(_like(tf.int64), tf.where_v2(first, whole + 2, whole), [whole])
    assert at_times is not None
    assert at_times.share == 1
    assert state._change(_like(tf.int64), tf.minimum(whole + 1, 5), [whole]) is None
    _, flag = variable(tf, "flag", tf.bool, ())
    assert state._change(_like(tf.bool), tf.logical_or(flag, first), [flag]) is None


def _like(kind: Any) -> Any:
    class Variable:
        dtype = kind

    return Variable


def late(tf: Any) -> None:
    """Moving averages of late workers stay between the batches, and are what one worker in turn would compute."""
    batch = tf.placeholder(tf.float64, [SIZE])
    share = tf.placeholder(tf.float64, [])
    reads, updates, values = [], [], []
    for number, momentum in enumerate((*MOMENTA, share)):
        made, old = variable(tf, f"mean_{number}", tf.float64)
        new = momentum * old + (1 - momentum) * batch
        state.keep(made, old, new)
        reads.append(old)
        values.append(made)
    counter, counted = variable(tf, "counter", tf.int64, ())
    state.keep(counter, counted, counted + 1)
    states, others = state.assigned()
    assert not others
    updates = [operation for each in states for operation in state.merged(each)]
    reads.append(counted)
    dice = random.Random(11)
    with tf.Session() as session:
        for workers in WORKERS:
            session.run(tf.global_variables_initializer())
            drawn = dice.random()
            momenta = (*MOMENTA, drawn)
            expected = np.zeros((len(momenta), SIZE))
            seen = [session.run(reads)] * workers
            steps = 40 + 2 * workers
            for _ in range(steps):
                worker = dice.randrange(workers)
                values_here = np.array([dice.gauss(5, 1) for _ in range(SIZE)])
                session.run(updates, {**dict(zip(reads, seen[worker], strict=True)), batch: values_here, share: drawn})
                expected = np.array(
                    [m * before + (1 - m) * values_here for m, before in zip(momenta, expected, strict=True)]
                )
                if dice.random() < 0.7:  # else it is later still with its next step
                    seen[worker] = session.run(reads)
            found = np.array(session.run(values))
            assert np.isfinite(found).all()
            assert (found > -1e-9).all()
            assert (found < 11).all()
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
            assert session.run(counter) == steps


def begun(tf: Any) -> None:
    """A moving average that begins with the first batch, in the place of what is no number."""
    batch = tf.placeholder(tf.float32, [])
    made = tf.get_variable("mean", initializer=tf.constant(np.nan), trainable=False, use_resource=True)
    old = tf.convert_to_tensor(made)
    state.keep(made, old, tf.where_v2(tf.math.is_nan(old), batch, 0.75 * old + 0.25 * batch))
    (kept,), _ = state.assigned()
    updates = state.merged(kept)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for value in (4.0, 8.0):
            session.run(updates, {batch: value})
        session.run(updates, {batch: 9.0, old: 4.0})  # of a late worker
        assert session.run(made) == 0.75 * 5 + 0.25 * 9


def together(tf: Any) -> None:
    """Synchronous steps assign the mean of the workers' values, of whole numbers the nearest, of flags the majority."""
    batch, flagged = tf.placeholder(tf.float32, [SIZE]), tf.placeholder(tf.bool, [])
    kinds = {"mean": tf.float32, "double": tf.float64, "half": tf.float16, "count": tf.int64, "flag": tf.bool}
    made = {
        name: variable(tf, name, kind, () if name in ("count", "flag") else (SIZE,)) for name, kind in kinds.items()
    }
    news = {name: 0.5 * made[name][1] + 0.5 * tf.cast(batch, kinds[name]) for name in ("mean", "double", "half")}
    news |= {"count": made["count"][1] + tf.cast(batch[0], tf.int64), "flag": flagged}
    for name, new in news.items():
        state.keep(*made[name], new)
    states, _ = state.assigned()
    weights = tf.get_variable("weights", [SIZE], initializer=tf.zeros_initializer(), use_resource=True)
    step = tf.train.get_or_create_global_step()
    rounds = Accumulators([weights], step, states)
    push = rounds.push([(batch, weights)], tf.constant(1.0))
    half = rounds._states[0][2].apply_grad(1000 + batch, local_step=rounds.round)
    optimizer, one = tf.train.GradientDescentOptimizer(0.0), tf.constant(1.0)
    rounds.build_update(Objective(one, [], optimizer, lambda pairs: pairs, lambda by: optimizer, one))
    expected = np.zeros(SIZE)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        rounds.open(session)
        count = 0
        for workers in (1, 2, 3, 4, 32):
            number, _ = session.run(rounds.position)
            batches = np.random.default_rng(workers).normal(5, 2, (workers, SIZE))
            for worker, values in enumerate(batches):
                feeds = {batch: values, flagged: worker % 3 != 0, rounds.round: number}
                session.run(push, feeds)
            session.run(push, {batch: [1e9] * SIZE, flagged: True, rounds.round: number - 1})  # late: dropped
            session.run(rounds.update, {rounds.round: number, rounds.needed: workers})
            expected = 0.5 * expected + 0.5 * batches.mean(0)
            count = round(count + np.trunc(batches[:, 0]).mean())
            found = session.run({name: each for name, (each, _) in made.items()})
            np.testing.assert_allclose(found["mean"], expected, rtol=1e-5)
            np.testing.assert_allclose(found["double"], expected, rtol=1e-5)
            np.testing.assert_allclose(found["half"], expected, rtol=1e-2)
            assert found["count"] == count
            assert found["flag"] == (workers in (3, 32)), "two of three and 21 of 32, but half of two and four"

        # What was pushed before a restore is gone, be it whole or not.
        number, _ = session.run(rounds.position)
        session.run(half, {batch: [0.0] * SIZE, rounds.round: number})
        session.run(push, {batch: [1e9] * SIZE, flagged: True, rounds.round: number})
        rounds.open(session)
        number, _ = session.run(rounds.position)
        session.run(push, {batch: expected, flagged: True, rounds.round: number})
        session.run(rounds.update, {rounds.round: number, rounds.needed: 1})
        np.testing.assert_allclose(session.run(made["double"][0]), expected, rtol=1e-5)


def in_parts(tf: Any) -> None:
    """A large state that is cut over parameter servers moves as one that is whole."""
    rows = 262_144  # 2 MiB
    batch = tf.placeholder(tf.float32, [])
    with cut(2):
        mean, old = variable(tf, "mean", shape=(rows, 2))
        total, summed = variable(tf, "total", shape=(rows, 2))
        last, before = variable(tf, "last", shape=(rows, 2))
    assert len(list(mean)) == 2
    ramp = tf.reshape(tf.range(2.0 * rows), [rows, 2])
    state.keep(mean, old, old * 0.5 + ramp * batch)
    state.keep(total, summed, summed + ramp)
    state.keep(last, before, tf.maximum(before, ramp * batch))
    states, _ = state.assigned()
    rounds = Accumulators([], tf.train.get_or_create_global_step(), states)
    assert len(rounds._states) == 6
    updates = [operation for each in states for operation in state.merged(each)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for value in (2.0, 1.0):
            session.run(updates, {batch: value})
        expected = np.arange(2.0 * rows, dtype="f").reshape(rows, 2)
        for found, times in ((old, 2), (summed, 2), (before, 2)):
            np.testing.assert_array_equal(session.run(found), times * expected)


def exact(tf: Any) -> None:
    """With --wire bf16, what a step assigns is read as it is; every other variable is read in half the bytes."""
    worker = "/job:worker/task:7"
    with tf.device("/job:ps/task:0"):
        mean, old = variable(tf, "mean")
        _, other = variable(tf, "other")
    with tf.device(worker):
        state.keep(mean, old, 0.9 * old + 0.1 * other)
        states, _ = state.assigned()
        cross_once(tf.get_default_graph(), worker, "bf16", [each.variable.handle for each in states])
    narrowed = [
        each.inputs[0].op.inputs[0].op.name for each in tf.get_default_graph().get_operations() if "narrow" in each.name
    ]
    assert narrowed == ["other"]


CHECKS: dict[str, Callable[[Any], None]] = {
    each.__name__: each for each in (forms, late, begun, together, in_parts, exact)
}


def main() -> None:
    tf = tensorflow()
    with tf.Graph().as_default():
        CHECKS[sys.argv[1]](tf)


if __name__ == "__main__":
    main()
