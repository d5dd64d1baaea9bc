"""The learning rate of late gradients, in the graph: how far one step moves a weight, by optimizer and by lateness."""

from __future__ import annotations

import json

import pytest

from tests.runtime import programs

pytestmark = pytest.mark.training

PROGRAM = """
import json, os
os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="")
from transient_magics.runtime.training.t2t import bridges

tf = bridges.cross()
from tensor2tensor.models import resnet
from transient_magics.runtime.training.graph.step import applied
from transient_magics.runtime.training.t2t.optimizer import Request, gradients, optimizer as made
from transient_magics.runtime.training.trainable import Objective


def moved(optimizer, late, damped=True):
    with tf.Graph().as_default(), tf.Session() as session:
        hparams = resnet.resnet_cifar_15()
        hparams.optimizer, hparams.weight_decay, hparams.clip_grad_norm = optimizer, 0.0, 0.0
        table = tf.get_variable("table", [3, 1], initializer=tf.ones_initializer())
        loss = tf.reduce_sum(tf.gather(table, [0, 2])) * 0.5
        step = tf.train.get_or_create_global_step()
        began = tf.identity(step.read_value())
        share = tf.placeholder_with_default(1.0, [])
        rate = tf.constant(0.25)
        total, plain, pairs = gradients(Request(loss, rate, hparams, [table]), rate)
        objective = Objective(total, pairs, plain, lambda pairs: pairs, lambda by: made(hparams, rate / by), rate)
        train = applied(objective, step, share, began=began if damped else None)
        session.run(tf.global_variables_initializer())
        session.run(step.assign(100))
        session.run(train, {began: 100 - late})
        assert session.run(step) == 101
        values = session.run(table)[:, 0]
        assert values[1] == 1.0
        return float(1.0 - values[0])


print(json.dumps({
    optimizer: {"plain": moved(optimizer, 8, damped=False), **{late: moved(optimizer, late) for late in (0, 1, 2, 8)}}
    for optimizer in ("sgd", "momentum", "adam")
}))
"""


def test_the_rate_of_a_gradient_is_divided_by_its_staleness_whatever_the_optimizer() -> None:
    moved = json.loads(programs.run(PROGRAM).splitlines()[-1])
    assert set(moved) == {"sgd", "momentum", "adam"}
    for steps in moved.values():
        assert steps["plain"] > 0
        for late, divisor in (("0", 1), ("1", 1), ("2", 2), ("8", 8)):
            assert steps[late] == pytest.approx(steps["plain"] / divisor, rel=1e-4)
