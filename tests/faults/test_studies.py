"""Studies on real clusters: killed in the middle each point is tried exactly once, and what is made has its value."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.conftest import LINE_CELL, PATIENCE, Patient, end, processes, take_away
from transient_magics import client
from transient_magics.cli import verbs
from transient_magics.cli.answers import Begun
from transient_magics.cli.arguments import parse, split
from transient_magics.cli.options import Code
from transient_magics.errors import CellError
from transient_magics.journal import RunState, bill, now
from transient_magics.protocol.vm_events import TrainMade
from transient_magics.works.studies.events import StudyAsked
from transient_magics.works.studies.state import StudyState

SWEPT = LINE_CELL.replace('"learning_rate": 0.1', '"learning_rate": lr')
LINE = "--over lr=0.001,0.2,0.02 --objective 'min loss' --train-steps 60 --pace 0.3 --no-check --name s --cluster st"


@pytest.mark.training
def test_a_grid_is_tried_exactly_once_though_its_controller_and_workers_are_killed(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpux2", name="st"))
    patient = Patient(cluster)
    command = parse("study", split(LINE))
    try:
        with pytest.raises(CellError, match="The cell does not read the parameter 'lr'"):
            verbs.begin(command, Code(LINE_CELL))
        begun = verbs.begin(command, Code(SWEPT))
        assert isinstance(begun, Begun)
        study = begun.work
        state = patient.until(
            lambda now: all(run in now.of(RunState) and now.of(RunState)[run].step > 3 for run in ("s-0", "s-1")),
            "two trials that train",
        )
        assert {*state.leases.values()} == {"s-0", "s-1"}, "no worker is a third one's"
        patient.kill(next(iter(state.of(RunState)["s-1"].workers)), "worker")
        patient.until(lambda now: len(now.of(StudyState)["s"].trials) > 2, "a third trial", 2 * PATIENCE)
        patient.until(lambda now: "s-2" in {*now.ahead.values(), *now.leases.values()}, "that makes ready or trains")
        for vm in ("worker-0", "worker-1"):
            end(processes("transient_magics.runtime.worker ", f"{patient.home(vm)}", "/runs/s-2 "))
        os.kill(patient.controller(), signal.SIGKILL)
        best = study.wait(2 * PATIENCE)
        table = study.trials()
        assert list(table["lr"]) == [0.001, 0.2, 0.02]
        assert list(table["state"]) == ["complete"] * 3
        assert list(table["steps"]) == [60] * 3
        assert list(cluster.state.of(RunState)) == ["s-0", "s-1", "s-2"]
        assert best is not None
        assert (best.params["lr"], best.value) == (0.2, table["value"].min())
        assert best.runs[0].evaluate()["loss"] == best.value
        asked = [event.trial for event in cluster.events("study.asked") if isinstance(event, StudyAsked)]
        assert asked == [0, 1, 2]
        moment = now()
        account = bill(cluster.state, moment)
        assert sum(account.lines.values()) == pytest.approx(account.total)
        assert "s: 3 of 3 trials; the best is 1, loss" in str(study)
    finally:
        cluster.delete(PATIENCE)


ON = "--on cpux1,cpux2 --objective 'min loss' --train-steps 20 --seed 1 --no-check --name m --cluster on"


@pytest.mark.training
@pytest.mark.nightly
def test_a_configuration_is_a_part_of_the_running_cluster_or_has_its_own_which_goes_with_it(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpu", name="on"))
    own = client.Cluster("m-cpux2")
    try:
        begun = verbs.begin(parse("study", split(ON)), Code(LINE_CELL))
        assert isinstance(begun, Begun)
        study = begun.work
        assert own.follow(lambda state: "waits for its turn: m " in state.trouble, PATIENCE)
        os.kill(Patient(own).controller(), signal.SIGKILL)
        assert not own.state.vms
        study.wait(3 * PATIENCE)
        assert list(study.trials()["on"]) == ["cpux1", "cpux2"]
        assert list(study.trials()["runs"]) == [["m-0"], ["m-1"]]
        assert {each.params["on"]: each.n for each in study.table()} == {"cpux1": 1, "cpux2": 1}
        assert len({slot for slot, *_ in own.state.tenures["m-1"]}) == 2
        own.wait(PATIENCE, until="deleted")
        assert (own.state.living, own.state.reason) == ([], "m is over")
        parts = [part.cost().lines["m"] for part in (cluster, own)]
        assert study.cost().total == pytest.approx(sum(parts)), "what idled stands in the clusters' bills"
        assert client.cluster().name == "on"
    finally:
        own.delete(PATIENCE)
        cluster.delete(PATIENCE)


@pytest.mark.training
@pytest.mark.nightly
def test_when_the_money_is_spent_what_is_made_has_its_value_and_nothing_is_left_that_costs(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpux2", name="st"))
    try:
        line = "--over lr=0.001:0.3 --sampler random --trials 50 --objective 'min loss' --train-steps 20 --pace 0.2"
        spent = "--max-cost 0.003 --when-done cluster --no-check --name s --cluster st"
        study = verbs.begin(parse("study", split(f"{line} {spent}")), Code(SWEPT)).work
        state = cluster.follow(lambda now: now.over, 3 * PATIENCE)
        assert state is not None, study.trials().to_string()
        assert [vm.name for vm in state.living] == []
        assert study.state.reason == "its limit of $0.0030 is spent"
        trials = study.trials()
        assert list(trials["trial"]) == list(range(len(trials)))
        assert set(trials["state"]) <= {"complete", "stopped"}
        (ended,) = cluster.events("work.stopping")
        made = [each.run for each in cluster.events("train.made") if isinstance(each, TrainMade)
                and each.seq < ended.seq]  # fmt: skip
        complete = {run for run, how in zip(trials["runs"].str[0], trials["state"], strict=True) if how == "complete"}
        assert complete >= {*made}, trials.to_string()
        assert set(trials["steps"][trials["state"] == "complete"]) <= {20}
        assert list(trials["value"].notna()) == list(trials["state"] == "complete")
        assert study.cost().total == pytest.approx(trials["dollars"].sum())
        account = bill(state, now())
        assert sum(account.lines.values()) == pytest.approx(account.total)
    finally:
        cluster.delete(PATIENCE)


BAD = LINE_CELL.replace("import numpy", "import time\nimport numpy").replace(
    "    points = np.linspace",
    """    if trouble == 1:
        raise ValueError("there are no points")
    while mode == "train" and trouble == 4:
        time.sleep(1)
    points = (np.nan if trouble == 2 else 1.0) * np.linspace""",
)


@pytest.mark.training
@pytest.mark.nightly
def test_two_studies_share_a_cluster_lose_all_workers_at_once_and_outlive_trials_that_fail(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpux2", name="st"))
    patient = Patient(cluster)
    shared = "--objective 'min loss' --pace 0.2 --no-check --cluster st"
    try:
        lines = {
            "bad": f"--over trouble=0,1,2,4,3 --train-steps 60 --give-up-after 60s --name bad {shared}",
            "good": f"--over lr=0.01,0.2 --train-steps 30 --name good {shared}",
        }
        bad = verbs.begin(parse("study", split(lines["bad"])), Code(BAD)).work
        patient.until(
            lambda now: "bad-0" in now.of(RunState) and now.of(RunState)["bad-0"].step > 3, "a trial that trains"
        )
        good = verbs.begin(parse("study", split(lines["good"])), Code(SWEPT)).work
        for vm in [vm.name for vm in cluster.state.living if vm.role == "worker"]:
            take_away(f"st-{vm}")
        good.wait(3 * PATIENCE)
        bad.wait(3 * PATIENCE)
        trials = bad.trials()
        assert dict(zip(trials["trouble"], trials["state"], strict=True)) == {
            0: "complete", 1: "failed", 2: "failed", 4: "failed", 3: "complete",
        }, trials.to_string()  # fmt: skip
        assert list(trials["trial"]) == [0, 1, 2, 3, 4]
        assert list(trials["steps"][trials["state"] == "complete"]) == [60, 60]
        assert list(good.trials()["state"]) == ["complete"] * 2
        assert len(cluster.events("vm.revoked")) == 2
        moment = now()
        account = bill(cluster.state, moment)
        assert sum(account.lines.values()) == pytest.approx(account.total)
        assert bad.best.params["trouble"] in (0, 3)
    finally:
        cluster.delete(PATIENCE)
