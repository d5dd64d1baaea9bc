"""Stalls measured on a cluster as users do it: declared in a cell, answered in text and HTML, kept for plans."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.conftest import PATIENCE, Patient
from transient_magics import client
from transient_magics.cli import verbs
from transient_magics.cli.arguments import parse
from transient_magics.cli.options import Code
from transient_magics.client.folders import KnownRun
from transient_magics.client.planning.workloads import store_of
from transient_magics.errors import DeclarationError
from transient_magics.planner.plan import Plan
from transient_magics.protocol.step_parts import MEASURES
from transient_magics.protocol.vm_events import WorkerLeft
from transient_magics.works.runs.stalls.view import stalls_html

SLEEP = 0.015
"""Seconds of each example's preparation."""
CELL = f"""
import time
import numpy
import tensorflow.compat.v1 as tf
import tensorflow

batch_size = 8

def prepared(number):
    def slowly(value):
        time.sleep({SLEEP})
        return numpy.full([600], value, "float32")
    values = tf.py_func(slowly, [number], tf.float32)
    values.set_shape([600])
    return values, tf.ones([1])

def input_fn(mode):
    return tensorflow.data.Dataset.range(64).map(prepared)

def model_fn(features, labels, mode):
    hidden = tf.nn.relu(features @ tf.get_variable("weights", [600, 60]))
    loss = tf.reduce_mean(tf.square(hidden @ tf.get_variable("last", [60, 1]) - labels))
    return {{"loss": loss, "optimizer": tf.train.AdamOptimizer, "learning_rate": 0.1}}
"""


@pytest.mark.training
@pytest.mark.nightly
def test_a_slow_input_is_found_and_a_worker_that_is_killed_is_missed_by_nobody(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpux2", name="shared"))
    patient = Patient(cluster)
    try:
        stalls = verbs.begin(parse("stalls", ["--repeats", "4", "--seconds", "0.3"]), Code(CELL)).work
        seen = list[str]()
        for report in stalls.changes():
            seen.append(report.words)
            training = stalls.run.state.workers
            if len(training) == 2 and stalls.run.state.step >= 10 and "killed" not in seen:
                seen.append("killed")
                patient.kill(min(training), "worker")
        report = stalls.wait(PATIENCE)
        assert "killed" in seen
        assert any("taken, 2 workers" in each for each in seen), seen
        left = [each for each in cluster.events() if isinstance(each, WorkerLeft)]
        assert "lost" in {each.reason for each in left}
        assert len(stalls.run.state.measured) == 4 * len(MEASURES), "every measure is taken by who is there"

        (bar,) = report.bars
        assert bar.label == "CPU on n1-standard-4"
        assert len(bar.stalls.repeats) == 4
        assert bar.stalls.stalled[0].name == "preparation"
        # How much longer a step takes than its examples sleep, a busy machine decides.
        assert bar.stalls.step.mean >= 0.9 * 8 * SLEEP

        said = str(report)
        assert re.search(r"compute +[\d.]+ ms ± [\d.]+ +\d+% +\$\d\.\d\d of each dollar", said), said
        assert re.search(r"fetch .* no file is read", said), said
        assert "of a step is preparation: a VM with more cores prepares examples faster" in stalls.advice
        assert stalls.advice in stalls_html(report)
        assert stalls.what_if(cores=10.0).times.mean > stalls.what_if(gpu=10.0).times.mean
        assert next(iter(stalls.table()["part"])) == "compute"
        with pytest.raises(DeclarationError, match="Known: CPU on n1-standard-4"):
            stalls.what_if(vm="v100", gpu=2.0)

        known = KnownRun(cluster.directory, stalls.run.state)
        assert store_of(known).stalls("emulated")[known.identity]["cpu"].stalls == bar.stalls
        plans = [
            client.plan("cpux2", workload="stalls-1", train_steps=1000, revocations="none", machine_type=machine)
            for machine in ("", "n1-standard-16")
        ]
        small, large = (each.steps_per_second for each in plans if isinstance(each, Plan))
        assert large > 1.5 * small
        assert "Measured by stalls-1 on 4 vCPUs in 4 repeats" in str(plans[0])
        assert "computed from the stalls that stalls-1 measured" in str(plans[1])
        offered = verbs.act(parse("cluster", ["cpux2", "--dry-run"]))
        assert "With the model of stalls-1: Steps on the CPU wait for their mini-batches" in str(offered)
        assert "Measured by stalls-1 on 4 vCPUs" in str(offered)
        assert client.stalls().name == stalls.name == "stalls-1"
        with pytest.raises(DeclarationError, match="not both"):
            client.declare_stalls("stalls-1", source=CELL)
    finally:
        cluster.delete()
