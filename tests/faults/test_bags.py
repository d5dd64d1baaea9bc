"""Bags on a real cluster: jobs that raise, crash or hang, what is revoked or killed meanwhile, and what comes home."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import PATIENCE, Patient, end, processes
from transient_magics import client
from transient_magics.errors import CellError, ClusterError, DeclarationError, PlanError
from transient_magics.journal import bill, now
from transient_magics.protocol import layout
from transient_magics.protocol.outputs import MOST_PRINTED
from transient_magics.works.bags import events as b
from transient_magics.works.bags.state import DeclaredBag
from transient_magics.works.bags.view import picture

CELL = """
import math, os, signal, time
import numpy as np
import tiny_package
from shape import wave

def job(x, seed, checkpoint):
    if x > 0.9:
        print("looking at", x)
        os.system("echo a child says so")
        raise ValueError("no such place")
    if 0.8 < x < 0.85:
        return {"y": math.nan}
    if x < 0.02:
        print("near the edge")
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(9)  # another thread may take the signal
    if 0.6 < x < 0.65:
        time.sleep(1000)
    print("x" * 1_000_000)
    saved = checkpoint.load()
    begun = int(saved["step"][0]) if saved else 0
    for step in range(begun, 20):
        time.sleep(0.05)
        checkpoint.save({"step": np.array([step + 1])})
    noise = np.random.default_rng(seed).normal(0, 0.01)
    return {"y": wave(x) + noise, "y_error": 0.01, "path": np.arange(5.0)}
"""

SLEEPS = """
import time

def job(x):
    time.sleep(1)
    return {"y": x}
"""


def test_results_come_through_faults_of_jobs_and_of_all_that_can_die(
    home: Path, tmp_path: Path, tiny_wheel: Path
) -> None:
    shape = tmp_path / "shape.py"
    shape.write_text("import math\n\ndef wave(x):\n    return math.sin(4 * x)\n", encoding="utf-8")
    cluster = client.declare(client.Declaration("cpux2", name="many", purpose="jobs", max_hours=2.0))
    patient = Patient(cluster)
    how: dict[str, Any] = {
        "source": CELL, "cluster": cluster, "include": (str(shape),), "pip": (str(tiny_wheel),),
    }  # fmt: skip
    try:
        with pytest.raises(DeclarationError, match="many has 2 workers, not 3"):
            client.declare_bag(**how, over="x=0:1", jobs=3, workers=3)
        with pytest.raises(CellError, match="z of --over is not an argument of job"):
            client.declare_bag(**how, over="x=0:1 z=1:2", jobs=3)
        source = CELL.replace("range(begun, 20)", "range(begun, depth)")
        with pytest.raises(CellError, match="'depth' exists in this notebook, but not on the VMs"):
            client.declare_bag(**{**how, "source": source}, over="x=0:1", jobs=3, notebook={"depth": 3})
        asked = {"surrogate": "gp", "timeout_seconds": 4.0, "retries": 0, "line_offset": 1}
        bag = client.declare_bag(**how, over="x=0:1", jobs=24, **asked)
        assert bag.name == "bag-1"
        patient.until(lambda state: len(state.of(DeclaredBag)["bag-1"].state.results) >= 3, "the first results")
        mark = patient.mark()
        cluster.revoke("worker-0")
        patient.until(lambda state: len(state.of(DeclaredBag)["bag-1"].state.results) >= 7, "more results")
        end(processes("transient_magics.works.bags.driver", str(patient.home("ps-0"))))
        patient.until(lambda state: len(state.of(DeclaredBag)["bag-1"].dasks) == 2, "another driver")
        lost = patient.event(mark, b.BagLost, why="lost")
        assert isinstance(lost, b.BagLost)
        os.kill(patient.controller(), signal.SIGKILL)
        ended = bag.wait(PATIENCE)
        assert (ended.phase, ended.reason) == ("finished", "all 24 results are complete")
        whys = {each.why for each in patient.since(0, b.BagLost)}
        reasons = {each.reason for each in patient.since(0, b.BagLost)}
        assert "ValueError in line 12 of the cell: no such place" in reasons, "with the line %%bag above the code"
        assert {"raised", "lost", "crashed"} <= whys
        _see_what_was_printed(patient, bag)
        table = bag.results()
        assert len(table) == 24
        assert not table["x"].between(0.6, 0.65).any()
        assert all(path.parent == bag.directory / layout.RESULTS for path in table["arrays"])
        answer = bag(x=0.3)
        assert answer.source == "surrogate"
        assert abs(answer.value - 0.932) < 4 * answer.sd + 0.02
        with pytest.raises(PlanError, match="is outside of the computed points"):
            bag(x=0.99)
        assert bag.speedup.results == 24
        assert repr(bag.plot("y")).startswith("bag-1, y over x 0 to 1: ")
        drawn = picture(bag)
        assert any(f"{done} done" in drawn for done in (24, 25, 26)), "two that end at once are both done"
        state = cluster.state
        assert bag.cost().total == pytest.approx(bill(state, now()).lines[bag.name])
        assert bag.cost().total <= bill(state, now()).total * (1 + 1e-9), (
            "but for the last digit of sums in another order"
        )
    finally:
        cluster.delete(PATIENCE)


@pytest.mark.nightly
def test_a_bag_is_stopped_by_its_user_or_ends_at_its_own_limit(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpux2", name="many", purpose="jobs", max_hours=2.0))
    patient = Patient(cluster)
    how: dict[str, Any] = {"source": SLEEPS, "cluster": cluster, "over": "x=0:1", "jobs": 500, "surrogate": "none"}
    try:
        stopped = client.declare_bag(**how)
        patient.until(lambda state: len(state.of(DeclaredBag)["bag-1"].state.results) >= 1, "a result")
        stopped.stop()
        assert stopped.wait(PATIENCE).phase == "stopped"
        patient.until(lambda state: not state.leases, "the VMs free again")
        limited = client.declare_bag(**how, max_hours=0.001)
        assert limited.wait(PATIENCE).reason.startswith("it has reached its limit of 0.001 hours")
    finally:
        cluster.delete(PATIENCE)


def _see_what_was_printed(patient: Patient, bag: client.Bag) -> None:
    """Of jobs that failed, whose process crashed among them, and of those that did not."""
    raised = next(each for each in patient.since(0, b.BagLost) if each.why == "raised")
    where = bag.state.state.jobs[raised.job].point["x"]
    assert bag.output(raised.job).endswith(f"looking at {where}\na child says so")
    assert bag.output(raised.job, lines=1).endswith("a child says so")
    crashed = next(each for each in patient.since(0, b.BagLost) if each.why == "crashed")
    assert bag.output(crashed.job).endswith("near the edge")
    assert len(bag.output(bag.state.state.counted[0])) >= MOST_PRINTED, "of a megabyte"
    with pytest.raises(ClusterError, match="bag-1 has no job 99"):
        bag.output(99)
