"""The machine sleeps on which a controller runs: Compute Engine keeps the limits, and nobody pays for more."""

from __future__ import annotations

import time

import pytest

from tests.faults.conftest import PATIENCE, Patient
from tests.faults.healing import healed
from tests.faults.test_controller_on_a_vm import until, vms
from tests.faults.test_frozen import frozen
from tests.steered import swift_emulator, weather
from transient_magics import client
from transient_magics.journal import events

HOURS = 5.0
pytestmark = pytest.mark.nightly


def test_a_cluster_whose_machine_sleeps_past_its_end_is_ended_by_compute_engine_and_not_made_again() -> None:
    with swift_emulator() as url:
        weather(url, hours_per_minute=10)
        cluster = client.declare(client.Declaration("k80x2", name="asleep", max_hours=HOURS))
        patient = Patient(cluster)
        cluster.wait(PATIENCE)
        with frozen(patient.controller()):
            until(lambda: not vms("asleep"), "ended by Compute Engine")
            assert len(cluster.state.living) == 3, "nobody here knows"
            time.sleep(6)  # an hour more
        began = time.monotonic()
        cluster.wait(PATIENCE, until="deleted")
        seconds = time.monotonic() - began
        healed("this machine sleeps", "past the end of its cluster", seconds)
        assert seconds < 60
        assert len(cluster.events("vm.requested")) == 3, "something was bought for a cluster that is over"
        deleting = cluster.events("cluster.deleting")[0]
        assert isinstance(deleting, events.ClusterDeleting)
        assert "5 h" in deleting.reason
        for name, dollars in cluster.cost().by_vm.items():
            hours = dollars / cluster.state.vms[name].hourly
            assert 0 < hours <= HOURS + 0.1, f"{name} is billed {hours:.2f} h, and was deleted after {HOURS:.0f}"
