"""What is declared reaches what Compute Engine is asked for: networks, addresses, machines, how VMs are rented."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from transient_magics.client import Declaration, specify
from transient_magics.cloud.values import instance_of
from transient_magics.controller.decisions.core import Situation, places_now
from transient_magics.controller.programs.preflight import first_requests
from transient_magics.controller.vms.machines import firewall_rules
from transient_magics.journal import ClusterState
from transient_magics.spec import ClusterSpec


def spec(**more: Any) -> ClusterSpec:
    said = {"name": "c", "project": "my-own", "bucket": "none", "zone": ("us-central1-a",), **more}
    return specify(Declaration("t4x2", **said))


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


def termination(declared: ClusterSpec) -> float:
    """Return after how many hours Compute Engine deletes the cluster's VMs. It is one moment for all of them."""
    bodies = [instance_of(request) for request in first_requests(declared)]
    (moment,) = {body["scheduling"]["termination_time"] for body in bodies}
    return (datetime.fromisoformat(moment).timestamp() - declared.declared_at) / 3600


@pytest.mark.parametrize("more", [{}, {"ps": 2}, {"external_ip": False}, {"zone": ()}, {"fallback_seconds": 600.0}])
def test_compute_engine_deletes_every_vm_when_max_cost_is_spent(more: dict[str, Any]) -> None:
    declared = spec(max_cost=5.0, max_hours=1000.0, **more)
    assert 4.99 < termination(declared) * declared.most_hourly <= 5.0


def test_compute_engine_deletes_every_vm_before_as_many_workers_as_are_allowed_cost_more_than_max_cost() -> None:
    declared = spec(max_cost=5.0, max_hours=1000.0, max_workers=6)
    most = specify(Declaration("t4x6", name="c", project="my-own", bucket="none", zone=("us-central1-a",)))
    assert termination(declared) * most.most_hourly == pytest.approx(5.0, abs=0.01)


@pytest.mark.parametrize("max_cost", [None, 500.0])
def test_compute_engine_deletes_every_vm_after_max_hours(max_cost: float | None) -> None:
    assert termination(spec(max_hours=2.0, max_cost=max_cost)) == pytest.approx(2.0, abs=0.001)


def test_workers_have_the_machine_and_all_but_the_controller_the_disk_that_was_declared() -> None:
    usual, bodies = asked(), asked(machine_type="n1-standard-16", disk="200GB:ssd", service_account="robot",
                                   controller="cluster", bucket="own")  # fmt: skip
    assert {name: body["machine_type"].rpartition("/")[2] for name, body in bodies.items()} == {
        "controller-0": "e2-small", "ps-0": "n1-custom-4-16384",
        "worker-0": "n1-standard-16", "worker-1": "n1-standard-16",
    }  # fmt: skip

    def disk(body: dict[str, Any]) -> tuple[int, str]:
        made = body["disks"][0]["initialize_params"]
        return made.get("disk_size_gb", 0), made["disk_type"]

    here = "zones/us-central1-a/diskTypes"
    assert {disk(body) for body in usual.values()} == {(50, f"{here}/pd-balanced")}
    assert {name: disk(body) for name, body in bodies.items()} == {
        "controller-0": (20, f"{here}/pd-balanced"),
        **dict.fromkeys(("ps-0", "worker-0", "worker-1"), (200, f"{here}/pd-ssd")),
    }
    baked = asked(image="mine", disk="100GB")["worker-0"]
    assert (disk(baked), disk(asked(image="mine")["worker-0"])) == (
        (100, f"{here}/pd-balanced"), (0, f"{here}/pd-balanced"),
    )  # fmt: skip


def test_parameter_servers_are_asked_for_in_their_own_zone_and_in_no_other() -> None:
    zones = {name: body["machine_type"].split("/")[1] for name, body in asked(ps=2, ps_zone="us-central1-c").items()}
    assert zones == {
        "ps-0": "us-central1-c", "ps-1": "us-central1-c", "worker-0": "us-central1-a", "worker-1": "us-central1-a",
    }  # fmt: skip
    (places,) = {
        place.zones for place in places_now(Situation(0.0, ClusterState(spec=spec(ps_zone="us-central1-c"))))
        if place.role == "ps"
    }  # fmt: skip
    assert places == ("us-central1-c",)
