"""VMs that a project may not have, though the request for them is a legal one: no rights to their account, no quota."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...instances import Record
from ...project import quotas, state
from ...project.state import Project
from ...rest import wire
from ...weather.capacity import Refusal


def of(project: Project) -> Callable[[Record, list[Record]], Refusal | None]:
    """How the operation of such a VM fails, if it does, beside VMs that are there; ApiError where it shows at once."""

    def refusal(record: Record, present: list[Record]) -> Refusal | None:
        return _no_account(project, record) or _no_quota(project, record, present)

    return refusal


def _no_account(project: Project, record: Record) -> Refusal | None:
    accounts = record.resource.get("serviceAccounts") or ()
    if not accounts or not project.lacks(state.ACT_AS):
        return None
    why = (
        f"The user does not have access to service account '{accounts[0]['email']}'.  User: '{wire.USER}'.  Ask a "
        "project owner to grant you the iam.serviceAccountUser role on the service account"
    )
    return Refusal({"code": "SERVICE_ACCOUNT_ACCESS_DENIED", "message": why}, (403, "FORBIDDEN"))


def _no_quota(project: Project, record: Record, present: list[Record]) -> Refusal | None:
    found = quotas.over(project, record.resource, [each.resource for each in present if each is not record])
    if not found:
        return None
    metric, limit, region = found
    why = f"Quota '{metric}' exceeded.  Limit: {limit:.1f} {f'in region {region}' if region else 'globally'}."
    info: dict[str, Any] = {
        "metricName": f"compute.googleapis.com/{metric.lower()}", "limit": limit,
        "limitName": f"{metric.replace('_', '-')}-per-project{'-region' if region else ''}",
        "dimensions": {"region": region or "global"},
    }  # fmt: skip
    error = {"code": "QUOTA_EXCEEDED", "message": why, "errorDetails": [{"quotaInfo": info}]}
    return Refusal(error, (403, "FORBIDDEN"))
