"""Who it is that the credentials stand for, by an address that another login of the same person gives again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .login import found_credentials

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

USER_INFO = "https://openidconnect.googleapis.com/v1/userinfo"
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/userinfo.email"]


def principal() -> str:
    """The e-mail address of the service account or user whose credentials are found here. Blocks; one request at most.

    What stands for an identity elsewhere (workload identity federation) has none: then what its configuration says.
    Raises what Google's libraries raise.
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
