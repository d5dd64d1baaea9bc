"""Whose credentials are used, through Google's own library."""

from __future__ import annotations

from typing import Any

import pytest
from google.oauth2 import credentials, service_account
from scripted_api import Api, refusal

from transient_magics.cloud import ComputeEngine
from transient_magics.cloud.calling import login as module
from transient_magics.errors import CloudError

USER = {"client_id": "gcloud", "client_secret": "s", "refresh_token": "r"}


class OfAVm:
    """As google.auth's own for a VM, whose import would ask for a metadata server."""

    service_account_email = "default"

    def refresh(self, request: Any) -> None:
        self.service_account_email = "vm@p"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, api: Api) -> Any:
    """Says which credentials google.auth finds; Google's answer about a user comes from the scripted API."""
    monkeypatch.setattr(module, "USER_INFO", f"{api.url}/userinfo")

    def is_found(credentials: Any) -> None:
        monkeypatch.setattr("google.auth.default", lambda **_: (credentials, None))

    return is_found


async def told(api: Api) -> str:
    async with ComputeEngine("a-project", api.url, patience=1) as engine:
        return await engine._calls.call("here", module.principal)


async def test_an_address_in_the_credentials_is_the_principal(api: Api, found: Any) -> None:
    found(service_account.Credentials(None, "robot@p.iam.gserviceaccount.com", "https://token"))
    assert await told(api) == "robot@p.iam.gserviceaccount.com"
    found(credentials.Credentials("token", account="alice@example.org", **USER))
    assert await told(api) == "alice@example.org"
    found(OfAVm())
    assert await told(api) == "vm@p"
    assert not api.requests


@pytest.mark.slow
async def test_whose_a_users_login_is_google_tells(api: Api, found: Any) -> None:
    found(credentials.Credentials("token", **USER))
    api.on("GET", "userinfo", {"sub": "1", "email": "alice@example.org"})
    assert await told(api) == "alice@example.org"
    api.on("GET", "userinfo", refusal(403, "forbidden", "no such scope"))
    assert await told(api) == "gcloud"
    api.on("GET", "userinfo", refusal(503, "backendError", "later"))
    with pytest.raises(CloudError):
        await told(api)


async def test_an_emulator_asks_for_no_credentials(api: Api) -> None:
    async with ComputeEngine("a-project", api.url, patience=1) as engine:
        assert await engine.principal() == ""
