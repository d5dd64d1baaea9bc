"""What is declared reaches what Compute Engine is asked for: networks, addresses, machines, how VMs are rented."""

from __future__ import annotations

from typing import Any

import pytest

from transient_magics.client import Declaration, specify
from transient_magics.cloud.translation import instance_of
from transient_magics.controller.programs.preflight import first_requests
from transient_magics.controller.vms.machines import firewall_rules
from transient_magics.spec import ClusterSpec


def spec(**more: Any) -> ClusterSpec:
    return specify(Declaration("t4x2", name="c", project="mine", bucket="none", zone=("us-central1-a",), **more))


def asked(**more: Any) -> dict[str, dict[str, Any]]:
    """The bodies of the requests, by VM."""
    return {body["name"].removeprefix("c-"): body for body in map(instance_of, first_requests(spec(**more)))}


@pytest.mark.parametrize(
    ("more", "interface", "ruled"),
    [
        ({}, {"network": "global/networks/default"}, "global/networks/default"),
        ({"network": "own"}, {"network": "global/networks/own"}, "global/networks/own"),
        ({"network": "own", "subnet": "inner"},
         {"network": "global/networks/own", "subnetwork": "regions/us-central1/subnetworks/inner"},
         "global/networks/own"),
    ],
)  # fmt: skip
def test_every_vm_and_rule_is_on_the_network_that_was_named(
    more: dict[str, str], interface: dict[str, str], ruled: str
) -> None:
    for body in asked(**more).values():
        (found,) = body["network_interfaces"]
        assert found.pop("access_configs") == [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
        assert found == interface
    assert {rule["network"] for rule in firewall_rules(spec(**more))} == {ruled}


def test_without_an_external_ip_no_vm_has_one() -> None:
    assert [list(body["network_interfaces"][0]) for body in asked(external_ip=False).values()] == [["network"]] * 3


def test_parameter_servers_are_as_many_and_have_as_many_cores_as_declared_and_are_never_spot() -> None:
    bodies = asked(ps=2, ps_cores=8)
    assert sorted(bodies) == ["ps-0", "ps-1", "worker-0", "worker-1"]
    for name in ("ps-0", "ps-1"):
        assert bodies[name]["machine_type"].endswith("/n1-custom-8-32768")
        assert bodies[name]["scheduling"]["provisioning_model"] == "STANDARD"


@pytest.mark.parametrize("model", ["spot", "preemptible", "standard"])
def test_workers_are_rented_as_declared(model: str) -> None:
    scheduling = asked(provisioning_model=model)["worker-0"]["scheduling"]
    assert scheduling.get("preemptible", False) == (model != "standard")
    assert scheduling.get("provisioning_model") == {"preemptible": None}.get(model, model.upper())
    assert ("termination_time" in scheduling) == (model != "preemptible"), "which Compute Engine refuses of these"
