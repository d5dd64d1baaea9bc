"""Which credentials are found on this machine, whose they are, where they lie and until when their token is good.

Nothing that opens anything is told: no token, no key.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

from .login import quota_project_of
from .principal import principal

_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_FILE, _VARIABLE = "application_default_credentials.json", "GOOGLE_APPLICATION_CREDENTIALS"
_KINDS = {
    "google.oauth2.credentials": "a user's login",
    "google.oauth2.service_account": "a service account's key",
    "google.auth.compute_engine": "this VM's own service account",
    "google.auth.impersonated_credentials": "a service account that is impersonated",
}


@dataclass(frozen=True)
class SignedIn:
    """`kind` in words; `whose`: an e-mail address mostly; `place`: the file they are from, or nothing.

    `expires`: until when the present token is good, in seconds since 1970 (0: not told). It is renewed by itself.
    `exposed`: whether other accounts of this machine may read the file.
    """

    kind: str
    whose: str
    place: str
    expires: float
    exposed: bool
    quota_project: str = ""
    """The project that the login asks to be charged, whatever project a request is about; or nothing."""


def signed_in() -> SignedIn:
    """The credentials that Google's libraries find here, with a fresh token. Blocks; raises what they raise."""
    import google.auth
    from google.auth.transport.requests import Request

    credentials, _ = google.auth.default(scopes=_SCOPES)
    credentials.refresh(Request())
    module = type(credentials).__module__
    kind = next((words for name, words in _KINDS.items() if module.startswith(name)), "an identity of another provider")
    place = None if module.startswith("google.auth.compute_engine") else _place()
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
    folder = Path(settings) if settings else Path.home() / ".config" / "gcloud"
    return path if (path := folder / _FILE).exists() else None
