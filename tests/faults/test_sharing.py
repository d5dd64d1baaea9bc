"""Trials that share a VM: the worker of one is killed, the VM is revoked, one ends, and the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import CELL as DIGITS
from tests.faults.conftest import PATIENCE, Patient, end, processes
from tests.faults.test_studies import SWEPT
from transient_magics import client
from transient_magics.cli import verbs
from transient_magics.cli.arguments import parse, split
from transient_magics.cli.options import Code
from transient_magics.client.text import status
from transient_magics.journal import ClusterState, Event, RunState, bill, costs, now
from transient_magics.protocol.vm_events import WorkerJoined, WorkerLeft
from transient_magics.works.studies.state import StudyState
from transient_magics.works.studies.trials import rows_of

SHARING = "--per-vm 2 --train-steps 1000000 --no-check --name s --cluster sh"
LINE = f"--over lr=0.001,0.2,0.02 --objective 'min loss' --pace 0.2 {SHARING}"


@pytest.mark.training
@pytest.mark.nightly
def test_two_trials_on_one_vm_outlive_the_end_of_one_and_of_the_vm(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpu", name="sh"))
    patient = Patient(cluster)
    try:
        study = verbs.begin(parse("study", split(LINE)), Code(SWEPT)).work
        patient.until(_both_step, "two trials that train on one VM")
        assert "training s-0 and s-1" in status(cluster.state, bill(cluster.state, now()), now())
        mark = patient.mark()
        _end_worker(patient, "s-0")
        patient.event(mark, WorkerJoined, run="s-0")
        _step(patient, "s-0", "s-1")
        assert not _left(patient, mark, "s-1", "worker-0"), "the other's worker steps on"

        cluster.revoke("worker-0")
        patient.until(lambda state: _on(state, "worker-1", "s-0", "s-1"), "both on the next VM")
        _step(patient, "s-0", "s-1")
        mark = patient.mark()
        study.trial(0).stop()
        patient.until(lambda state: _on(state, "worker-1", "s-1", "s-2"), "the third trial in its place")
        assert not _left(patient, mark, "s-1", "worker-1")
        study.stop()
        patient.until(lambda state: state.of(StudyState)["s"].over, "the end of the study")
        state, moment = cluster.state, now()
        rows = rows_of(state, study.state, moment, costs(state, moment))
        assert [(row.state, row.revocations) for row in rows] == [("stopped", 1), ("stopped", 1), ("stopped", 0)]
        account = bill(state, moment)
        assert sum(account.lines.values()) == pytest.approx(account.total)
    finally:
        cluster.delete(PATIENCE)


DIGITS_LINE = (
    "--model resnet --hparams-set resnet_digits --problem image_digits --over learning_rate=0.1,0.05 "
    f"--share-input --objective 'max accuracy' --pace 0.3 {SHARING}"
)


@pytest.mark.training
@pytest.mark.nightly
def test_one_process_reads_for_both_and_neither_waits_for_the_other(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpu", name="sh"))
    patient = Patient(cluster)
    try:
        study = verbs.begin(parse("study", split(DIGITS_LINE)), Code(DIGITS)).work
        patient.until(_both_step, "two trials that train on one VM")
        vm = patient.home("worker-0")
        assert len(_reading(vm)) == 1
        runs = vm / "transient" / "runs"
        assert {path.stat().st_size for run in ("s-0", "s-1") for path in (runs / run / "data").glob("*train*")} == {0}
        assert all(path.stat().st_size for path in (runs / "s-input" / "data").glob("*train*"))

        mark = patient.mark()
        _end_worker(patient, "s-0")
        _step(patient, "s-1")
        end(_reading(vm))
        _step(patient, "s-0", "s-1")
        assert not _left(patient, mark, "s-1", "worker-0"), "who waits for mini-batches is not taken for stuck"
        study.stop()
        patient.until(lambda state: state.of(StudyState)["s"].over, "the end of the study")
        patient.sees(lambda: not _reading(vm), "the end of what reads for nobody")
    finally:
        cluster.delete(PATIENCE)


def _both_step(state: ClusterState) -> bool:
    return _on(state, "worker-0", "s-0", "s-1") and all(state.of(RunState)[run].step > 3 for run in ("s-0", "s-1"))


def _on(state: ClusterState, vm: str, *runs: str) -> bool:
    """Whether these runs train on the VM."""
    return all(run in state.of(RunState) and vm in state.of(RunState)[run].workers for run in runs)


def _step(patient: Patient, *runs: str) -> None:
    """Wait until each of them has made some more steps."""
    at = {run: patient.cluster.state.of(RunState)[run].step for run in runs}
    patient.until(lambda state: all(state.of(RunState)[run].step > at[run] + 5 for run in runs), f"steps of {runs}")


def _left(patient: Patient, mark: int, run: str, vm: str) -> list[Event]:
    left = patient.since(mark, WorkerLeft)
    return [each for each in left if isinstance(each, WorkerLeft) and (each.run, each.worker) == (run, vm)]


def _end_worker(patient: Patient, run: str) -> None:
    end(processes("transient_magics.runtime.worker ", str(patient.home("worker-0")), f"/runs/{run} "))


def _reading(vm: Path) -> list[int]:
    return processes("transient_magics.runtime.preparation ", str(vm), "/runs/s-input ")
