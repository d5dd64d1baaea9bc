"""Google's structured reason for a refusal, and our error for those that concern no single API.

A refused request carries a google.rpc.ErrorInfo: a reason, its domain, and metadata. In the domain `googleapis.com`
the reasons are those of google.api.ErrorReason, and the metadata names the service and the consumer, which is the
project that the request was charged to (googleapis/googleapis, google/api/error_reason.proto, read 2026-11-27). The
consumer may be another project than the one that was asked about, so every remedy here names the consumer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ...errors import (
    AccessError,
    CloudError,
    ConsumerError,
    CredentialsError,
    QuotaError,
    RateLimitError,
)
from .mending import LOGIN, enable, grant, lift_managed, link_billing, set_quota_project

INFRASTRUCTURE = "googleapis.com"
"""The domain of the reasons that mean the same for every API."""
RATE_LIMIT = "RATE_LIMIT_EXCEEDED"
USER_PROJECT_DENIED = "USER_PROJECT_DENIED"
_KIND = "type.googleapis.com/google.rpc.ErrorInfo"
_CONSUMER_ROLE = "roles/serviceusage.serviceUsageConsumer"
_SUSPENSION = "https://cloud.google.com/resource-manager/docs/project-suspension-guidelines"
_LOGIN_PROJECT = "764086051850"
"""The project of the OAuth client of `gcloud auth application-default login` (google/auth/_cloud_sdk.py). It is the
consumer of a request whose credentials name no quota project."""
_TITLES = {
    "compute.googleapis.com": "Compute Engine API",
    "storage.googleapis.com": "Cloud Storage API",
}
_SERVICE_USAGE = "gcp.restrictServiceUsage"
_EXPIRED = ("ACCESS_TOKEN_EXPIRED", "ACCESS_TOKEN_TYPE_UNSUPPORTED", "CREDENTIALS_MISSING")


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """The google.rpc.ErrorInfo of a refusal; empty where it has none."""

    reason: str = ""
    domain: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def service(self) -> str:
        """The API, as `compute.googleapis.com`, or nothing."""
        return self.metadata.get("service", "")

    @property
    def consumer(self) -> str:
        """The ID or number of the project that the request was charged to, or nothing."""
        return self.metadata.get("consumer", "").removeprefix("projects/")


def error_info(error: Any) -> ErrorInfo:
    """Return the ErrorInfo of an error of Google's client.

    Parameters
    ----------
    error : google.api_core.exceptions.GoogleAPICallError
        Cloud Storage's downloads and uploads raise some without details; their answer is read instead.
    """
    details: object = list(getattr(error, "details", None) or ()) or _details(error)
    for detail in cast(list[object], details if isinstance(details, list) else []):
        if isinstance(detail, dict):
            found = cast(dict[str, Any], detail)
            if found.get("@type") == _KIND and isinstance(found.get("metadata", {}), dict):
                metadata = {str(key): str(value) for key, value in found.get("metadata", {}).items()}
                return ErrorInfo(str(found.get("reason", "")), str(found.get("domain", "")), metadata)
    return ErrorInfo()


def _details(error: Any) -> object:
    try:
        return error.response.json()["error"]["details"]
    except (AttributeError, ValueError, KeyError, TypeError):
        return []


def explain_infrastructure(info: ErrorInfo, said: str, *, where: str, project: str) -> CloudError | None:
    """Return our error for a reason that means the same for every API; None for any other.

    Parameters
    ----------
    said : str
        Google's sentence.
    project : str
        The project that was asked about. It stands for a consumer that is not named.
    """
    if info.domain and info.domain != INFRASTRUCTURE:
        return None
    consumer = info.consumer or project
    match info.reason:
        case "SERVICE_DISABLED":
            return service_disabled(info.service or "compute.googleapis.com", consumer, where=where)
        case "BILLING_DISABLED":
            return billing_disabled(consumer, where=where)
        case "USER_PROJECT_DENIED":
            return ConsumerError(
                f"Requests of these credentials may not be charged to project {consumer}: the project does not exist, "
                "or the right to use it is missing",
                where=where,
                fix=f"Ask its owner for the role Service Usage Consumer (`{grant(_CONSUMER_ROLE, consumer)}`), or name "
                f"another quota project: `{set_quota_project(project)}`.",
            )
        case "CONSUMER_INVALID" | "RESOURCE_PROJECT_INVALID":
            return ConsumerError(
                f"There is no project {consumer}, or it was deleted",
                where=where,
                fix="Type `gcloud projects list` to see your projects. If it is the quota project of your login, type "
                f"`{set_quota_project(project)}`.",
            )
        case "CONSUMER_SUSPENDED" | "GCP_SUSPENDED":
            what = f"Google has suspended project {consumer}"
            return ConsumerError(what, where=where, fix=f"See {_SUSPENSION}.")
        case "SECURITY_POLICY_VIOLATED":
            number = f" (uid {uid})" if (uid := info.metadata.get("uid")) else ""
            return AccessError(
                f"VPC Service Controls forbid this request: {said}",
                where=where,
                fix=f"Ask the organization's administrator, who finds the request in the audit log{number}.",
            )
        case "RESOURCE_USAGE_RESTRICTION_VIOLATED":
            what = f"The organization policy {_SERVICE_USAGE} of project {consumer} forbids {info.service or 'the API'}"
            return AccessError(what, where=where, fix=f"Use another project. {lift_managed(_SERVICE_USAGE, consumer)}")
        case "USER_BLOCKED_BY_ADMIN":
            what = f"An administrator has blocked {info.service or 'the API'} for this account"
            return AccessError(what, where=where, fix="Ask the administrator of your organization's accounts.")
        case "RATE_LIMIT_EXCEEDED":
            metric = info.metadata.get("quota_metric", "")
            what = f"Project {consumer} may send no more requests now"
            told = f"{what} ({metric})" if metric else what
            return RateLimitError(told, where=where, fix="Wait a minute.")
        case "RESOURCE_QUOTA_EXCEEDED":
            name = info.metadata.get("quota_limit") or info.metadata.get("quota_metric") or "of the project"
            page = f"https://console.cloud.google.com/iam-admin/quotas?project={consumer}"
            what = f"The quota {name} of project {consumer} is used up"
            return QuotaError(what, where=where, fix=f"Declare fewer VMs, or ask for more at {page}.")
        case "ACCESS_TOKEN_SCOPE_INSUFFICIENT":
            return CredentialsError(
                "The token of these credentials lacks the scope cloud-platform",
                where=where,
                fix=f"Type `{LOGIN}`; a VM needs `--scopes cloud-platform`.",
            )
        case reason if reason in _EXPIRED:
            what = "Google did not accept the credentials"
            return CredentialsError(what, where=where, fix=f"Type `{LOGIN}` in a terminal and try again.")
        case _:
            return None


def service_disabled(service: str, consumer: str, *, where: str) -> ConsumerError:
    """Return the error for an API that is not enabled in the project that the request was charged to."""
    title = _TITLES.get(service, f"API {service}")
    if consumer == _LOGIN_PROJECT:
        return ConsumerError(
            f"The {title} needs a quota project, and the login names none",
            where=where,
            fix=f"Type `{set_quota_project('PROJECT')}`, with a project in which the API is enabled.",
        )
    return ConsumerError(
        f"The {title} is not enabled in project {consumer}",
        where=where,
        fix=f"Type `{enable(service, consumer)}` and wait a minute.",
    )


def billing_disabled(consumer: str, *, where: str) -> ConsumerError:
    """Return the error for a project without a billing account that pays."""
    return ConsumerError(
        f"Billing is not enabled for project {consumer}",
        where=where,
        fix=f"Type `{link_billing(consumer)}` (`gcloud billing accounts list` shows the accounts) and wait a minute.",
    )
