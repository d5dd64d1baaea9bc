"""Google's client imported in part: every name is there, and only what was asked for is imported."""

from __future__ import annotations

import importlib
import sys

import pytest

from transient_magics.cloud.calling import clients

PACKAGE = "google.cloud.compute_v1"


def test_clients_and_messages_are_googles_and_no_other_service_is_imported() -> None:
    clients.prepare(["zones"])
    from google.cloud import compute_v1

    assert f"{PACKAGE}.services.zones.client" in sys.modules
    policies = importlib.import_module(f"{PACKAGE}.services.firewall_policies")
    assert compute_v1.FirewallPoliciesClient is policies.FirewallPoliciesClient
    assert compute_v1.Operation is importlib.import_module(f"{PACKAGE}.types").Operation
    assert importlib.import_module(PACKAGE) is compute_v1
    assert f"{PACKAGE}.services.vpn_tunnels" not in sys.modules, "nobody asks it anything"


@pytest.mark.parametrize("name", ["Instance2", "Client", "UnknownClient", "zone_operations_of_mine"])
def test_a_name_that_the_package_does_not_have_is_told_as_ever(name: str) -> None:
    from google.cloud import compute_v1

    assert not hasattr(compute_v1, name)
    with pytest.raises(AttributeError, match=f"'{PACKAGE}' has no attribute '{name}'"):
        getattr(compute_v1, name)
