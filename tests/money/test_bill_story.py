"""A cluster's bill is what Google would charge for the VMs that an observer of the API saw, to the fraction of a cent.

The reckoning knows nothing of the project, and the observer asks nothing but Compute Engine's API. The emulator has no
bill of its own to show.
"""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from tests.homes import own_home
from transient_magics import client, emulator
from transient_magics.client import Cluster, Declaration
from transient_magics.journal import ClusterState

from .catalog_prices import catalog_prices
from .comparing import differences
from .observer import Observer
from .reckoning import reckon

pytestmark = pytest.mark.slow

ZONE = "us-central1-a"
PATIENCE = 200.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with own_home(), emulator.hold():
        yield emulator.ensure(options=("--boot", "0.5", "--notice", "2"))


def until(cluster: Cluster, reached: Callable[[ClusterState], object]) -> ClusterState:
    state = cluster.follow(lambda now: bool(reached(now)), PATIENCE)
    assert state is not None, cluster.state
    return state


def preempted_behind_its_back(url: str, cluster: Cluster, vm: str) -> None:
    """The controller sleeps, as on a closed laptop, while a VM is taken and for 24 minutes of the emulated clock."""
    controller = int((cluster.directory / "controller.lock").read_text(encoding="utf-8"))
    os.kill(controller, signal.SIGSTOP)
    try:
        place = f"{url}/compute/v1/projects/emulated-project/zones/{ZONE}/instances/{cluster.name}-{vm}"
        urllib.request.urlopen(f"{place}/simulateMaintenanceEvent", data=b"").close()
        time.sleep(4)
    finally:
        os.kill(controller, signal.SIGCONT)
    until(cluster, lambda state: state.vms[vm].state == "revoked")


def test_the_bill_of_a_life_with_revocations_is_googles(url: str) -> None:
    with Observer(url) as observer:
        cluster = client.declare(Declaration(f"t4x3@{ZONE}", name="bill", max_hours=100))
        until(cluster, lambda state: state.phase == "ready")
        cluster.revoke("worker-0")
        until(cluster, lambda state: state.vms["worker-0"].state == "revoked" and "worker-3" in state.vms)
        until(cluster, lambda state: state.vms["worker-3"].running_at)
        cluster.resize(f"t4x2@{ZONE}")
        (sent_away,) = [
            vm.name
            for vm in until(cluster, lambda state: any(vm.state == "deleted" for vm in state.vms.values())).vms.values()
            if vm.state == "deleted"
        ]
        cluster.weather(hours_per_minute=6, notice="scaled")
        taken = next(vm.name for vm in cluster.state.living if vm.role == "worker" and vm.state == "ready")
        time.sleep(1)  # six minutes: it is past its first
        preempted_behind_its_back(url, cluster, taken)
        until(cluster, lambda state: state.vms["worker-4"].running_at if "worker-4" in state.vms else False)
        cluster.weather(hours_per_minute=None)
        cluster.delete()
        observer.look()

    reckoned = reckon(observer.vms(), observer.clock(time.time()), catalog_prices())
    bill = cluster.cost()
    compared = {each.vm: each for each in differences(bill, reckoned, cluster.name)}
    assert len(compared) == 6
    # Disks are there a little longer than their VMs run, which the bill leaves out: some minutes at a cent an hour.
    assert {vm: each.dollars for vm, each in compared.items()} == pytest.approx(dict.fromkeys(compared, 0.0), abs=5e-3)
    # By Google's rules, not by chance: its first minute is free where it was taken, and paid whole where it was not.
    assert bill.by_vm["worker-0"] == 0
    minute = cluster.state.vms[sent_away].hourly / 60
    assert bill.by_vm[sent_away] == pytest.approx(minute)
    assert bill.by_vm[taken] > 5 * minute
