"""The credentials that Google's libraries find on this machine, and the quota project that they name.

`gcloud auth application-default login` writes gcloud's current project into the login as its quota project, and
Google's libraries then charge every request to it, whatever project the request is about. Compute Engine and Cloud
Storage are resource-based APIs: without a quota project they count a request against the project of its resource
("About the quota project", docs.cloud.google.com/docs/quotas/quota-project, read 2026-11-27). So their clients get
credentials without one. Services that are client-based get the project as an explicit header (`asking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.auth.credentials import Credentials


def found_credentials(scopes: Sequence[str]) -> tuple[Credentials, str]:
    """Return the credentials that are found here, without a quota project, and the quota project that they named.

    Blocks. Raises what Google's library raises.
    """
    import google.auth

    credentials, _ = google.auth.default(scopes=list(scopes))
    return without_quota_project(credentials), quota_project_of(credentials)


def without_quota_project(credentials: Credentials) -> Credentials:
    """Return the credentials without a quota project; the same where they cannot have one."""
    if not quota_project_of(credentials):
        return credentials
    named: Any = credentials  # `quota_project_id` is of CredentialsWithQuotaProject, as this method is
    return named.with_quota_project(None)


def quota_project_of(credentials: Credentials) -> str:
    """Return the quota project that the credentials name, or nothing."""
    return str(getattr(credentials, "quota_project_id", None) or "")
