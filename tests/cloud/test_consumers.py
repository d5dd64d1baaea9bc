"""Refusals at Google's own host names: which project and role they name, and which project requests are charged to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.api.error_reason_pb2 import ErrorReason
from google_hosts import QUOTA_PROJECT, Hosts, mounted
from scripted_api import PROJECT, ZONE, Api, instance, refusal

from transient_magics.cloud import CloudStorage, ComputeEngine, VmRequest
from transient_magics.cloud.calling.login import SignedIn
from transient_magics.controller.programs.doctor import quota_project_answer
from transient_magics.errors import (
    AccessError,
    CloudError,
    ConsumerError,
    CredentialsError,
    QuotaError,
    RateLimitError,
)

WORKER = f"zones/{ZONE}/instances/c1-worker-1"
RIGHTS = f"v1/projects/{PROJECT}:testIamPermissions"
OTHER = "111222333444"


def detailed(
    status: int, reason: str, message: str = "Google says why.", *, domain: str = "googleapis.com", **metadata: str
) -> tuple[int, dict[str, Any]]:
    """A refusal with an ErrorInfo; Compute Engine's older reason beside it says nothing."""
    _, content = refusal(status, "forbidden", message)
    content["error"]["details"] = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": reason,
            "domain": domain,
            "metadata": {"consumer": f"projects/{OTHER}", "service": "compute.googleapis.com", **metadata},
        }
    ]
    return status, content


REASONS = [
    ("SERVICE_DISABLED", ConsumerError, f"gcloud services enable compute.googleapis.com --project {OTHER}`"),
    ("BILLING_DISABLED", ConsumerError, f"gcloud billing projects link {OTHER} --billing-account"),
    ("USER_PROJECT_DENIED", ConsumerError, f"gcloud projects add-iam-policy-binding {OTHER}"),
    ("CONSUMER_INVALID", ConsumerError, "gcloud projects list"),
    ("RESOURCE_PROJECT_INVALID", ConsumerError, "gcloud projects list"),
    ("CONSUMER_SUSPENDED", ConsumerError, "project-suspension-guidelines"),
    ("SECURITY_POLICY_VIOLATED", AccessError, "the organization's administrator"),
    ("RESOURCE_USAGE_RESTRICTION_VIOLATED", AccessError, "gcloud org-policies describe gcp.restrictServiceUsage"),
    ("USER_BLOCKED_BY_ADMIN", AccessError, "administrator"),
    ("ACCESS_TOKEN_SCOPE_INSUFFICIENT", CredentialsError, "gcloud auth application-default login"),
    ("ACCESS_TOKEN_EXPIRED", CredentialsError, "gcloud auth application-default login"),
    ("RESOURCE_QUOTA_EXCEEDED", QuotaError, f"iam-admin/quotas?project={OTHER}"),
]


@pytest.mark.parametrize(("reason", "kind", "typed"), REASONS, ids=[row[0] for row in REASONS])
async def test_the_structured_reason_decides_and_the_consumer_is_named(
    api: Api, engine: ComputeEngine, reason: str, kind: type[CloudError], typed: str
) -> None:
    known = ErrorReason.keys()
    assert reason in known, "a reason that Google has"
    misleading = "Required 'compute.instances.create' permission for 'projects/a-project'"
    api.on("GET", WORKER, detailed(403, reason, misleading))
    with pytest.raises(CloudError) as raised:
        await engine.get(ZONE, "c1-worker-1")
    assert type(raised.value) is kind
    assert typed in raised.value.fix
    assert "instanceAdmin" not in str(raised.value)
    if kind is ConsumerError:
        assert OTHER in raised.value.what
    async with CloudStorage(PROJECT, patience=3) as storage:
        api.on("GET", "storage/v1/b/mine/o", detailed(403, reason, misleading))
        with pytest.raises(kind) as raised:
            await storage.list("mine")
        assert typed in raised.value.fix


@pytest.mark.slow
async def test_a_rate_limit_is_waited_for(hosts: Hosts, api: Api) -> None:
    limited = detailed(403, "RATE_LIMIT_EXCEEDED", quota_metric="compute.googleapis.com/read_requests")
    async with ComputeEngine(PROJECT, patience=20) as engine:
        api.on("GET", WORKER, limited, instance("c1-worker-1"))
        assert await engine.get(ZONE, "c1-worker-1")
    async with ComputeEngine(PROJECT, patience=0.1) as engine:
        api.on("GET", WORKER, limited)
        with pytest.raises(RateLimitError, match=rf"{OTHER} .*compute\.googleapis\.com/read_requests"):
            await engine.get(ZONE, "c1-worker-1")


@pytest.mark.parametrize(
    ("message", "role"),
    [
        ("Required 'compute.firewalls.create' permission for 'projects/p/global/firewalls/f'", "securityAdmin"),
        ("Required 'compute.images.create' permission for 'projects/p/global/images/i'", "compute.storageAdmin"),
        ("Required 'compute.zoneOperations.list' permission for 'projects/p/zones/z'", "instanceAdmin.v1"),
        ("Permission 'serviceusage.services.use' denied on resource 'projects/p'", "serviceUsageConsumer"),
        ("me@example.com does not have storage.buckets.create access to the Google Cloud project.", "storage.admin"),
    ],
)
async def test_the_role_is_that_of_the_permission_and_not_of_the_host(
    api: Api, engine: ComputeEngine, wanted: VmRequest, message: str, role: str
) -> None:
    """google-api-core puts `POST https://compute.googleapis.com/...: ` before the message."""
    api.on("POST", f"zones/{ZONE}/instances", refusal(403, "forbidden", message))
    with pytest.raises(AccessError) as raised:
        await engine.insert(wanted)
    assert f"{role}`" in raised.value.fix
    assert "googleapis.com" not in raised.value.what


async def test_the_permission_of_iam_is_read_from_its_metadata(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    denied = detailed(
        403, "IAM_PERMISSION_DENIED", domain="iam.googleapis.com", permission="compute.networks.updatePolicy"
    )
    api.on("POST", f"zones/{ZONE}/instances", denied)
    with pytest.raises(AccessError, match=r"roles/compute\.securityAdmin"):
        await engine.insert(wanted)


async def test_what_is_said_without_an_error_info_is_read_from_the_words(api: Api, engine: ComputeEngine) -> None:
    disabled = (
        "Compute Engine API has not been used in project 4711 before or it is disabled. Enable it by visiting "
        "https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project=4711 then retry."
    )
    api.on("GET", WORKER, refusal(403, "accessNotConfigured", disabled))
    with pytest.raises(ConsumerError, match=r"services enable compute\.googleapis\.com --project 4711`"):
        await engine.get(ZONE, "c1-worker-1")
    unpaid = "This API method requires billing to be enabled. Please enable billing on project #4711 by visiting it."
    api.on("GET", WORKER, refusal(403, "forbidden", unpaid))
    with pytest.raises(ConsumerError, match="billing projects link 4711"):
        await engine.get(ZONE, "c1-worker-1")


async def test_only_services_that_need_one_are_told_a_project_to_charge(
    api: Api, engine: ComputeEngine, hosts: Hosts, wanted: VmRequest
) -> None:
    """The login names another project, as `gcloud auth application-default login` writes it."""
    api.on("GET", "storage/v1/b/mine/o", {"items": []})
    api.on("GET", "", {"name": PROJECT})
    api.on("GET", "v1/services/.*/skus", {"skus": []})
    async with CloudStorage(PROJECT, patience=3) as storage:
        assert await storage.list("mine") == []
    await engine.examine([wanted], bucket="mine")
    await engine.list_prices("2026-11-27")
    assert hosts.charged("compute.googleapis.com") == {None}
    assert hosts.charged("storage.googleapis.com") == {None}
    for name in ("cloudresourcemanager", "orgpolicy", "cloudbilling"):
        assert hosts.charged(f"{name}.googleapis.com") == {PROJECT}, name
    assert engine._calls.clients.quota_project == QUOTA_PROJECT


@pytest.mark.parametrize("answers", [2, 3, 4])
async def test_who_may_not_charge_the_project_charges_the_logins_then_none(
    api: Api, engine: ComputeEngine, hosts: Hosts, wanted: VmRequest, answers: int
) -> None:
    """All are refused in the last case, and the remedy is about the project that was asked for."""
    api.on("GET", "", {"name": PROJECT})
    denied = detailed(403, "USER_PROJECT_DENIED", consumer=f"projects/{PROJECT}")
    others = [detailed(403, "SERVICE_DISABLED", consumer="projects/764086051850")] * 2
    api.on("POST", RIGHTS, *[denied, *others][: answers - 1], {"permissions": []} if answers < 4 else others[0])
    (finding,) = [each for each in await engine.examine([wanted]) if each.subject == f"rights in {PROJECT}"]
    host = "cloudresourcemanager.googleapis.com"
    charged = [project for name, path, project in hosts.sent if (name, path) == (host, f"/{RIGHTS}")]
    assert charged == [PROJECT, QUOTA_PROJECT, None][: min(answers, 3)]
    if answers == 4:
        assert not finding.answered
        assert f"add-iam-policy-binding {PROJECT}" in finding.fix
        assert "serviceUsageConsumer" in finding.fix
    else:
        assert "lack compute." in finding.text


@pytest.mark.parametrize("named", ["", PROJECT, QUOTA_PROJECT])
async def test_the_doctor_says_which_quota_project_the_login_names(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    with mounted(api.url, tmp_path, monkeypatch, quota_project=named):
        async with ComputeEngine(PROJECT, patience=3) as engine:
            found = await engine.signed_in()
    assert isinstance(found, SignedIn)
    assert found.quota_project == named
    answer = quota_project_answer(found, PROJECT)
    assert answer
    assert (answer.result == "note") == (named == QUOTA_PROJECT)
    assert named in answer.found
    if named == QUOTA_PROJECT:
        assert answer.fix == f"gcloud auth application-default set-quota-project {PROJECT}"
