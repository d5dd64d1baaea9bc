"""Questions to Google's services beside Compute Engine, which we have no client for: one request, one JSON answer.

Who pays for the asking is the project itself, as for Google's price list; that takes a right of its own (Service Usage
Consumer), so whoever lacks it asks at the cost of whatever project his credentials are of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .calls import Calls

RESOURCE_MANAGER, IAM = "https://cloudresourcemanager.googleapis.com", "https://iam.googleapis.com"
STORAGE = "https://storage.googleapis.com"
_SECONDS = 20.0


async def ask(
    calls: Calls, project: str, host: str, path: str, body: Mapping[str, Any] | None = None,
    query: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:  # fmt: skip
    """POST `body` (without one: GET) to a service, at the emulator if there is one. Raises CloudError."""
    session, url = calls.clients.asking, f"{calls.endpoint or host}{path}"

    def once(headers: Mapping[str, str]) -> Any:
        method = "GET" if body is None else "POST"
        return session.request(method, url, json=body, params=query, headers=headers, timeout=_SECONDS)

    def request() -> dict[str, Any]:
        from google.api_core import exceptions

        answer = once({} if calls.endpoint else {"x-goog-user-project": project})
        if answer.status_code == 403 and "USER_PROJECT_DENIED" in answer.text:
            answer = once({})
        if answer.status_code != 200:
            raise exceptions.from_http_response(answer)
        return answer.json()

    return await calls.call(host.removeprefix("https://"), request, patience=10.0)
