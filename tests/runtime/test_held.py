"""A paced step while others change what it computes with: what it pulled is old when it pushes."""

from __future__ import annotations

import json

import pytest

from tests.runtime import programs

pytestmark = pytest.mark.training

PROGRAM = """
import json, os, threading, time
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.graph.worker import WorkerGraph
from transient_magics.runtime.worker.gpu import DelayedPush

tf = tensorflow()
with tf.Graph().as_default(), tf.Session() as session:
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    step = tf.train.get_or_create_global_step()
    share, before = tf.placeholder_with_default(1.0, []), tf.identity(step.read_value())
    loss, fed = weight * 1.0, tf.timestamp()
    with tf.control_dependencies([weight.assign_add(loss * share)]), tf.control_dependencies([step.assign_add(1)]):
        after = tf.identity(step.read_value())
    others = tf.group(weight.assign(100.0), step.assign_add(3))
    graph = WorkerGraph(**dict.fromkeys(WorkerGraph.__dataclass_fields__) | dict(
        loss=loss, before=before, after=after, examples=tf.constant(8), weight=tf.constant(8.0), share=share, fed=fed,
        pulled=tf.identity(fed), forward=tf.identity(fed), backward=tf.identity(fed)))
    session.run(tf.global_variables_initializer())

    class Stop(threading.Event):
        def wait(self, timeout=None):  # while a step is held the others make theirs
            if not self.is_set():
                session.run(others)
            return super().wait(timeout)

    stop, rows = Stop(), []
    held = DelayedPush(graph, stop)
    for pace in (0.6, 0.6, 90.0):
        if pace > 1:
            stop.set()
        began = time.monotonic()
        loss_, before_, after_, examples, _, moments, _ = held.take(session, {share: 2.0}, pace)
        rows.append([float(loss_), int(before_), int(after_), int(examples), len(moments), time.monotonic() - began,
                     float(session.run(weight))])
print(json.dumps(rows))
"""


def test_a_paced_step_pulls_at_its_beginning_and_pushes_at_its_end() -> None:
    first, second, told_to_stop = json.loads(programs.run(PROGRAM, own=True).splitlines()[-1])
    loss, before, after, examples, moments, seconds, weight = first
    assert (loss, before, after, examples, moments) == (1.0, 0, 4, 8, 4)
    assert weight == 102.0  # its gradient is of what it pulled, and applied to what the others made of it
    assert seconds > 0.5
    assert second[0] == 102.0
    assert told_to_stop[5] < 60, "it does not wait for its pace"
