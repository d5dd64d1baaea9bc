"""Jobs, a bag and Dask with the controller on a VM: this machine sleeps, that VM is lost, the cluster ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.conftest import PATIENCE, Patient
from tests.faults.test_controller_on_a_vm import COUNTS, api, governed_by_its_vm, place, until, vms
from transient_magics import client
from transient_magics.client import commands
from transient_magics.journal import events
from transient_magics.works.jobs.state import JobState

BAG = """
import time
import numpy as np

def job(x, checkpoint):
    time.sleep(0.2)
    return {"y": 2 * x, "y_error": 0.01, "path": np.arange(5.0)}
"""


def asleep(patient: Patient) -> None:
    """This machine follows the cluster no more."""
    os.kill(patient.controller(), signal.SIGKILL)
    until(lambda: not commands.in_charge(patient.cluster.directory), "killed")


@pytest.mark.nightly
def test_what_runs_while_this_machine_is_away_is_all_here_when_it_is_back(home: Path, tmp_path: Path) -> None:
    declaration = client.Declaration("cpux2", name="afar", purpose="jobs", controller="cluster", max_hours=2.0)
    cluster = client.declare(declaration)
    patient = governed_by_its_vm(cluster)
    enough = tmp_path / "enough"  # VMs of the emulator see this machine's files
    # A job and a bag: declared here, conducted there.
    job = client.declare_job(
        source=COUNTS, cluster=cluster, name="counts", keep="kept", keep_seconds=5, environment={"ENOUGH": str(enough)}
    )
    bag = client.declare_bag(source=BAG, cluster=cluster, over="x=0:1", jobs=9, surrogate="gp", workers=1)
    patient.until(lambda state: (known := state.of(JobState).get("counts")) and known.kept, "kept")
    until(lambda: "begins at 0" in job.output(), "what it says")
    asleep(patient)
    mark = cluster.state.seq

    # Away: the bag ends, and the VM of the job is taken.
    [vm] = job.state.vms
    api(f"{place(cluster, vm)}/simulateMaintenanceEvent", "POST")
    number = int(vm.rpartition("-")[2])
    until(lambda: any(int(name.rpartition("-")[2]) > number for name in vms("afar") if "worker" in name), "replaced")
    assert cluster.state.seq == mark, "somebody here has followed it"

    # Back: all of it comes home.
    patient.until(lambda state: state.of(JobState)["counts"].attempt == 2, "goes on", 2 * PATIENCE)
    assert bag.wait(2 * PATIENCE).phase == "finished", bag.state.reason
    results = bag.results()
    assert results["arrays"].notna().all()
    assert len(results) == 9
    assert results["y"].tolist() == [2 * x for x in results["x"].tolist()]
    assert bag.surrogate.models
    until(lambda: job.output().count("begins at") == 2, "its second attempt")
    until(lambda: "leaves at" in job.output(), "the last words of its first one")
    begun = [int(line.split()[-1]) for line in job.output().splitlines() if line.startswith("begins at")]
    left = [int(line.split()[-1]) for line in job.output().splitlines() if line.startswith("leaves at")]
    assert begun[1] == left[0] > 0, "nothing that it had done at the notice was lost"

    # The VM of the controller is lost: this machine is in charge, and the job goes on from what came here.
    api(place(cluster, "controller-0"), "DELETE")
    patient.until(lambda state: not state.seat, "taken back", 2 * PATIENCE)
    patient.until(lambda state: state.seat == "" and state.of(JobState)["counts"].phase == "running", "its job goes on")
    with cluster.dask(1) as dask:
        assert dask.client.submit(sum, [1, 2, 3]).result(60) == 6
    enough.touch()
    job.wait(2 * PATIENCE)
    got = job.fetch(tmp_path / "got")
    assert int((got / "done").read_text(encoding="utf-8")) == int(job.output().split()[-1]), job.output()
    cluster.delete(PATIENCE)
    assert not vms("afar")


@pytest.mark.nightly
def test_a_cluster_that_ends_while_this_machine_is_away_has_left_what_its_jobs_kept(home: Path, tmp_path: Path) -> None:
    cluster = client.declare(client.Declaration("cpu", name="ended", purpose="jobs", controller="cluster"))
    patient = governed_by_its_vm(cluster)
    with cluster.dask() as dask:
        assert dask.client.submit(sum, [1, 2, 3]).result(60) == 6
    enough = {"ENOUGH": str(tmp_path / "never")}
    job = client.declare_job(
        source=COUNTS, cluster=cluster, name="counts", keep="kept", keep_seconds=600, environment=enough
    )
    until(lambda: "counts" in job.output(), "what it says")
    cluster.delete(timeout=0)
    asleep(patient)
    until(lambda: not vms("ended"), "ended by the controller on its VM")
    assert not cluster.state.over
    cluster.wait(PATIENCE, until="deleted")  # this machine is back
    assert job.state.phase == "stopped"
    assert "leaves at" in job.output()
    assert int((job.fetch(tmp_path / "got") / "done").read_text(encoding="utf-8")) > 0
    assert not [
        event for event in cluster.events() if isinstance(event, events.ControllerTrouble) and "kept" in event.what
    ]
