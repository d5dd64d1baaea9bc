"""The credentials that Google's libraries find on this machine, and their quota project.

`gcloud auth application-default login` writes gcloud's current project into the login as its quota
project. Google's libraries then charge every request to it, whatever project the request is about.
Compute Engine and Cloud Storage are resource-based APIs: without a quota project they count a
request against the project of its resource ("About the quota project",
docs.cloud.google.com/docs/quotas/quota-project, read 2026-11-27). So their clients get credentials
without one. Client-based services get the project as an explicit header (`asking`).

`SignedIn` describes the credentials: their owner, their file, and when their token expires. It
contains neither token nor key.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.auth.credentials import Credentials


def found_credentials(scopes: Sequence[str]) -> tuple[Credentials, str]:
    """Return the credentials of this machine without their quota project, and that project.

    Blocks. Raises what Google's library raises.
    """
    import google.auth

    credentials, _ = google.auth.default(scopes=list(scopes))
    return without_quota_project(credentials), quota_project_of(credentials)


def without_quota_project(credentials: Credentials) -> Credentials:
    """Return the credentials without a quota project; unchanged if they cannot have one."""
    if not quota_project_of(credentials):
        return credentials
    # `quota_project_id` belongs to CredentialsWithQuotaProject, as this method does.
    named: Any = credentials
    return named.with_quota_project(None)


def quota_project_of(credentials: Credentials) -> str:
    """Return the quota project that the credentials name; '' for none."""
    return str(getattr(credentials, "quota_project_id", None) or "")


USER_INFO = "https://openidconnect.googleapis.com/v1/userinfo"
_SCOPES = [
    "https://www.googleapis.com/auth/cloud-platform",
    "https://www.googleapis.com/auth/userinfo.email",
]


def principal() -> str:
    """Return the e-mail address of the service account or user of the credentials.

    Blocks; sends one request at most. Identities of other providers (workload identity federation)
    have no address; for them it returns a part of their configuration. Raises what Google's
    libraries raise.
    """
    from google.auth.transport.requests import Request

    # Google does not identify a login that may not charge its quota project.
    credentials, _ = found_credentials(_SCOPES)
    account = getattr(credentials, "service_account_email", None)
    if account == "default":  # the VM's own account, whose address the metadata server has
        credentials.refresh(Request())
        account = getattr(credentials, "service_account_email", None)
    return account or getattr(credentials, "account", "") or _identity(credentials)


def _identity(credentials: Credentials) -> str:
    """Ask Google for the user of these credentials; a login with gcloud permits that."""
    from google.api_core import exceptions
    from google.auth.transport.requests import AuthorizedSession

    with AuthorizedSession(credentials) as session:
        answer = session.get(USER_INFO, timeout=30.0)
    if answer.status_code >= 500 or answer.status_code == 429:
        raise exceptions.from_http_response(answer)
    if answer.ok and (found := answer.json().get("email")):
        return str(found)
    names = [getattr(credentials, name, None) for name in ("audience", "client_id")]
    return next((str(name) for name in names if name), type(credentials).__name__)


_PLATFORM_SCOPE = ["https://www.googleapis.com/auth/cloud-platform"]
_FILE = "application_default_credentials.json"
_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_KINDS = {
    "google.oauth2.credentials": "a user's login",
    "google.oauth2.service_account": "a service account's key",
    "google.auth.compute_engine": "this VM's own service account",
    "google.auth.impersonated_credentials": "an impersonated service account",
}


@dataclass(frozen=True)
class SignedIn:
    """The credentials of this machine.

    Attributes
    ----------
    kind
        Their kind in words.
    whose
        Their owner, usually an e-mail address.
    place
        Their file; '' for none.
    expires
        When the present token expires, in seconds since 1970; 0 if unknown. It is renewed
        automatically.
    exposed
        Whether other accounts of this machine can read the file.
    """

    kind: str
    whose: str
    place: str
    expires: float
    exposed: bool
    quota_project: str = ""
    """The project that the login charges for all requests; '' for none."""


def signed_in() -> SignedIn:
    """Return the credentials of this machine with a fresh token.

    Blocks. Raises what Google's libraries raise.
    """
    import google.auth
    from google.auth.transport.requests import Request

    credentials, _ = google.auth.default(scopes=_PLATFORM_SCOPE)
    credentials.refresh(Request())
    module = type(credentials).__module__
    kind = next(
        (words for name, words in _KINDS.items() if module.startswith(name)),
        "an identity of another provider",
    )
    place = None
    if not module.startswith("google.auth.compute_engine"):
        place = _place()
    return SignedIn(
        kind=kind,
        whose=principal(),
        place=str(place or ""),
        expires=credentials.expiry.replace(tzinfo=UTC).timestamp() if credentials.expiry else 0.0,
        exposed=bool(place and place.stat().st_mode & 0o077),
        quota_project=quota_project_of(credentials),
    )


def _place() -> Path | None:
    """Return the file in which Google's libraries look for credentials; None if it is missing."""
    if named := os.environ.get(_VARIABLE):
        return Path(named)
    folder = Path.home() / ".config" / "gcloud"
    if settings := os.environ.get("CLOUDSDK_CONFIG"):
        folder = Path(settings)
    path = folder / _FILE
    if path.exists():
        return path
    return None
