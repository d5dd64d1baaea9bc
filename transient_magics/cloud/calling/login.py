"""The credentials that Google's libraries find on this machine, and the quota project that they
name.

`gcloud auth application-default login` writes gcloud's current project into the login as its quota
project, and Google's libraries then charge every request to it, whatever project the request is
about. Compute Engine and Cloud Storage are resource-based APIs: without a quota project they count
a request against the project of its resource ("About the quota project",
docs.cloud.google.com/docs/quotas/quota-project, read 2026-11-27). So their clients get credentials
without one. Services that are client-based get the project as an explicit header (`asking`).

`SignedIn` describes the credentials: whose they are, where they lie and when their token expires.
It has no token and no key.
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
    """Return the credentials that are found here, without a quota project, and the quota project
    that they named.

    Blocks. Raises what Google's library raises.
    """
    import google.auth

    credentials, _ = google.auth.default(scopes=list(scopes))
    return without_quota_project(credentials), quota_project_of(credentials)


def without_quota_project(credentials: Credentials) -> Credentials:
    """Return the credentials without a quota project; the same where they cannot have one."""
    if not quota_project_of(credentials):
        return credentials
    named: Any = (
        credentials  # `quota_project_id` is of CredentialsWithQuotaProject, as this method is
    )
    return named.with_quota_project(None)


def quota_project_of(credentials: Credentials) -> str:
    """Return the quota project that the credentials name, or nothing."""
    return str(getattr(credentials, "quota_project_id", None) or "")


USER_INFO = "https://openidconnect.googleapis.com/v1/userinfo"
_SCOPES = [
    "https://www.googleapis.com/auth/cloud-platform",
    "https://www.googleapis.com/auth/userinfo.email",
]


def principal() -> str:
    """The e-mail address of the service account or user whose credentials are found here. Blocks;
    one request at most.

    What stands for an identity elsewhere (workload identity federation) has none: then what its
    configuration says. Raises what Google's libraries raise.
    """
    from google.auth.transport.requests import Request

    # Google refuses to say whose a login is where the login may not charge its quota project.
    credentials, _ = found_credentials(_SCOPES)
    account = getattr(credentials, "service_account_email", None)
    if account == "default":  # a VM's own, whose address its metadata server knows
        credentials.refresh(Request())
        account = getattr(credentials, "service_account_email", None)
    return account or getattr(credentials, "account", "") or _told(credentials)


def _told(credentials: Credentials) -> str:
    """What Google itself says whose credentials these are; a login with gcloud allows to ask that."""
    from google.api_core import exceptions
    from google.auth.transport.requests import AuthorizedSession

    with AuthorizedSession(credentials) as session:
        answer = session.get(USER_INFO, timeout=30.0)
    if answer.status_code >= 500 or answer.status_code == 429:
        raise exceptions.from_http_response(answer)
    if answer.ok and (found := answer.json().get("email")):
        return str(found)
    known = [getattr(credentials, name, None) for name in ("audience", "client_id")]
    return next((str(each) for each in known if each), type(credentials).__name__)


_PLATFORM_SCOPE = ["https://www.googleapis.com/auth/cloud-platform"]
_FILE = "application_default_credentials.json"
_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_KINDS = {
    "google.oauth2.credentials": "a user's login",
    "google.oauth2.service_account": "a service account's key",
    "google.auth.compute_engine": "this VM's own service account",
    "google.auth.impersonated_credentials": "a service account that is impersonated",
}


@dataclass(frozen=True)
class SignedIn:
    """`kind` in words; `whose`: an e-mail address mostly; `place`: the file they are from, or
    nothing.

    `expires`: until when the present token is good, in seconds since 1970 (0: not told). It is
    renewed by itself. `exposed`: whether other accounts of this machine may read the file.
    """

    kind: str
    whose: str
    place: str
    expires: float
    exposed: bool
    quota_project: str = ""
    """The project that the login asks to be charged, whatever project a request is about; or
    nothing.
    """


def signed_in() -> SignedIn:
    """The credentials that Google's libraries find here, with a fresh token. Blocks; raises what
    they raise.
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
    if module.startswith("google.auth.compute_engine"):
        place = None
    else:
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
    """The file in which Google's libraries look for credentials, if there is one."""
    if named := os.environ.get(_VARIABLE):
        return Path(named)
    settings = os.environ.get("CLOUDSDK_CONFIG")
    if settings:
        folder = Path(settings)
    else:
        folder = Path.home() / ".config" / "gcloud"
    return path if (path := folder / _FILE).exists() else None
