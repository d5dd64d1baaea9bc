"""When Compute Engine itself ends VMs, as Google's own client reads it from the emulator."""

from __future__ import annotations

from datetime import datetime

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from transient_magics import emulator


def ends(prefix: str) -> dict[str, float]:
    """By name, the moment (seconds since 1970) at which each VM that runs and whose name begins so is deleted.

    Fails where one is not: where no end was asked for, or Compute Engine says that it keeps to another.
    """
    instances = compute_v1.InstancesClient(
        credentials=AnonymousCredentials(), client_options={"api_endpoint": emulator.running()}
    )
    scopes = instances.aggregated_list(project="emulated-project")
    found = [each for _, scope in scopes for each in scope.instances if each.name.startswith(prefix)]
    moments: dict[str, float] = {}
    for vm in found:
        if vm.status == "RUNNING":
            asked, kept = vm.scheduling.termination_time, vm.resource_status.scheduling.termination_timestamp
            assert asked, f"{vm.name} has no end"
            assert kept, f"Compute Engine says no end of {vm.name}"
            moments[vm.name] = datetime.fromisoformat(kept).timestamp()
            assert moments[vm.name] == pytest.approx(datetime.fromisoformat(asked).timestamp(), abs=1.0)
            assert vm.scheduling.instance_termination_action == "DELETE"
    return moments


def all_end(cluster: str, moment: float, *vms: str) -> None:
    """See that the cluster has these VMs, perhaps among others, and that all of it ends at one moment."""
    found = ends(f"{cluster}-")
    assert found.keys() >= {f"{cluster}-{vm}" for vm in vms}
    assert found == dict.fromkeys(found, pytest.approx(moment, abs=1.0))  # the API writes whole seconds
