"""Several runs at once: each with its own workers and a process of its own on the parameter server's VM."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import PATIENCE, Patient
from transient_magics import client
from transient_magics.cli import verbs
from transient_magics.cli.arguments import parse
from transient_magics.client import text
from transient_magics.errors import ClusterError
from transient_magics.journal import ClusterState, RunState
from transient_magics.protocol.vm_events import TrainStarted, WorkerJoined

CELL = """
import numpy as np
import tensorflow as tf


def input_fn(mode):
    points = np.linspace(-1, 1, 64, dtype=np.float32)[:, None]
    return tf.data.Dataset.from_tensor_slices((points, 3 * points))


model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
"""

WIDE = CELL.replace(
    "tf.keras.layers.Dense(1)", "tf.keras.layers.Dense(640), tf.keras.layers.Dense(640), tf.keras.layers.Dense(1)"
)
"""The same with 412,161 parameters: 1.65 MB each way in a step."""


def queue_is_changed(cluster: client.Cluster, trained: dict[str, Any]) -> None:
    """As a user does it, while `late` waits behind `long` and `short`."""
    last = client.train(name="last", workers=3, train_steps=10, **trained)
    cluster.follow(lambda now: "last" in now.of(RunState), PATIENCE)
    assert "last  waits behind late" in str(act("status shared"))
    assert act("move shared last") == "Next on shared: last, late."
    assert "late  waits behind last" in str(act("status shared"))
    assert act("move shared late --before last") == "Next on shared: late, last."
    for line, said in (
        ("move shared nobody", "Unknown run 'nobody' (shared)"),
        ("move shared long", "long has begun already, and does not wait. These wait: late, last."),
        ("move shared last --before short", "short has begun already"),
        ("move shared last --before last", "last cannot begin before itself"),
    ):
        with pytest.raises(ClusterError, match=said):
            act(line)
    assert verbs.act(parse("stop", ["shared", "last"])) == "last leaves the queue."
    assert last.wait(PATIENCE).step == 0
    assert verbs.act(parse("stop", ["shared", "last"])) == "last has already ended."


def act(line: str) -> Any:
    """What the verb of a line in a cell or a terminal answers."""
    return verbs.act(parse("cluster", line.split()))


@pytest.mark.training
@pytest.mark.nightly
def test_two_runs_train_side_by_side_and_a_third_begins_with_what_is_left(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpux3", name="shared"))
    patient = Patient(cluster)
    trained = {"source": CELL, "cluster": cluster, "check": False, "eval_steps": None, "pace_seconds": 0.4}
    try:
        long = client.train(name="long", workers=2, train_steps=100_000, **trained)
        short = client.train(name="short", workers=1, train_steps=100_000, **trained)
        late = client.train(name="late", workers=1, train_steps=10, **trained)
        state = patient.until(
            lambda now: len(now.of(RunState)["long"].workers) == 2 and now.of(RunState)["short"].workers,
            "two runs with workers",
        )
        assert not set(state.of(RunState)["long"].workers) & set(state.of(RunState)["short"].workers)
        assert late.state.phase == "declared"
        shown = text.status(cluster.state, cluster.cost(), time.time())
        assert "late  waits for the end of long or short" in shown
        assert shown.count("training long") == 2
        queue_is_changed(cluster, trained)

        lost = next(iter(state.of(RunState)["long"].workers))
        mark = patient.mark()
        cluster.revoke(lost)
        replaced = patient.event(mark, WorkerJoined, run="long")
        assert replaced.worker not in state.of(RunState)["long"].workers, (
            "the replacement goes to whoever lost a worker"
        )  # type: ignore[attr-defined]

        short.stop()
        assert short.wait(PATIENCE).step > 0
        assert late.wait(PATIENCE).step >= 10

        def together(now: ClusterState) -> bool:
            return now.of(RunState)["long"].phase == "running" and len(now.of(RunState)["long"].workers) == 2

        before = patient.until(together, "long with its two workers").of(RunState)["long"].step
        os.kill(patient.controller(), signal.SIGKILL)
        patient.until(lambda now: together(now) and now.of(RunState)["long"].step > before, "long goes on")
        long.stop()
        assert long.wait(PATIENCE).step > before
        assert short.directory.joinpath("checkpoints").is_dir()
        assert list(long.directory.glob("checkpoints/model.ckpt-*.index"))
    finally:
        cluster.delete(PATIENCE)


@pytest.mark.training
@pytest.mark.nightly
def test_a_run_that_the_link_does_not_carry_is_told_so_and_begins_once_it_does(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpux3", name="narrow"))
    patient = Patient(cluster)
    trained = {"source": WIDE, "cluster": cluster, "eval_steps": None}
    try:
        cluster.weather(link="30mbit")
        first = client.train(name="first", workers=2, train_steps=100_000, **trained)
        patient.until(
            lambda now: now.of(RunState)["first"].steps_per_second > 0 and first.state.workers, "a saturated link"
        )
        second = client.train(name="second", workers=1, train_steps=5, **trained)
        state = patient.until(lambda now: now.held_back.get("second", ("",))[0] == "link", "the second run waits")
        shown = text.status(state, cluster.cost(), time.time())
        assert "second  waits for the end of first: a parameter server's link carries 30 Mbit/s each way" in shown
        assert not second.state.workers
        os.kill(patient.controller(), signal.SIGKILL)
        first.stop()
        assert first.wait(PATIENCE).checkpoint, "also of a controller that has just taken over"
        assert second.wait(PATIENCE).step >= 5
        order = [event.run for event in cluster.events() if isinstance(event, TrainStarted)]
        assert order == ["first", "second"]
    finally:
        cluster.weather(reset=True)
        cluster.delete(PATIENCE)
