"""A provider wants workers back and leaves the choice to the cluster: a user is asked, and may choose others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import PATIENCE, Patient
from transient_magics import client
from transient_magics.cli import arguments, verbs
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import events


def said(line: str) -> str:
    """What a cell or a terminal shows."""
    verb, *words = line.split()
    return str(verbs.act(arguments.parse(verb, words)))


def test_workers_that_a_provider_wants_back_go_as_their_user_chooses(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpux3", name="wanted", give_up="ask", purpose="jobs"))
    patient = Patient(cluster)
    cluster.wait(PATIENCE)
    with pytest.raises(
        DeclarationError, match="4 workers cannot be reclaimed, because wanted has only 3 running transient workers"
    ):
        said("weather wanted --reclaim 4")
    with pytest.raises(ClusterError, match="wanted has no proposal to agree to"):
        said("agree wanted")
    mark = patient.mark()
    assert "wants 2 of the 3 workers of wanted back within" in said("weather wanted --reclaim 2,within=10m")
    patient.event(mark, events.ReclaimWanted, number=2)
    proposed = patient.event(mark, events.ReclaimProposed)
    assert isinstance(proposed, events.ReclaimProposed)
    assert "The provider wants 2 VMs back" in said("status wanted")
    (kept,) = {"worker-0", "worker-1", "worker-2"} - {*proposed.vms}
    said(f"revoke wanted {kept}")
    patient.event(mark, events.VmPreemptionNotice, vm=kept)
    assert said("agree wanted") == f"wanted releases {proposed.vms[0]}."
    answered = patient.event(mark, events.ReclaimAnswered)
    assert isinstance(answered, events.ReclaimAnswered)
    assert answered.agreed
    assert answered.vms == proposed.vms[:1], "the user gave another, which counts"
    patient.event(mark, events.VmPreemptionNotice, vm=proposed.vms[0])
    patient.event(mark, events.WorkerReplaced, worker=proposed.vms[0])
    patient.event(mark, events.ReclaimWanted, number=0)
    assert cluster.state.vms[proposed.vms[1]].state == "ready"
    assert cluster.weather().settings["reclaim"] is None
    cluster.delete()
