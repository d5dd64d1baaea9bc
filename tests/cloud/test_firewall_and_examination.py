"""What is asked of Compute Engine before a cluster is made: its rules, and whether it could be made at all."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from scripted_api import PROJECT, ZONE, Api, operation, refusal

from tests.emulator.discovery import faults
from transient_magics.cloud import ComputeEngine, VmRequest, rules
from transient_magics.cloud.examination import examine
from transient_magics.errors import AccessError, AlreadyExistsError
from transient_magics.spec import IAP_RANGE

RULES = rules("transient-magics-c1", "", (IAP_RANGE,), "of c1")
GLOBAL_WAIT = "global/operations/operation-1/wait"


@pytest.mark.slow
async def test_a_cluster_is_closed_to_all_but_its_members_and_ssh(api: Api, engine: ComputeEngine) -> None:
    busy = refusal(400, "resourceNotReady", f"The resource 'projects/{PROJECT}/global/networks/default' is not ready")
    api.on("POST", "global/firewalls", busy, operation(status="RUNNING"))
    failed = {"errors": [{"code": "RESOURCE_NOT_READY", "message": "The network is not ready"}]}
    api.on("POST", GLOBAL_WAIT, operation(error=failed), operation())
    await engine.firewall.ensure(RULES)
    assert not [fault for _, body in api.asked("POST", "global/firewalls") for fault in faults("Firewall", body)]
    made = {body["name"].rpartition("-")[2]: body for _, body in api.asked("POST", "global/firewalls")}
    assert all(body["targetTags"] == ["transient-magics-c1"] for body in made.values())
    assert made["members"]["sourceTags"] == ["transient-magics-c1"]
    assert made["ssh"]["sourceRanges"] == [IAP_RANGE]
    assert made["ssh"]["allowed"] == [{"IPProtocol": "tcp", "ports": ["22"]}]
    assert made["deny"]["denied"] == [{"IPProtocol": "all"}]
    assert made["members"]["priority"] == made["ssh"]["priority"] < made["deny"]["priority"]


async def test_a_changed_rule_is_replaced_with_all_that_it_should_say(api: Api, engine: ComputeEngine) -> None:
    _, wanted, _ = RULES
    api.on("POST", "global/firewalls", refusal(409, "alreadyExists", "The rule already exists"))
    api.on("PUT", "global/firewalls/.*", operation())
    api.on("POST", GLOBAL_WAIT, operation())
    there = {
        "name": wanted["name"], "network": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/global/networks/default",
        "direction": "INGRESS", "priority": 900, "targetTags": wanted["target_tags"], "description": "of c1",
        "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}], "sourceRanges": [IAP_RANGE], "disabled": False,
    }  # fmt: skip
    api.on("GET", "global/firewalls/.*", there | {"sourceRanges": ["0.0.0.0/0"], "sourceTags": ["any"]}, there)
    await engine.firewall.ensure([wanted])
    ((_, body),) = api.asked("PUT", f"global/firewalls/{wanted['name']}")
    assert faults("Firewall", body) == []
    assert (body["sourceRanges"], body.get("sourceTags")) == ([IAP_RANGE], None)
    api.on("GET", "global/firewalls/.*", there | {"disabled": True})
    with pytest.raises(AlreadyExistsError, match="differs from what the cluster needs, and cannot be changed"):
        await engine.firewall.ensure([wanted])


@pytest.mark.parametrize(
    ("network", "ours"),
    [
        ("", True), (f"projects/{PROJECT}/global/networks/default", True),
        ("projects/12345/global/networks/default", True), ("projects/another/global/networks/default", False),
        ("private", False),
    ],
)  # fmt: skip
async def test_the_project_of_a_rules_network_may_be_told_by_number(
    api: Api, engine: ComputeEngine, network: str, ours: bool
) -> None:
    wanted = rules("transient-magics-c1", network, (IAP_RANGE,), "of c1")[1]
    there = {
        "name": wanted["name"], "network": "https://www.googleapis.com/compute/v1/projects/12345/global/networks/default",
        "direction": "INGRESS", "priority": 900, "targetTags": wanted["target_tags"], "description": "of c1",
        "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}], "sourceRanges": [IAP_RANGE], "disabled": False,
    }  # fmt: skip
    api.on("POST", "global/firewalls", refusal(409, "alreadyExists", "The rule already exists"))
    api.on("GET", "global/firewalls/.*", there)
    with nullcontext() if ours else pytest.raises(AlreadyExistsError, match="or on another network"):
        await engine.firewall.ensure([wanted])


async def test_rules_that_are_gone_are_no_error(engine: ComputeEngine) -> None:
    await engine.firewall.remove(RULES)


async def test_who_may_not_make_rules_is_told(api: Api, engine: ComputeEngine) -> None:
    api.on("POST", "global/firewalls", refusal(403, "forbidden", "Required 'compute.firewalls.create' permission"))
    with pytest.raises(AccessError, match=r"compute\.firewalls\.create.*roles/compute\.securityAdmin"):
        await engine.firewall.ensure(RULES)


def everything_is_there(api: Api, **quotas: tuple[float, float]) -> None:
    listed = [{"metric": metric, "usage": usage, "limit": limit} for metric, (usage, limit) in quotas.items()]
    everywhere = [{"metric": f"{kind}_ALL_REGIONS", "usage": 1, "limit": 10} for kind in ("GPUS", "CPUS")]
    api.on("GET", "", {"name": PROJECT, "quotas": everywhere})
    api.on("GET", f"zones/{ZONE}", {"name": ZONE, "status": "UP"})
    api.on("GET", f"zones/{ZONE}/machineTypes/n1-standard-4", {"name": "n1-standard-4"})
    api.on("GET", f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-k80", {"name": "nvidia-tesla-k80"})
    api.on("GET", "compute/v1/projects/debian-cloud/global/images/family/debian-12", {"name": "debian-12-v1"})
    api.on("GET", "global/networks/default", {"name": "default"})
    api.on("GET", "regions/us-central1", {"name": "us-central1", "quotas": listed})


async def test_what_can_be_made_is_found_good(api: Api, engine: ComputeEngine, wanted: VmRequest) -> None:
    everything_is_there(api, PREEMPTIBLE_NVIDIA_K80_GPUS=(0, 4), CPUS=(0, 24), PREEMPTIBLE_CPUS=(0, 0))
    findings = await engine.examine([wanted, replace(wanted, name="c1-worker-2")])
    assert [each.subject for each in findings if not each.good] == []
    said = {each.subject: each.text for each in findings}
    assert "PREEMPTIBLE_NVIDIA_K80_GPUS 4 free, 2 needed" in said["quotas in us-central1"]
    assert "; CPUS 24 free, 8 needed" in said["quotas in us-central1"]
    assert "GPUS_ALL_REGIONS 9 free, 2 needed" in said["quotas of the project"]


async def test_a_disk_on_which_the_image_does_not_fit_is_refused_with_the_size_that_does(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    everything_is_there(api)
    baked = {"name": "stack", "diskSizeGb": "120", "family": "transient-magics"}
    api.on("GET", "global/images/stack", baked)
    wanted = replace(wanted, image=f"projects/{PROJECT}/global/images/stack")
    for gb, said in ((100, "stack does not fit on a disk of 100 GB. Declare with --disk 120GB or more."), (120, "")):
        findings = await engine.examine([replace(wanted, disk_gb=0), replace(wanted, name="c1-worker-2", disk_gb=gb)])
        assert [each.text for each in findings if each.subject == "image" and not each.good] == [said] * bool(said)


async def test_what_is_missing_is_said_question_by_question(api: Api, engine: ComputeEngine, wanted: VmRequest) -> None:
    everything_is_there(api, PREEMPTIBLE_NVIDIA_K80_GPUS=(3, 4))
    del api.routes["GET", f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-k80"]
    del api.routes["GET", "global/networks/default"]
    findings = await engine.examine([wanted, replace(wanted, name="c1-worker-2")])
    said = {each.subject: each.text for each in findings if not each.good}
    assert set(said) == {f"zone {ZONE}", "network default", "quotas in us-central1"}
    assert f"{ZONE} has no nvidia-tesla-k80" in said[f"zone {ZONE}"]
    assert "has 1 of 4 left; required: 2" in said["quotas in us-central1"]
    assert f"gcloud compute networks create default --project {PROJECT}`" in said["network default"]


async def test_what_comes_to_its_end_is_told_and_what_has_is_refused(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    everything_is_there(api)
    zone = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}"
    status = {"state": "DEPRECATED", "obsolete": "2027-01-31T00:00:00Z", "deleted": "2027-06-30T00:00:00Z"}
    status["replacement"] = f"{zone}/acceleratorTypes/nvidia-tesla-t4"
    api.on("GET", f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-k80", {"name": "nvidia-tesla-k80", "deprecated": status})

    async def told() -> tuple[bool, str]:
        return next((each.good, each.text) for each in await engine.examine([wanted]) if each.subject == f"zone {ZONE}")

    end = "nvidia-tesla-k80 is deprecated and ends on 2027-01-31 and is succeeded by nvidia-tesla-t4"
    assert await told() == (True, f"has n1-standard-4, nvidia-tesla-k80; {end}")
    status["state"] = "OBSOLETE"
    good, said = await told()
    assert not good
    assert said.startswith(f"{ZONE} has no nvidia-tesla-k80 any more: nvidia-tesla-k80 is obsolete")


async def test_a_project_that_cannot_be_used_ends_the_examination(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    (finding,) = await engine.examine([wanted])
    assert not finding.good
    assert "Project a-project does not exist" in finding.text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "is off in the project"),
        ("FALSE", "is off in the project"),
        ("TRUE", "these VMs turn it off for themselves, which fails if an organization policy requires OS Login"),
    ],
)
async def test_os_login_is_looked_for_in_the_projects_metadata(
    api: Api, engine: ComputeEngine, wanted: VmRequest, value: str | None, said: str
) -> None:
    everything_is_there(api)
    items = [{"key": "enable-oslogin", "value": value}] if value else []
    api.on("GET", "", {"name": PROJECT, "commonInstanceMetadata": {"items": items}})
    found = {each.subject: each for each in await engine.examine([wanted])}
    assert found["OS Login"].good
    assert said in found["OS Login"].text


@pytest.mark.parametrize("policy", ["compute.requireOsLogin", "compute.managed.requireOsLogin"])
async def test_a_policy_that_demands_os_login_is_named_with_its_remedy(
    api: Api, engine: ComputeEngine, wanted: VmRequest, policy: str
) -> None:
    message = f"Constraint constraints/{policy} violated for project {PROJECT}."
    api.on("POST", f"zones/{ZONE}/instances", refusal(412, "conditionNotMet", message))
    with pytest.raises(AccessError, match=f"policy {policy} of project {PROJECT} forbids the request") as told:
        await engine.insert(wanted)
    assert "OS Login ignores" in told.value.fix
    assert f"for an exception from {policy}" in told.value.fix


ASKED = {"rights": "v1/projects/a-project:testIamPermissions", "policy": "v1/projects/a-project:getEffectiveOrgPolicy"}


async def test_rights_on_the_bucket_alone_are_enough_for_one_that_is_there(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    everything_is_there(api)
    compute = [each for each in examine.ALL if each.startswith("compute.")]
    api.on("POST", ASKED["rights"], {"permissions": compute})
    subject = f"rights in {PROJECT}"
    found = {each.subject: each for each in await engine.examine([wanted], bucket="mine")}
    assert not found[subject].good
    assert "--role roles/storage.admin" in found[subject].fix
    there = ["storage.buckets.get", *(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list"))]
    api.on("GET", "storage/v1/b/mine/iam/testPermissions", {"permissions": there})
    found = {each.subject: each for each in await engine.examine([wanted], bucket="mine")}
    assert (found[subject].good, found[subject].answered) == (True, True)
    api.on("GET", "storage/v1/b/mine/iam/testPermissions", {"permissions": there[:-1]})
    found = {each.subject: each for each in await engine.examine([wanted], bucket="mine")}
    assert "lack storage.objects.list." in found[subject].text


async def test_who_may_not_ask_at_the_projects_cost_asks_at_his_own(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    everything_is_there(api)
    status, content = refusal(403, "forbidden", "Caller does not have required permission to use project a-project.")
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "USER_PROJECT_DENIED"}]
    content["error"]["details"] = details
    api.on("POST", ASKED["rights"], (status, content), {"permissions": list(examine.ALL)})
    found = {each.subject: each for each in await engine.examine([wanted])}
    assert (found[f"rights in {PROJECT}"].good, found[f"rights in {PROJECT}"].answered) == (True, True)


@pytest.mark.parametrize(
    ("policy", "subject"),
    [
        ({"listPolicy": {"deniedValues": ["compute.googleapis.com"]}}, "gcp.restrictNonCmekServices"),
        ({"listPolicy": {"allowedValues": ["under:organizations/1"]}}, ""),
        ({"listPolicy": {"allowedValues": ["86400"]}}, "storage.retentionPolicySeconds"),
        ({"listPolicy": {"allowedValues": ["is:projects/debian-cloud"]}}, "compute.vmExternalIpAccess"),
        ({}, ""),
    ],
)
async def test_policies_of_lists_are_read_value_by_value(
    api: Api, engine: ComputeEngine, wanted: VmRequest, policy: dict[str, Any], subject: str
) -> None:
    everything_is_there(api)
    api.on("POST", ASKED["policy"], policy)
    assert faults("OrgPolicy", policy, "cloudresourcemanager") == []
    findings = [each for each in await engine.examine([wanted], bucket="mine") if "polic" in each.subject]
    bad = [each.subject.removeprefix("organization policy ") for each in findings if not each.good]
    assert (subject in bad) if subject else "compute.vmExternalIpAccess" not in bad
    asked = {body["constraint"] for _, body in api.asked("POST", ASKED["policy"])}
    assert {"constraints/compute.requireOsLogin", "constraints/storage.retentionPolicySeconds"} <= asked


async def test_the_network_of_another_project_is_used_without_rules_of_the_clusters_own(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    everything_is_there(api)
    api.on("GET", "compute/v1/projects/host/global/networks/shared", {"name": "shared", "autoCreateSubnetworks": False})
    api.on("POST", ASKED["rights"], {"permissions": [p for p in examine.ALL if "subnetworks" not in p]})
    shared = replace(
        wanted, network="projects/host/global/networks/shared", subnet="projects/host/regions/r/subnetworks/s"
    )
    subject = f"network {shared.network}"
    found = {each.subject: each for each in await engine.examine([shared])}
    assert "Shared VPC" in found[subject].text
    assert "--no-firewall" in found[subject].fix
    assert "port 22 from 35.235.240.0/20" in found[subject].fix
    found = {each.subject: each for each in await engine.examine([shared], firewall=False)}
    assert found[subject].good
    assert found[f"rights in {PROJECT}"].good, "the right to use the subnetwork is the other project's to give"
    found = {each.subject: each for each in await engine.examine([replace(shared, subnet="")], firewall=False)}
    assert "--subnet" in found[subject].fix


async def test_nat_for_other_subnetworks_is_no_way_out(api: Api, engine: ComputeEngine, wanted: VmRequest) -> None:
    everything_is_there(api)
    place = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}"
    subnet = f"{place}/regions/us-central1/subnetworks/mine"
    api.on("GET", "global/networks/default", {"name": "default", "subnetworks": [subnet]})
    api.on("GET", "regions/us-central1/subnetworks/mine", {"name": "mine", "privateIpGoogleAccess": True})

    def router(*names: str) -> dict[str, Any]:
        nat = {
            "sourceSubnetworkIpRangesToNat": "LIST_OF_SUBNETWORKS",
            "subnetworks": [{"name": each} for each in names],
        }
        return {"items": [{"name": "r", "network": f"{place}/global/networks/default", "nats": [nat]}]}

    inside = replace(wanted, external_ip=False)
    for listed, good in ((router("theirs"), False), (router("theirs", subnet), True)):
        assert faults("RouterList", listed) == []
        api.on("GET", "regions/us-central1/routers", listed)
        found = {each.subject: each for each in await engine.examine([inside])}
        assert found["way out in us-central1"].good is good
    api.on(
        "GET", "regions/us-central1/routers", refusal(403, "forbidden", "Required 'compute.routers.list' permission")
    )
    found = {each.subject: each for each in await engine.examine([inside])}
    assert (found["way out in us-central1"].good, found["way out in us-central1"].answered) == (True, False)
