"""What Google's answers mean for a declaration: quotas, policies, rights, refusals. No server."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import pytest
from google.api_core.exceptions import from_http_status
from google.cloud import compute_v1
from hypothesis import given
from hypothesis import strategies as st

from tests.emulator.discovery import document
from transient_magics import catalog
from transient_magics.cloud import VmRequest
from transient_magics.cloud import storage as storage_failures
from transient_magics.cloud.calling import failures
from transient_magics.cloud.examination import policies
from transient_magics.errors import AccessError, CloudError, QuotaError

METRICS = document()["schemas"]["Quota"]["properties"]["metric"]["enum"]
EVERY_MACHINE = [(each, gpu) for gpu, each in ((name, gpu.machine_type) for name, gpu in catalog.ACCELERATORS.items())]


@dataclass
class Quota:
    metric: str
    limit: float
    usage: float = 0.0


def vm(machine: str, card: str = "", model: Any = "spot", count: int = 1) -> VmRequest:
    terms: dict[str, Any] = {"accelerator_count": count, "provisioning_model": model}
    return VmRequest("a", "us-central1-c", machine, "", accelerator=card, **terms)


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (vm("n1-standard-8", "nvidia-tesla-t4", count=2), {"PREEMPTIBLE_NVIDIA_T4_GPUS": 2, "PREEMPTIBLE_CPUS": 8}),
        (vm("n1-custom-6-20480", model="standard"), {"CPUS": 6}),
        (vm("g2-standard-24", model="standard"), {"NVIDIA_L4_GPUS": 2, "the quota of G2 vCPUs": 24}),
        (vm("a2-highgpu-2g", model="standard"), {"NVIDIA_A100_GPUS": 2, "A2_CPUS": 24}),
        (vm("a2-ultragpu-1g"), {"PREEMPTIBLE_NVIDIA_A100_80GB_GPUS": 1, "PREEMPTIBLE_CPUS": 12}),
        (vm("a3-highgpu-1g"), {"PREEMPTIBLE_NVIDIA_H100_GPUS": 1, "PREEMPTIBLE_CPUS": 26}),
        (vm("n2-standard-16", model="standard"), {"N2_CPUS": 16}),
        (vm("e2-small", model="standard"), {"CPUS": 2}),
    ],
)
def test_each_machine_counts_against_the_quotas_that_compute_engine_names(
    request_: VmRequest, wanted: dict[str, float]
) -> None:
    counted = {metrics[0]: count for metrics, count in policies.needs([request_]).items()}
    assert counted == {**wanted, "IN_USE_ADDRESSES": 1, "SSD_TOTAL_GB": 50, "INSTANCES": 1}


def test_no_metric_is_asked_for_that_compute_engine_does_not_have() -> None:
    for machine, gpu in EVERY_MACHINE:
        card = "" if catalog.accelerator(gpu).bundled else catalog.accelerator(gpu).compute_engine_name
        for model in ("spot", "standard"):
            asked = vm(machine, card, model)
            names = [each for metrics in policies.needs([asked]) for each in metrics]
            names += [each for metrics in policies.needs_everywhere([asked]) for each in metrics]
            assert {each for each in names if not each.startswith("the quota of ")} <= set(METRICS)


@pytest.mark.parametrize(
    ("preemptible", "standard", "refused"),
    [(8, 0, ""), (1, 8, "PREEMPTIBLE_NVIDIA_T4_GPUS"), (0, 8, ""), (0, 1, " NVIDIA_T4_GPUS"), (None, 8, "")],
)
def test_a_spot_vm_takes_the_preemptible_quota_once_there_is_one(
    preemptible: int | None, standard: int, refused: str
) -> None:
    listed = [Quota("NVIDIA_T4_GPUS", standard)]
    listed += [] if preemptible is None else [Quota("PREEMPTIBLE_NVIDIA_T4_GPUS", preemptible)]
    wanted = {("PREEMPTIBLE_NVIDIA_T4_GPUS", "NVIDIA_T4_GPUS"): 2.0}
    if not refused:
        assert "2 needed" in policies.compare(listed, wanted, "in r", "p")
        return
    with pytest.raises(CloudError, match=f"{refused} in r has {min(preemptible or standard, standard)} of"):
        policies.compare(listed, wanted, "in r", "p")


def test_spot_vms_and_others_that_take_the_same_quota_are_counted_together() -> None:
    both = policies.needs([vm("n1-standard-4"), vm("n1-standard-8", model="standard")])
    assert "CPUS 12 free, 12 needed" in policies.compare([Quota("CPUS", 12)], both, "in r", "p")
    with pytest.raises(CloudError, match="CPUS in r has 11 of 11 left; required: 12"):
        policies.compare([Quota("CPUS", 11), Quota("PREEMPTIBLE_CPUS", 0)], both, "in r", "p")
    assert "; CPUS 8 free, 8" in policies.compare([Quota("PREEMPTIBLE_CPUS", 4), Quota("CPUS", 8)], both, "in r", "p")


def test_a_quota_that_nobody_lists_is_not_told() -> None:
    assert "the quota of G2 vCPUs is not listed, so unknown" in policies.compare(
        [Quota("CPUS", 9)], policies.needs([vm("g2-standard-4", model="standard")]), "in r", "p"
    )


@pytest.mark.parametrize(
    ("values", "zone", "answer"),
    [
        (["us-central1"], "us-central1-c", True), (["us-central1-c"], "us-central1-c", True),
        (["in:us-central1-locations"], "us-central1-c", True), (["in:us-locations"], "us-central1-c", True),
        (["in:europe-locations", "us-east1"], "us-central1-c", False), (["in:eu-locations"], "europe-west4-a", None),
        (["in:us-west1-locations"], "us-central1-c", False), ([], "us-central1-c", False),
    ],
)  # fmt: skip
def test_locations_are_zones_regions_and_groups_of_them(values: list[str], zone: str, answer: bool | None) -> None:
    assert policies.covers(values, zone) is answer


def test_every_policy_that_is_asked_for_is_one_of_googles() -> None:
    folder = resources.files("googleapiclient.discovery_cache") / "documents"
    named = (folder / "cloudasset.v1.json").read_text(encoding="utf-8")
    for constraint in (
        policies.OS_LOGIN, policies.EXTERNAL_IP, policies.GUEST_ATTRIBUTES, policies.SHIELDED, policies.IMAGES,
        policies.LOCATIONS,
    ):  # fmt: skip
        assert f"constraints/{constraint}" in named
    assert json.loads(named)["name"] == "cloudasset"


DENIED = (
    "The user does not have access to service account 'sa@p.iam.gserviceaccount.com'.  User: 'me@example.com'.  Ask a "
    "project owner to grant you the iam.serviceAccountUser role on the service account"
)


@pytest.mark.parametrize(
    ("status", "message", "said", "typed"),
    [
        (400, DENIED, "may not give a VM this service account",
         "gcloud iam service-accounts add-iam-policy-binding sa@p.iam.gserviceaccount.com --project p"),
        (403, "Required 'iam.serviceAccounts.actAs' permission for 'sa'", "may not give", "serviceAccountUser"),
        (400, "Invalid value for field 'resource.network': 'projects/host/global/networks/n'. Cross project "
         "referencing is not allowed for this resource.", "Shared VPC", "--no-firewall"),
        (412, "Constraint constraints/compute.requireShieldedVm violated for project projects/p. Secure Boot is not "
         "enabled in the 'shielded_instance_config' field.", "policy compute.requireShieldedVm", "Secure Boot"),
        (412, "Location ZONE:us-central1-a violates constraint constraints/gcp.resourceLocations on the resource "
         "projects/p/zones/us-central1-a/instances/a.", "policy gcp.resourceLocations", "allowed --zone"),
        (403, "Required 'compute.images.create' permission for 'projects/p/global/images/i'", "do not allow this",
         "--role roles/compute.storageAdmin"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_to_be_typed(status: int, message: str, said: str, typed: str) -> None:
    error = failures.explain(from_http_status(status, message), where="w", project="p")
    assert error
    assert said in str(error)
    assert typed in error.fix
    failed = compute_v1.Operation(
        http_error_status_code=status, error={"errors": [{"code": "CONDITION_NOT_MET", "message": message}]}
    )
    assert str(failures.explain_operation(failed, where="w", project="p")) == str(error)


def test_an_operation_that_says_no_role_but_a_code_is_understood() -> None:
    denied = compute_v1.Operation(error={"errors": [{"code": "SERVICE_ACCOUNT_ACCESS_DENIED", "message": ""}]})
    error = failures.explain_operation(denied, where="w", project="p")
    assert isinstance(error, AccessError)
    assert "--role roles/iam.serviceAccountUser" in error.fix


@pytest.mark.parametrize(("metric", "everywhere"), [("GPUS_ALL_REGIONS", True), ("NVIDIA_T4_GPUS", False)])
def test_a_quota_of_all_regions_is_told_apart(metric: str, everywhere: bool) -> None:
    failed = compute_v1.Operation(
        error={"errors": [{"code": "QUOTA_EXCEEDED", "message": f"Quota '{metric}' exceeded.  Limit: 0.0 globally."}]}
    )
    error = failures.explain_operation(failed, where="w", project="p")
    assert isinstance(error, QuotaError)
    assert error.everywhere is everywhere


def test_a_bucket_that_a_policy_forbids_is_no_race() -> None:
    refused = from_http_status(412, "'us-central1' violates constraint 'constraints/gcp.resourceLocations'")
    error = storage_failures.explain(refused, where="bucket b", project="p")
    assert isinstance(error, AccessError)
    assert "gcp.resourceLocations" in str(error)


@given(st.lists(st.sampled_from([*METRICS, "NEW_ONE"]), unique=True), st.floats(0, 9), st.floats(0, 9))
def test_whatever_is_listed_there_is_an_answer(metrics: list[str], limit: float, usage: float) -> None:
    listed = [Quota(each, limit, usage) for each in metrics]
    for asked in (vm("n1-standard-4", "nvidia-tesla-t4"), replace(vm("a3-highgpu-8g"), external_ip=False)):
        try:
            answer = policies.compare(listed, policies.needs([asked]), "in r", "p")
        except CloudError as error:
            answer = error.fix
        assert "needed" in answer or "iam-admin/quotas?project=p" in answer
