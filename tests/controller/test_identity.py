"""What a cluster's VMs may do at Google (nothing by themselves), and whose they are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_emulator.rest import wire
from transient_magics.cloud.examination import examine
from transient_magics.cloud.values import instance_of
from transient_magics.controller.programs.preflight import first_requests
from transient_magics.controller.vms.lookup import name_conflict
from transient_magics.controller.vms.machines import ID_LABEL, LABEL, firewall_rules, instance_name, labels
from transient_magics.controller.vms.startup import CONTROLLER_USER, USER, controller_script
from transient_magics.protocol.checks import LONGEST_NAME, is_name
from transient_magics.spec import ClusterSpec, ImageSpec, PriceLine, WorkerGroup, own_bucket

if TYPE_CHECKING:
    from transient_magics.cloud import ComputeEngine

LINE = PriceLine("n1-standard-4", 1.0, 3.0, "test")
SPEC = ClusterSpec(
    name="c", groups=(WorkerGroup("v100", 2),), zones=("us-west1-b",), project="mine",
    prices={"v100": LINE, "parameter-server": LINE}, declared_at=1e9,
)  # fmt: skip


def accounts(spec: ClusterSpec) -> dict[str, list[tuple[str, list[str]]]]:
    """By VM, the service accounts of its request and their scopes."""
    bodies = [instance_of(request) for request in first_requests(spec)]
    return {
        body["name"]: [(each["email"], each["scopes"]) for each in body.get("service_accounts", [])] for body in bodies
    }


def test_a_vm_that_runs_a_users_code_has_no_service_account() -> None:
    nobody = {"c-ps-0": [], "c-worker-0": [], "c-worker-1": []}
    assert accounts(SPEC) == nobody
    assert accounts(replace(SPEC, bucket="mine-bucket", service_account="robot@mine")) == nobody


def test_the_controllers_own_vm_alone_has_one() -> None:
    prices = {**SPEC.prices, "controller": LINE}
    given = accounts(
        replace(SPEC, controller="cluster", bucket="mine-bucket", service_account="robot@mine", prices=prices)
    )
    scope = "https://www.googleapis.com/auth/cloud-platform"
    assert {vm: each for vm, each in given.items() if each} == {"c-controller-0": [("robot@mine", [scope])]}
    assert len(given) == 4


@pytest.mark.parametrize("role", ["ps", "worker", "controller", "prep"])
async def test_a_name_is_taken_where_a_stranger_has_a_vm_that_one_of_ours_would_be_called_like(role: str) -> None:
    strange = SimpleNamespace(name=f"c-{role}-0", zone="us-west1-b", labels={}, status="RUNNING")

    class Engine:
        async def list(self, *_: object, within: object) -> list[SimpleNamespace]:
            return []

        async def named(self, pattern: str, *, within: object) -> list[SimpleNamespace]:
            return [strange] if re.fullmatch(pattern, strange.name) else []

    said = await name_conflict(replace(SPEC, id="1a2b3c4d"), cast("ComputeEngine", Engine()))
    assert said.startswith(f"The name c is taken by a VM that is not ours, c-{role}-0 in us-west1-b (project mine)")


def test_only_the_controllers_vm_manages_vms_and_nobodys_code_finds_its_way_there() -> None:
    line = PriceLine("e2-small", 0.02, 0.02, "test")
    spec = replace(
        SPEC, bucket="b", service_account="robot@mine", controller="cluster", id="1a2b3c4d",
        prices={**SPEC.prices, "controller": line},
    )  # fmt: skip
    bodies = {body["name"]: body for body in map(instance_of, first_requests(spec))}
    seat = bodies.pop("c-controller-0")
    assert seat["machine_type"] == "zones/us-west1-b/machineTypes/e2-small"
    assert seat["scheduling"]["provisioning_model"] == "STANDARD"
    assert seat["scheduling"]["instance_termination_action"] == "DELETE"
    managing = {"https://www.googleapis.com/auth/compute", "https://www.googleapis.com/auth/cloud-platform"}
    assert managing & {scope for each in seat["service_accounts"] for scope in each["scopes"]}
    metadata = {item["key"]: item["value"] for item in seat["metadata"]["items"]}
    assert metadata["startup-script"] == controller_script()
    for image in ("", "projects/mine/global/images/baked"):
        for body in map(instance_of, first_requests(replace(spec, image=image))):
            if body["name"] == "c-controller-0":
                continue
            assert not managing & {scope for each in body.get("service_accounts", []) for scope in each["scopes"]}
            own = {item["key"]: item["value"] for item in body["metadata"]["items"]}
            assert "!ALL" in own["startup-script"], "the account under which users' code runs is no administrator"
            assert body["tags"] != seat["tags"]
    rules = {rule["name"].rpartition("-")[2]: rule for rule in firewall_rules(spec)}
    assert {each.name: each.user for each in first_requests(spec)} == {
        "c-controller-0": CONTROLLER_USER, "c-ps-0": USER, "c-worker-0": USER, "c-worker-1": USER,
    }  # fmt: skip
    assert CONTROLLER_USER != USER
    (members,), (own_tag,) = bodies["c-ps-0"]["tags"]["items"], seat["tags"]["items"]
    assert {name: rule["target_tags"] for name, rule in rules.items()} == {
        "members": [members], "ssh": [members, own_tag], "deny": [members, own_tag], "seat": [members],
    }  # fmt: skip
    assert (rules["seat"]["source_tags"], rules["seat"]["allowed"][0]["ports"]) == ([own_tag], ["22"])
    assert rules["members"]["source_tags"] == [members]


_TAKES = {
    "name": "compute.instances.create", "disks": "compute.disks.create", "labels": "compute.instances.setLabels",
    "metadata": "compute.instances.setMetadata", "tags": "compute.instances.setTags",
    "network_interfaces": "compute.subnetworks.use", "machine_type": "", "scheduling": "", "guest_accelerators": "",
    "service_accounts": "compute.instances.setServiceAccount",
}  # fmt: skip
"""What a field of a request takes besides the right to make a VM, by Compute Engine's documentation."""


def test_the_documented_roles_have_what_the_requests_take() -> None:
    text = (Path(__file__).parents[2] / "docs" / "accounts.md").read_text(encoding="utf-8").replace("\\\n", "")
    roles = dict(re.findall(r"gcloud iam roles create (\w+) --project my-project --permissions ([a-zA-Z.,]+)", text))
    controller, user = (set(roles[name].split(",")) for name in ("transientController", "transientUser"))
    assert controller < user
    assert not [each for each in controller if not each.startswith("compute.") or "firewall" in each]
    assert user == set(examine.ALL), "a dry run asks for what the role of docs/accounts.md has"
    fields = {field for request in first_requests(SPEC) for field in instance_of(request)}
    assert {_TAKES[field] for field in fields} - {""} <= controller
    assert {_TAKES["service_accounts"], "compute.firewalls.create", "compute.networks.updatePolicy"} <= user
    assert "--service-account transient-magics" in text


NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True) | st.just("a" * LONGEST_NAME)


@pytest.mark.slow
@given(NAMES, st.integers(0, 10**6), st.from_regex(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", fullmatch=True))
def test_whatever_is_named_after_a_cluster_or_an_image_is_short_enough(name: str, number: int, project: str) -> None:
    assert is_name(name)
    prices = {**SPEC.prices, "controller": LINE}
    whole = {"controller": "cluster", "service_account": "robot@mine", "prices": prices}
    spec = replace(SPEC, name=name, id="1a2b3c4d", **whole)
    requests = first_requests(spec)
    derived = [each.name for each in requests] + [tag for each in requests for tag in each.tags]
    derived += [instance_name(spec, f"{role}-{number}") for role in ("ps", "worker", "controller")]
    derived += [rule["name"] for rule in firewall_rules(spec)]
    derived += [tag for rule in firewall_rules(spec) for tag in (*rule["target_tags"], *rule.get("source_tags", ()))]
    derived.append(ImageSpec(name, "us-west1-b", 1e9, id="1a2b3c4d").vm)
    assert [wire.check_name(each) for each in derived] == derived
    values = [value for each in requests for value in each.labels.values()]
    assert all(re.fullmatch(r"[a-z0-9_-]{0,63}", value) for value in values)
    for region in ("northamerica-northeast1", "us-west1"):
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", own_bucket(project, region))


def test_every_vm_turns_os_login_off_for_itself() -> None:
    for request in first_requests(SPEC):
        metadata = {item["key"]: item["value"] for item in instance_of(request)["metadata"]["items"]}
        assert (metadata["enable-oslogin"], metadata["block-project-ssh-keys"]) == ("FALSE", "true")


def test_the_clusters_id_is_on_every_vm_disk_rule_and_request() -> None:
    one, other = replace(SPEC, id="1a2b3c4d"), replace(SPEC, id="5e6f7a8b")
    for mine, theirs in zip(first_requests(one), first_requests(other), strict=True):
        body = instance_of(mine)
        assert body["labels"][ID_LABEL] == body["disks"][0]["initialize_params"]["labels"][ID_LABEL] == one.id
        assert (mine.name, mine.labels[LABEL]) == (theirs.name, "c"), "the name stays readable"
        assert mine.request_id != theirs.request_id
        assert mine.tags != theirs.tags
    rules = firewall_rules(one)
    assert all(one.id in rule["name"] and rule["target_tags"] == list(first_requests(one)[0].tags) for rule in rules)
    assert not {rule["name"] for rule in rules} & {rule["name"] for rule in firewall_rules(other)}
    assert labels(one) == {ID_LABEL: one.id}
    assert labels(SPEC)[LABEL] == "c", "what has no id is found by its name and owner"
