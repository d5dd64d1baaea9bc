"""A project that is as new as a stranger's: what is said before anything is paid, step by step until it is mended.

Google's own client and the examination meet an emulator whose project lacks everything (`--fresh-project`), at Google's
own host names and with a login that has another project for its quota project.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google_hosts import QUOTA_PROJECT, Hosts, mounted
from scripted_api import ZONE

from tests.conftest import Emulate
from tests.emulator.discovery import document, faults, refusal_faults
from transient_emulator.project.program import ask
from transient_emulator.project.state import MANAGED, POLICIES, QUOTAS, STEPS
from transient_emulator.rest.wire import fixed_id
from transient_magics.cloud import CloudStorage, ComputeEngine, Finding, VmRequest, request_id, rules
from transient_magics.cloud.examination.examine import ALL
from transient_magics.errors import AccessError, CloudError, ConsumerError, QuotaError
from transient_magics.spec import IAP_RANGE

PROJECT = "emulated-project"
NUMBER = fixed_id("projects", PROJECT)
RULES = rules("transient-magics-c1", "", (IAP_RANGE,), "of c1")


@pytest.fixture(scope="module")
def url(emulate: Emulate) -> Iterator[str]:
    with emulate("--boot", "0.2", "--fresh-project") as url:
        yield url


@pytest.fixture
def hosts(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Google's host names, where the emulator answers, and a login with a quota project of its own."""
    with mounted(url, tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
async def engine(hosts: Hosts) -> AsyncIterator[ComputeEngine]:
    async with ComputeEngine(PROJECT, patience=3.0) as engine:
        yield engine


@pytest.fixture
def new(wanted: VmRequest) -> VmRequest:
    """A VM as clusters ask for them: with a T4 and its own keys, and with an account, as a controller's has."""
    metadata = {"enable-oslogin": "FALSE", "enable-guest-attributes": "TRUE"}
    card = {"accelerator": "nvidia-tesla-t4", "service_account": "default"}
    return replace(wanted, metadata=metadata, **card)


def post(url: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def found(findings: list[Finding]) -> dict[str, Finding]:
    return {each.subject: each for each in findings if not (each.good and each.answered)}


@pytest.mark.slow
async def test_every_refusal_names_the_step_that_mends_it_until_the_vm_is_there(
    url: str, engine: ComputeEngine, new: VmRequest, hosts: Hosts
) -> None:
    async def said(**more: Any) -> dict[str, Finding]:
        return found(await engine.examine([new], bucket="a-bucket-of-mine", **more))

    def mend(*steps: str) -> None:
        assert not set(steps) & set(ask(url, {"mend": list(steps)})["lacks"])

    async def refused(kind: type[CloudError], match: str) -> None:
        with pytest.raises(kind, match=match) as told:
            await engine.insert(replace(new, request_id=request_id(match)))
        assert told.value.fix

    ask(url, {"fresh": True})
    (only,) = await engine.examine([new])
    assert (only.good, only.answered) == (False, True)
    assert f"gcloud services enable compute.googleapis.com --project {NUMBER}" in only.fix
    await refused(ConsumerError, f"Compute Engine API is not enabled in project {NUMBER}")

    mend("compute.googleapis.com")
    (only,) = await engine.examine([new])
    assert f"gcloud billing projects link {NUMBER} --billing-account" in only.fix
    await refused(ConsumerError, f"Billing is not enabled for project {NUMBER}")
    mend("billing")
    (only,) = await engine.examine([new])
    assert hosts.charged("compute.googleapis.com") == {None}, "the login's quota project has no API"
    assert "--role roles/compute.instanceAdmin.v1" in only.fix
    await refused(AccessError, r"Required 'compute\.instances\.create' permission")

    mend("roles/compute.instanceAdmin.v1")
    first = await said()
    assert set(first) == {
        f"rights in {PROJECT}", "service account default", "organization policies", "quotas of the project",
    }  # fmt: skip
    assert [name for name, each in first.items() if each.answered] == ["quotas of the project"]
    for name in (f"rights in {PROJECT}", "organization policies"):
        assert first[name].good
        assert "--role roles/serviceusage.serviceUsageConsumer" in first[name].fix, "no request may be charged to it"
    mend("roles/serviceusage.serviceUsageConsumer")
    (rights,) = [finding for name, finding in (await said()).items() if name == f"rights in {PROJECT}"]
    assert f"gcloud services enable cloudresourcemanager.googleapis.com --project {NUMBER}" in rights.fix
    assert (
        "The quota GPUS_ALL_REGIONS of project emulated-project has 0 of 0 left" in first["quotas of the project"].text
    )
    assert "https://console.cloud.google.com/iam-admin/quotas" in first["quotas of the project"].fix

    mend("cloudresourcemanager.googleapis.com", "iam.googleapis.com")
    rights = (await said())[f"rights in {PROJECT}"]
    assert not rights.good
    assert "lack compute.firewalls.create, compute.networks.updatePolicy" in rights.text
    assert re.findall(r"--role (\S+)`", rights.fix) == ["roles/compute.securityAdmin", "roles/storage.admin"]
    assert f"rights in {PROJECT}" not in found(await engine.examine([new], firewall=False))
    with pytest.raises(AccessError, match=r"compute\.firewalls\.create.*roles/compute\.securityAdmin"):
        await engine.firewall.ensure(RULES)
    mend("roles/compute.securityAdmin")
    await engine.firewall.ensure(RULES)
    assert re.findall(r"--role (\S+)`", (await said())[f"rights in {PROJECT}"].fix) == ["roles/storage.admin"]
    mend("roles/storage.admin")
    assert f"rights in {PROJECT}" not in await said()

    policies = (await said())["organization policies"]
    assert (policies.good, policies.answered) == (True, False)
    assert "--role roles/orgpolicy.policyViewer" in policies.fix
    mend("roles/orgpolicy.policyViewer")
    on = {name.rpartition(" ")[2] for name in await said() if name.startswith("organization policy ")}
    assert on == set(POLICIES)
    unasked = (await said())["managed organization policies"]
    assert not unasked.answered
    assert all(name in unasked.text for name in MANAGED)
    assert f"gcloud services enable orgpolicy.googleapis.com --project {PROJECT}" in unasked.fix
    mend("orgpolicy.googleapis.com")
    every = (*POLICIES, *MANAGED)
    on = {name.rpartition(" ")[2] for name in await said() if "organization polic" in name}
    assert on == set(every), "the newer API tells both kinds"
    for policy in [name for name in every if name != "compute.disableGuestAttributesAccess"]:
        ask(url, {"mend": [name for name in every if name != policy]})
        (finding,) = [answer for name, answer in (await said()).items() if name == f"organization policy {policy}"]
        assert finding.fix
        await refused(AccessError, f"The organization policy {policy} of project {PROJECT} forbids the request")
        ask(url, {"lack": list(every)})
    mend(*[name for name in every if name != "compute.disableGuestAttributesAccess"])

    account = (await said())["service account default"]
    assert "gcloud iam service-accounts add-iam-policy-binding" in account.fix
    await refused(
        AccessError, "may not give a VM this service account: The user does not have access to service account"
    )
    mend("roles/iam.serviceAccountUser")
    assert "service account default" not in await said()

    await refused(QuotaError, "GPUS_ALL_REGIONS")
    mend("GPUS_ALL_REGIONS")
    assert set(await said()) == {"organization policy compute.disableGuestAttributesAccess"}
    vm = await engine.insert(replace(new, request_id=request_id("at last")))
    with pytest.raises(AccessError, match=r"policy compute\.disableGuestAttributesAccess"):
        await engine.host_keys(ZONE, vm.name)
    mend("compute.disableGuestAttributesAccess")
    assert await engine.host_keys(ZONE, vm.name)
    more = (await said())["quotas in us-central1"]
    assert more.text.startswith("The quota NVIDIA_T4_GPUS in us-central1 has 0 of 1 left; required: 1")
    mend("PREEMPTIBLE_NVIDIA_T4_GPUS", "PREEMPTIBLE_CPUS")
    assert await said() == {}, "Spot VMs have quotas of their own, once there are any"
    await engine.delete(ZONE, vm.name, {})


@pytest.mark.slow
async def test_what_is_asked_for_together_is_refused_together(url: str, engine: ComputeEngine, new: VmRequest) -> None:
    ask(url, {"whole": True})
    plain = replace(new, service_account="")
    for step, match in (
        ("compute.googleapis.com", "API is not enabled"),
        ("roles/compute.instanceAdmin.v1", "compute.instances.create"),
        ("compute.vmExternalIpAccess", "policy compute.vmExternalIpAccess"), ("GPUS_ALL_REGIONS", "GPUS_ALL_REGIONS"),
    ):  # fmt: skip
        ask(url, {"lack": [step]})
        wanted = [replace(plain, name=f"c1-{n}", request_id=request_id(step, n)) for n in range(2)]
        try:
            outcomes = list((await engine.insert_many(wanted)).values())
        except CloudError as error:
            outcomes = [error]
        assert all(isinstance(outcome, QuotaError if "GPUS" in step else AccessError) for outcome in outcomes)
        assert all(match in str(each) for each in outcomes)
        ask(url, {"mend": [step]})
    assert await engine.list({}) == []


async def test_an_image_is_made_by_who_has_the_role_for_it(url: str, engine: ComputeEngine) -> None:
    ask(url, {"whole": True})
    ask(url, {"lack": ["roles/compute.storageAdmin"]})
    with pytest.raises(AccessError, match=r"Required 'compute\.images\.create'.*roles/compute\.storageAdmin"):
        await engine.images.make("mine", disk=f"zones/{ZONE}/disks/d", description="", labels={}, family="own")
    ask(url, {"whole": True})


async def test_vms_without_an_external_address_need_a_way_out(
    url: str, engine: ComputeEngine, wanted: VmRequest
) -> None:
    ask(url, {"whole": True})
    inside = replace(wanted, external_ip=False)
    baked = replace(inside, image="family/debian-12")
    assert "way out in us-central1" not in found(await engine.examine([inside]))
    ask(url, {"lack": ["nat", "private-google-access"]})
    way = found(await engine.examine([inside]))["way out in us-central1"]
    assert "gcloud compute routers nats create" in way.fix
    way = found(await engine.examine([baked]))["way out in us-central1"]
    assert "gcloud compute networks subnets update default --region us-central1" in way.fix
    ask(url, {"mend": ["private-google-access"]})
    assert "way out in us-central1" not in found(await engine.examine([baked]))
    assert "way out in us-central1" in found(await engine.examine([inside]))
    ask(url, {"mend": ["nat"]})
    assert "way out in us-central1" not in found(await engine.examine([inside]))


def test_what_services_beside_compute_engine_say_has_the_form_of_theirs(url: str) -> None:
    ask(url, {"whole": True})
    project = f"/v1/projects/{PROJECT}"
    tested = {"permissions": list(ALL)}
    assert faults("TestIamPermissionsRequest", tested, "cloudresourcemanager") == []
    assert post(url, f"{project}:testIamPermissions", tested) == (200, tested)
    status, account = post(url, "/v1/projects/-/serviceAccounts/a@b.c:testIamPermissions", tested)
    assert (status, faults("TestIamPermissionsResponse", account, "iam")) == (200, [])
    for state in ("whole", "fresh"):
        ask(url, {state: True})
        ask(url, {"mend": ["cloudresourcemanager.googleapis.com", "roles/orgpolicy.policyViewer"]})
        for name in (*POLICIES, "storage.retentionPolicySeconds"):
            status, policy = post(url, f"{project}:getEffectiveOrgPolicy", {"constraint": f"constraints/{name}"})
            assert (status, faults("OrgPolicy", policy, "cloudresourcemanager")) == (200, [])
        ask(url, {"mend": ["orgpolicy.googleapis.com", "roles/serviceusage.serviceUsageConsumer"]})
        for name in (*POLICIES, *MANAGED, "storage.retentionPolicySeconds"):
            with urllib.request.urlopen(f"{url}/v2/projects/{PROJECT}/policies/{name}:getEffectivePolicy") as answer:
                policy = json.load(answer)
            assert faults("GoogleCloudOrgpolicyV2Policy", policy, "orgpolicy.v2") == []
    assert set(QUOTAS) <= set(document()["schemas"]["Quota"]["properties"]["metric"]["enum"])
    ask(url, {"fresh": True})
    status, refusal = post(url, f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances", {})
    assert (status, refusal_faults(403, {"error": refusal["error"]})) == (403, [])
    assert refusal["error"]["details"][0]["reason"] == "SERVICE_DISABLED"


def test_routers_are_told_as_compute_engine_does(url: str) -> None:
    ask(url, {"whole": True})
    with urllib.request.urlopen(f"{url}/compute/v1/projects/{PROJECT}/aggregated/routers") as answer:
        assert faults("RouterAggregatedList", json.load(answer)) == []


@pytest.mark.slow
def test_it_is_steered_from_a_terminal_and_kept_over_a_restart(tmp_path: Path) -> None:
    def typed(*words: str) -> tuple[int, str]:
        command = [
            sys.executable,
            "-m",
            "transient_emulator",
            "project",
            *words,
            "--state",
            str(tmp_path / "state"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
        return done.returncode, done.stdout + done.stderr

    def started(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "transient_emulator", "--state", str(tmp_path / "state"), *options]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        assert program.stdout
        assert program.stdout.readline().startswith("ready ")
        return program

    assert typed()[0] == 1
    program = started()
    try:
        assert typed() == (0, "The emulated project lacks nothing.\n")
        assert "roles that no user has: roles/compute.instanceAdmin.v1" in typed("fresh")[1]
        code, told = typed("mend", "role/compute.securityAdmin")
        assert (code, "roles/compute.securityAdmin" in told) == (1, True), "the nearest is named"
        code, told = typed("role", "transientUsr")
        assert (code, "transientUser" in told) == (1, True)
        assert typed("role", "transientController")[1].endswith("the permissions of transientController alone.\n")
    finally:
        program.terminate()
        assert program.wait(60) == 0
    program = started()
    try:
        every = [each for each in STEPS if each != "nat"]
        told = typed("mend", *every)[1]
        assert "network: nat\n" in told
        assert "the permissions of transientController alone" in told, "the role is kept, too"
        assert "alone" not in typed("role", "all")[1]
    finally:
        program.terminate()
        assert program.wait(60) == 0


async def test_a_documented_role_is_enforced_permission_by_permission(
    url: str, engine: ComputeEngine, wanted: VmRequest
) -> None:
    ask(url, {"whole": True})
    plain = replace(wanted, name="c1-role", request_id=request_id("role"))
    try:
        ask(url, {"role": "transientController"})
        await engine.endings(ZONE)  # operations may be listed
        with pytest.raises(AccessError, match=r"Required 'compute\.firewalls\.create' permission"):
            await engine.firewall.ensure(RULES)
        with pytest.raises(AccessError, match=r"Required 'compute\.images\.list' permission"):
            await engine.images.list()
        with pytest.raises(AccessError, match=r"Required 'compute\.instances\.setServiceAccount' permission"):
            await engine.insert(replace(plain, service_account="default"))
        rights = found(await engine.examine([plain]))[f"rights in {PROJECT}"]
        assert "lack compute.zones.get, compute.regions.get" in rights.text
        ask(url, {"role": "transientUser"})
        assert await engine.images.list() == []
        await engine.firewall.ensure(RULES)
        assert found(await engine.examine([plain], bucket="a-bucket-of-mine")) == {}
        with pytest.raises(AccessError, match=r"Required 'compute\.images\.create' permission"):
            await engine.images.make("mine", disk=f"zones/{ZONE}/disks/d", description="", labels={}, family="own")
    finally:
        ask(url, {"whole": True})


def test_a_request_is_refused_for_the_project_that_it_names(url: str) -> None:
    """As programs send it that take a login as it is."""
    path = f"{url}/compute/v1/projects/{PROJECT}"
    request = urllib.request.Request(path, headers={"x-goog-user-project": QUOTA_PROJECT})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    ask(url, {"whole": True})
    assert opener.open(request).status == 200
    for step, reason, consumer in (
        ("quota-project", "SERVICE_DISABLED", fixed_id("projects", QUOTA_PROJECT)),
        ("roles/serviceusage.serviceUsageConsumer", "USER_PROJECT_DENIED", QUOTA_PROJECT),
    ):
        ask(url, {"lack": [step]})
        with pytest.raises(urllib.error.HTTPError) as refused:
            opener.open(request)
        content = json.load(refused.value)
        assert refusal_faults(403, content) == []
        (detail,) = content["error"]["details"]
        assert (detail["reason"], detail["metadata"]["consumer"]) == (reason, f"projects/{consumer}")
        assert opener.open(path).status == 200, "without the header nothing is lacking"
        ask(url, {"mend": [step]})


async def test_a_bucket_without_billing_names_the_command(url: str, hosts: Hosts) -> None:
    ask(url, {"whole": True})
    ask(url, {"lack": ["billing"]})
    async with CloudStorage(PROJECT, patience=1) as storage:
        with pytest.raises(ConsumerError, match=f"gcloud billing projects link {PROJECT}"):
            await storage.ensure_bucket("a-bucket-of-mine", "us-central1")
    ask(url, {"whole": True})
