"""Typed errors for the failures of Google's client, credentials, network and operations.

This module alone answers three questions about a failure: is it worth another attempt
(`is_transient`), what does it mean to the user (`explain`, `explain_operation`), and which command
mends it (the error's `fix`). Compute Engine reports the same failure in several forms (an HTTP
status, a reason, a code of an operation); this module covers all of them.

A refused request carries a google.rpc.ErrorInfo: a reason, its domain, and metadata. In the domain
`googleapis.com` the reasons are those of google.api.ErrorReason, and the metadata names the service
and the consumer: the project that the request was charged to (googleapis/googleapis,
google/api/error_reason.proto, read 2026-11-27). The consumer may differ from the project of the
request, so every remedy here names the consumer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ...errors import (
    AccessError,
    AlreadyExistsError,
    ChangedError,
    CloudError,
    ConsumerError,
    CredentialsError,
    GoneError,
    NotReadyError,
    QuotaError,
    RateLimitError,
    StockoutError,
    UnreachableError,
)

if TYPE_CHECKING:
    from google.cloud import compute_v1


_TOO_FEW = "VM_MIN_COUNT_NOT_REACHED"
_STOCKOUT = re.compile(rf"POOL_EXHAUSTED|STOCKOUT|^insufficientCapacity|^PREEMPTED$|^{_TOO_FEW}")
_NO_CAPACITY = re.compile(
    "does not have enough resources available|failed to start due to preemption"
)
"""Parts of Compute Engine's messages for codes that the table lacks (reported by other projects,
read 2026-11-27).
"""
_QUOTA = ("QUOTA_EXCEEDED", "quotaExceeded")
_RATE = (
    "rateLimitExceeded",
    "userRateLimitExceeded",
    "RATE_LIMIT_EXCEEDED",
    "RESOURCE_OPERATION_RATE_EXCEEDED",
)
_DISABLED = ("accessNotConfigured", "SERVICE_DISABLED")
_NOT_READY = ("resourceNotReady", "RESOURCE_NOT_READY")
_GONE = ("notFound", "RESOURCE_NOT_FOUND")
_EXISTS = ("alreadyExists", "RESOURCE_ALREADY_EXISTS")
_ACCOUNT_DENIED = ("SERVICE_ACCOUNT_ACCESS_DENIED", "serviceAccountAccessDenied")
_ACCOUNT = re.compile(r"service account '?\"?([^\s'\"]+@[^\s'\"]+[a-z])")
_NAME = r"[a-z]+\.[A-Za-z]+\.[A-Za-z]+"
_PERMISSIONS = (
    re.compile(rf"Required '?({_NAME})'? permission"),
    re.compile(rf"Permission '({_NAME})' denied"),
    re.compile(rf"does not have ({_NAME}) access"),
)
"""Sentences in which Compute Engine, IAM and Cloud Storage name the missing permission."""
_POLICY = re.compile(r"constraints?/([a-z]+\.[A-Za-z.]*[A-Za-z])")
_SERVICE = re.compile(r"/apis/api/([a-z]+\.googleapis\.com)/")
_IN_PROJECT = re.compile(r"project #?([a-z0-9][-a-z0-9:.]*[a-z0-9])")
_REQUEST = re.compile(r"^[A-Z]+ https?://\S+: ")
"""The prefix that google-api-core adds to the message of a refusal."""

LOGIN = "gcloud auth application-default login"

_LOGIN = f"Type `{LOGIN}` in a terminal and try again."

ACT_AS = "iam.serviceAccounts.actAs"
_ROLES = {
    "compute.firewalls.": "roles/compute.securityAdmin",
    "compute.networks.updatePolicy": "roles/compute.securityAdmin",
    "compute.images.create": "roles/compute.storageAdmin",
    "compute.images.delete": "roles/compute.storageAdmin",
    "compute.images.setLabels": "roles/compute.storageAdmin",
    "compute.advice.": "roles/compute.viewer",
    "compute.": "roles/compute.instanceAdmin.v1",
    "storage.": "roles/storage.admin",
    ACT_AS: "roles/iam.serviceAccountUser",
    "serviceusage.services.use": "roles/serviceusage.serviceUsageConsumer",
    "orgpolicy.": "roles/orgpolicy.policyViewer",
}
NAMES = {
    "roles/compute.instanceAdmin.v1": "Compute Instance Admin (v1)",
    "roles/compute.securityAdmin": "Compute Security Admin",
    "roles/compute.storageAdmin": "Compute Storage Admin",
    "roles/compute.viewer": "Compute Viewer",
    "roles/storage.admin": "Storage Admin",
    "roles/iam.serviceAccountUser": "Service Account User",
    "roles/serviceusage.serviceUsageConsumer": "Service Usage Consumer",
    "roles/orgpolicy.policyViewer": "Organization Policy Viewer",
}


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may soon succeed.

    That is so after an overload, a rate limit or a broken connection, and while the resource is
    being changed.
    """
    import requests.exceptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError, TransportError

    if isinstance(error, GoogleAPICallError):
        status = int(error.code or 0)
        reason = _reason(error)
        if status == 429 or status >= 500 or reason in _NOT_READY:
            return True
        return status == 403 and (reason in _RATE or error_info(error).reason == RATE_LIMIT)
    broken = (
        requests.exceptions.ConnectionError,
        requests.exceptions.Timeout,
        requests.exceptions.ChunkedEncodingError,
    )
    if isinstance(error, requests.exceptions.SSLError):
        return False
    if isinstance(error, GoogleAuthError):
        return isinstance(error, TransportError) or bool(error.retryable)
    return isinstance(error, broken)


def explain(error: Exception, *, where: str, project: str, endpoint: str = "") -> CloudError | None:
    """Return the typed error for `error`; None for a defect of this program.

    Parameters
    ----------
    error
        An exception of Google's client, of its credentials or of `requests`.
    where
        The resource or the service that the request was about.
    project
        The project that the request was about.
    endpoint
        The emulator's URL; empty for Compute Engine.
    """
    import requests.exceptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError

    if isinstance(error, GoogleAPICallError):
        message = without_request(str(error.message or error))
        info = error_info(error)
        sentence = _first_line(message)
        if found := explain_infrastructure(info, sentence, where=where, project=project):
            return found
        status = int(error.code or 0)
        permission = info.metadata.get("permission", "")
        return _by_code(
            _reason(error), status, message, where=where, project=project, permission=permission
        )
    if isinstance(error, DefaultCredentialsError):
        return CredentialsError(
            "No Google Cloud credentials were found on this machine", where=where, fix=_LOGIN
        )
    if isinstance(error, (requests.exceptions.RequestException, TransportError)):
        what = f"{endpoint or 'https://compute.googleapis.com'} does not answer"
        if endpoint:
            remedy = "Check the network and that the emulator runs."
        else:
            remedy = "Check the network and any proxy settings."
        return UnreachableError(what, where=where, fix=remedy)
    if isinstance(error, GoogleAuthError):
        sentence = _first_line(error.args[0] if error.args else error)
        return CredentialsError(
            f"Google did not accept the credentials: {sentence}", where=where, fix=_LOGIN
        )
    return None


def explain_operation(
    operation: compute_v1.Operation, *, where: str, project: str
) -> CloudError | None:
    """Return the typed error for a finished operation; None if it succeeded.

    Google's client reports a failure only if the operation carries an HTTP status, and reports
    success otherwise.
    """
    # The error of a bulk request only counts VMs: those of its VMs explain more.
    for error in sorted(operation.error.errors, key=lambda error: error.code == _TOO_FEW):
        quota = next(
            (detail.quota_info.metric_name for detail in error.error_details if detail.quota_info),
            "",
        )
        hints = [
            detail.error_info.metadatas.get("zonesAvailable", "") for detail in error.error_details
        ]
        sentences = [detail.localized_message.message for detail in error.error_details]
        message = error.message
        if error.code not in _QUOTA:
            message = next(filter(None, sentences), "") or message
        return _by_code(
            error.code,
            operation.http_error_status_code,
            message,
            where=where,
            project=project,
            quota=quota.rsplit("/", 1)[-1],
            zones=next(filter(None, hints), ""),
        )
    if operation.http_error_status_code >= 400:
        message = operation.http_error_message or f"HTTP status {operation.http_error_status_code}"
        return _by_code("", operation.http_error_status_code, message, where=where, project=project)
    return None


def without_request(message: str) -> str:
    """Return a message of google-api-core without the request that it begins with.

    The host in the request looks like a permission: `compute.googleapis.com` has three words with
    dots.
    """
    return _REQUEST.sub("", message.strip())


def consumer_in(message: str, project: str) -> str:
    """Return the project that a refusal without an ErrorInfo names, else `project`."""
    found = _IN_PROJECT.search(message)
    if found:
        return found[1]
    return project


def permission_in(message: str) -> str:
    """Return the permission that a refusal names as missing, or nothing."""
    for pattern in _PERMISSIONS:
        if found := pattern.search(message):
            return found[1]
    return ""


def _by_code(
    code: str,
    status: int,
    message: str,
    *,
    where: str,
    project: str,
    quota: str = "",
    zones: str = "",
    permission: str = "",
) -> CloudError:
    """Return the error for a code; `code` is the most specific word that Google used."""
    sentence = _first_line(message)
    preempted = code == "UNSUPPORTED_OPERATION" and "preempt" in message.lower()
    if _STOCKOUT.search(code) or preempted or _NO_CAPACITY.search(message):
        named = tuple(zone.strip() for zone in zones.split(",") if zone.strip())
        if named:
            elsewhere = f"These zones have some: {', '.join(named)}."
        else:
            elsewhere = "Try another zone or wait."
        what = f"The zone has no capacity for this VM now: {sentence}"
        return StockoutError(what, where=where, fix=elsewhere, zones=named)
    if code in _QUOTA:
        name = _quoted(message) or quota.upper()
        if name:
            what = f"The quota {name} of project {project} is used up"
            if limit := re.search(r"Limit: (.+?)\.?$", sentence):
                what = f"{what}: limit {limit[1]}"
        else:
            what = f"A quota is used up: {sentence}"
        page = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
        remedy = f"Declare fewer VMs, or ask for more at {page}."
        return QuotaError(what, where=where, fix=remedy, everywhere=name.endswith("_ALL_REGIONS"))
    if code in _RATE or status == 429:
        return RateLimitError(
            f"Compute Engine rejects requests, because there were too many: {sentence}",
            where=where,
            fix="Wait a minute.",
        )
    if code in _NOT_READY:
        return NotReadyError(
            f"The resource is being changed: {sentence}", where=where, fix="Try again in a moment."
        )
    if policy := policy_in(message):
        return forbidden_by_policy(policy, sentence, where, project)
    if code in _DISABLED or "it is disabled" in message:
        service = (_SERVICE.search(message) or ["", "compute.googleapis.com"])[1]
        return service_disabled(service, consumer_in(message, project), where=where)
    if "requires billing to be enabled" in message:
        return billing_disabled(consumer_in(message, project), where=where)
    if status == 401:
        return CredentialsError("Google did not accept the credentials", where=where, fix=_LOGIN)
    if code in _ACCOUNT_DENIED or "iam.serviceAccountUser" in message or ACT_AS in message:
        return _account_denied(sentence, where, project)
    if "Cross project referencing is not allowed" in message:
        return across_projects("another project", "", where)
    if status == 403 or code == "IAM_PERMISSION_DENIED":
        role = role_of(permission or permission_in(message)) or "roles/compute.instanceAdmin.v1"
        remedy = (
            f"Ask the project's owner for the role {NAMES[role]} (`{grant(role, project)}`), "
            "or use other credentials"
        )
        fix = f"{remedy}: `{LOGIN}`."
        return AccessError(
            f"The credentials in use do not allow this: {sentence}", where=where, fix=fix
        )
    if status == 404 or code in _GONE:
        return GoneError(f"The resource does not exist: {sentence}", where=where)
    if status == 409 or code in _EXISTS:
        return AlreadyExistsError(
            f"The name is in use: {sentence}", where=where, fix="Use another name, or delete it."
        )
    if status == 412:
        return ChangedError(
            f"The resource was changed after it was read: {sentence}", where=where, fix="Try again."
        )
    if status >= 500:
        return UnreachableError(
            f"Compute Engine failed (HTTP {status}): {sentence}",
            where=where,
            fix="Try again later.",
        )
    return CloudError(
        f"Compute Engine refused the request ({code or status}): {sentence}", where=where
    )


def _account_denied(sentence: str, where: str, project: str) -> CloudError:
    """Return the error for a VM whose service account the credentials may not use."""
    found = _ACCOUNT.search(sentence)
    if found:
        account = found[1]
    else:
        account = "ACCOUNT"
    return AccessError(
        f"The credentials in use may not give a VM this service account: {sentence}",
        where=where,
        fix="Ask the project's owner for the role Service Account User on it "
        f"(`{let_use(account, project)}`). Or "
        "create one with `gcloud iam service-accounts create transient-magics --project "
        f"{project}` and the roles "
        "of docs/accounts.md, and declare with --service-account transient-magics.",
    )


def across_projects(owner: str, network: str, where: str = "") -> CloudError:
    """Return the error for firewall rules on a network of another project (Shared VPC).

    Compute Engine creates rules only in the project of their network.
    """
    if network:
        name = f"network {network} belongs to {owner}"
    else:
        name = f"the network belongs to {owner}"
    return CloudError(
        f"A cluster creates its firewall rules in its own project, but {name} (Shared VPC)",
        where=where,
        fix="Declare with --no-firewall. Ask the Compute Security Admin of that project for rules "
        "for the subnet of these VMs: allow TCP between them and port 22 from 35.235.240.0/20 or "
        "from --ssh-from, deny all else.",
    )


def policy_in(message: str) -> str:
    """Return the organization policy that a message names (`compute.requireOsLogin`), or ''."""
    found = _POLICY.search(message)
    if found:
        return found[1]
    return ""


def forbidden_by_policy(policy: str, sentence: str, where: str, project: str) -> CloudError:
    """Return the error for an organization policy that a request violates."""
    what = f"The organization policy {policy} of project {project} forbids the request: {sentence}"
    fix = (
        "Use another project, or ask the organization's administrator for an exception from "
        f"{policy}."
    )
    if policy.endswith("equireOsLogin"):
        fix = f"The VMs need SSH keys in their metadata, which OS Login ignores. {fix}"
    if policy.endswith("vmExternalIpAccess"):
        fix = f"Declare the cluster with --no-external-ip. {fix}"
    if policy.endswith("requireShieldedVm"):
        fix = f"The policy requires Secure Boot, which rejects the driver of GPUs. {fix}"
    if policy.endswith("resourceLocations"):
        fix = f"Name an allowed --zone. {fix}"
    return AccessError(what, where=where, fix=fix)


def _reason(error: Exception) -> str:
    """Return Google's one-word reason for a refusal.

    Newer services put it into `details`, Compute Engine into `errors`.
    """
    entries: list[object] = getattr(error, "errors", None) or []
    for entry in entries:
        if isinstance(entry, dict) and (reason := cast(dict[str, object], entry).get("reason")):
            return str(reason)
    return str(getattr(error, "reason", None) or "")


def _quoted(message: str) -> str:
    found = re.search(r"'([A-Z][A-Z0-9_-]*)'", message)
    if found:
        return found[1]
    return ""


def _first_line(message: object) -> str:
    line = " ".join(str(message).split("\n", 1)[0].split()).rstrip(".")
    return without_request(line)


INFRASTRUCTURE = "googleapis.com"
"""The domain of the reasons that all APIs share."""

RATE_LIMIT = "RATE_LIMIT_EXCEEDED"

USER_PROJECT_DENIED = "USER_PROJECT_DENIED"

_KIND = "type.googleapis.com/google.rpc.ErrorInfo"

_CONSUMER_ROLE = "roles/serviceusage.serviceUsageConsumer"

_SUSPENSION = "https://cloud.google.com/resource-manager/docs/project-suspension-guidelines"

_LOGIN_PROJECT = "764086051850"
"""The project of the OAuth client of `gcloud auth application-default login`
(google/auth/_cloud_sdk.py). It is the consumer of a request whose credentials name no quota
project.
"""

_TITLES = {
    "compute.googleapis.com": "Compute Engine API",
    "storage.googleapis.com": "Cloud Storage API",
}

_SERVICE_USAGE = "gcp.restrictServiceUsage"

_EXPIRED = ("ACCESS_TOKEN_EXPIRED", "ACCESS_TOKEN_TYPE_UNSUPPORTED", "CREDENTIALS_MISSING")


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """The google.rpc.ErrorInfo of a refusal; empty if it carries none."""

    reason: str = ""
    domain: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def service(self) -> str:
        """The API, such as `compute.googleapis.com`; '' if unknown."""
        return self.metadata.get("service", "")

    @property
    def consumer(self) -> str:
        """The ID or number of the project that the request was charged to; '' if unknown."""
        return self.metadata.get("consumer", "").removeprefix("projects/")


def error_info(error: Any) -> ErrorInfo:
    """Return the ErrorInfo of an error of Google's client.

    Parameters
    ----------
    error : google.api_core.exceptions.GoogleAPICallError
        Cloud Storage raises some without details in downloads and uploads; then the answer is
        parsed instead.
    """
    details: object = list(getattr(error, "details", None) or ()) or _details(error)
    for detail in cast(list[object], details if isinstance(details, list) else []):
        if isinstance(detail, dict):
            found = cast(dict[str, Any], detail)
            if found.get("@type") == _KIND and isinstance(found.get("metadata", {}), dict):
                metadata = {
                    str(key): str(value) for key, value in found.get("metadata", {}).items()
                }
                return ErrorInfo(
                    str(found.get("reason", "")), str(found.get("domain", "")), metadata
                )
    return ErrorInfo()


def _details(error: Any) -> object:
    try:
        return error.response.json()["error"]["details"]
    except (AttributeError, ValueError, KeyError, TypeError):
        return []


def explain_infrastructure(
    info: ErrorInfo, sentence: str, *, where: str, project: str
) -> CloudError | None:
    """Return the typed error for a reason that all APIs share; None for any other.

    Parameters
    ----------
    info
        The ErrorInfo of the refusal.
    sentence
        Google's message.
    where
        The resource or the service that the request was about.
    project
        The project of the request. It replaces a consumer that Google does not name.
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
                f"Requests of these credentials may not be charged to project {consumer}: the "
                "project does not exist, or the right to use it is missing",
                where=where,
                fix="Ask its owner for the role Service Usage Consumer "
                f"(`{grant(_CONSUMER_ROLE, consumer)}`), or name "
                f"another quota project: `{set_quota_project(project)}`.",
            )
        case "CONSUMER_INVALID" | "RESOURCE_PROJECT_INVALID":
            return ConsumerError(
                f"Project {consumer} does not exist, or it was deleted",
                where=where,
                fix="Type `gcloud projects list` to see your projects. If it is the quota project "
                f"of your login, type `{set_quota_project(project)}`.",
            )
        case "CONSUMER_SUSPENDED" | "GCP_SUSPENDED":
            what = f"Google has suspended project {consumer}"
            return ConsumerError(what, where=where, fix=f"See {_SUSPENSION}.")
        case "SECURITY_POLICY_VIOLATED":
            number = ""
            if uid := info.metadata.get("uid"):
                number = f" (uid {uid})"
            return AccessError(
                f"VPC Service Controls forbid this request: {sentence}",
                where=where,
                fix="Ask the organization's administrator, who finds the request in the audit "
                f"log{number}.",
            )
        case "RESOURCE_USAGE_RESTRICTION_VIOLATED":
            what = (
                f"The organization policy {_SERVICE_USAGE} of project {consumer} forbids "
                f"{info.service or 'the API'}"
            )
            return AccessError(
                what,
                where=where,
                fix=f"Use another project. {lift_managed(_SERVICE_USAGE, consumer)}",
            )
        case "USER_BLOCKED_BY_ADMIN":
            what = f"An administrator has blocked {info.service or 'the API'} for this account"
            return AccessError(
                what, where=where, fix="Ask the administrator of your organization's accounts."
            )
        case "RATE_LIMIT_EXCEEDED":
            metric = info.metadata.get("quota_metric", "")
            what = f"Project {consumer} has sent too many requests"
            if metric:
                what = f"{what} ({metric})"
            return RateLimitError(what, where=where, fix="Wait a minute.")
        case "RESOURCE_QUOTA_EXCEEDED":
            name = (
                info.metadata.get("quota_limit")
                or info.metadata.get("quota_metric")
                or "of the project"
            )
            page = f"https://console.cloud.google.com/iam-admin/quotas?project={consumer}"
            what = f"The quota {name} of project {consumer} is used up"
            return QuotaError(
                what, where=where, fix=f"Declare fewer VMs, or ask for more at {page}."
            )
        case "ACCESS_TOKEN_SCOPE_INSUFFICIENT":
            return CredentialsError(
                "The token of these credentials lacks the scope cloud-platform",
                where=where,
                fix=f"Type `{LOGIN}`; a VM needs `--scopes cloud-platform`.",
            )
        case reason if reason in _EXPIRED:
            what = "Google did not accept the credentials"
            return CredentialsError(
                what, where=where, fix=f"Type `{LOGIN}` in a terminal and try again."
            )
        case _:
            return None


def service_disabled(service: str, consumer: str, *, where: str) -> ConsumerError:
    """Return the error for an API that is disabled in the project that pays for the request."""
    title = _TITLES.get(service, f"API {service}")
    if consumer == _LOGIN_PROJECT:
        return ConsumerError(
            f"The {title} needs a quota project, and the login names none",
            where=where,
            fix=f"Type `{set_quota_project('PROJECT')}`, with a project in which the API is "
            "enabled.",
        )
    return ConsumerError(
        f"The {title} is not enabled in project {consumer}",
        where=where,
        fix=f"Type `{enable(service, consumer)}` and wait a minute.",
    )


def billing_disabled(consumer: str, *, where: str) -> ConsumerError:
    """Return the error for a project without an active billing account."""
    return ConsumerError(
        f"Billing is not enabled for project {consumer}",
        where=where,
        fix=f"Type `{link_billing(consumer)}` (`gcloud billing accounts list` shows the accounts) "
        "and wait a minute.",
    )


# Remedies: the roles that include permissions, and commands of gcloud.


def role_of(permission: str) -> str:
    """Return the predefined role that includes a permission; '' for a permission we never need."""
    return next((role for start, role in _ROLES.items() if permission.startswith(start)), "")


def grant(role: str, project: str) -> str:
    """Return the command that grants a role in a project."""
    return (
        f"gcloud projects add-iam-policy-binding {project} --member user:YOU@EXAMPLE.COM "
        f"--role {role}"
    )


def let_use(account: str, project: str) -> str:
    """Return the command that permits giving VMs this service account."""
    return (
        f"gcloud iam service-accounts add-iam-policy-binding {account} --project {project} "
        "--member user:YOU@EXAMPLE.COM --role roles/iam.serviceAccountUser"
    )


def lift(constraint: str, project: str, value: str = "") -> str:
    """Return a sentence with the command that exempts a project from an organization policy."""
    verb = f"disable-enforce {constraint}"
    if value:
        verb = f"allow {constraint} {value}"
    return (
        "An Organization Policy Administrator can exempt the project: `gcloud resource-manager "
        f"org-policies {verb} "
        f"--project {project}`."
    )


def lift_managed(constraint: str, project: str) -> str:
    """Return a sentence that explains how to exempt a project from a managed constraint.

    The older commands of gcloud do not support managed constraints.
    """
    return (
        f"An Organization Policy Administrator can exempt the project from {constraint}; `gcloud "
        f"org-policies describe {constraint} --effective --project {project}` shows it."
    )


def enable(service: str, project: str) -> str:
    """Return the command that enables an API in a project."""
    return f"gcloud services enable {service} --project {project}"


def link_billing(project: str) -> str:
    """Return the command that links a project to a billing account."""
    return f"gcloud billing projects link {project} --billing-account ACCOUNT"


def set_quota_project(project: str) -> str:
    """Return the command that changes the quota project of the application-default login."""
    return f"gcloud auth application-default set-quota-project {project}"
