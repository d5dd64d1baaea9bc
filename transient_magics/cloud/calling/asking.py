"""Questions to Google's services beside Compute Engine, which we have no client for: one request, one JSON answer.

Most of these services are client-based: a request needs a project that it is charged to, and the right to use that
project (Service Usage Consumer). The project itself is named first. Where the credentials may not use it, the quota
project of the login is named, then none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .calls import Calls
from .error_info import USER_PROJECT_DENIED

RESOURCE_MANAGER, IAM = "https://cloudresourcemanager.googleapis.com", "https://iam.googleapis.com"
ORGANIZATION_POLICY = "https://orgpolicy.googleapis.com"
STORAGE = "https://storage.googleapis.com"
USER_PROJECT = "x-goog-user-project"
"""The header that names the project which a request is charged to."""
_RESOURCE_BASED = (STORAGE,)
_SECONDS = 20.0
_CONSUMER_REASONS = (USER_PROJECT_DENIED, "SERVICE_DISABLED", "CONSUMER_INVALID", "BILLING_DISABLED")


async def ask(
    calls: Calls, project: str, host: str, path: str, body: Mapping[str, Any] | None = None,
    query: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:  # fmt: skip
    """POST `body` (without one: GET) to a service, at the emulator if there is one. Raises CloudError."""
    session, url = calls.clients.asking, f"{calls.endpoint or host}{path}"
    method = "GET" if body is None else "POST"

    def once(headers: Mapping[str, str]) -> Any:
        return session.request(method, url, json=body, params=query, headers=headers, timeout=_SECONDS)

    def request() -> dict[str, Any]:
        if host in _RESOURCE_BASED:
            return content_of(once({}))
        return content_of(charged(calls, project, once))

    return await calls.call(host.removeprefix("https://"), request, patience=10.0)


def charged(calls: Calls, project: str, send: Callable[[Mapping[str, str]], Any]) -> Any:
    """Send a request that is charged to the project, or to another if the credentials may not charge it.

    Returns the answer of the first project that is not refused. If all are, returns the first refusal: its remedy is
    about the project that was asked for.
    """
    if calls.endpoint:
        return send({})
    first = send({USER_PROJECT: project})
    if first.status_code != 403 or USER_PROJECT_DENIED not in first.text:
        return first
    quota_project = calls.clients.quota_project
    others = [{USER_PROJECT: quota_project}] if quota_project not in ("", project) else []
    for headers in (*others, {}):
        answer = send(headers)
        if not _refuses_consumer(answer):
            return answer
    return first


def content_of(answer: Any) -> dict[str, Any]:
    """Return the JSON of an answer. Raises an error of google.api_core for a refusal."""
    from google.api_core import exceptions

    if answer.status_code != 200:
        raise exceptions.from_http_response(answer)
    return answer.json()


def _refuses_consumer(answer: Any) -> bool:
    """Whether the answer is about the project that was to be charged, and not about the question."""
    return answer.status_code == 403 and any(reason in answer.text for reason in _CONSUMER_REASONS)
