"""Credentials that expire while a program runs, through Google's own libraries: what is said, and a login mends it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from google.auth import credentials, exceptions, identity_pool, impersonated_credentials
from google.oauth2 import credentials as user
from google.oauth2 import service_account
from scripted_api import ZONE, Api, instance, refusal

from transient_magics.cloud import ComputeEngine, VmRequest
from transient_magics.cloud.calling.login import quota_project_of, without_quota_project
from transient_magics.errors import CredentialsError, UnreachableError

WORKER = f"zones/{ZONE}/instances/c1-worker-1"
REVOKED = exceptions.RefreshError("invalid_grant: Token has been expired or revoked.", {"error": "invalid_grant"})


class Machine:
    """The one on which somebody logs in: what a refresh of the credentials found there ends with, from now on."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.found = 0
        self.refreshed = 0


class Found(credentials.Credentials):
    """Credentials as they were when they were found; a login later does not mend them."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        machine.found += 1
        self._machine, self._failure = machine, machine.failure
        self.token, self.expiry = None, None

    def refresh(self, request: Any) -> None:
        self._machine.refreshed += 1
        if self._failure:
            raise self._failure
        self.token, self.expiry = "a-token", datetime.utcnow() + timedelta(hours=1)  # naive, as google.auth compares


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """What google.auth finds, also where an endpoint is given."""
    machine = Machine()
    monkeypatch.setattr("google.auth.credentials.AnonymousCredentials", lambda: Found(machine))
    return machine


async def test_credentials_that_cannot_be_refreshed_are_told_with_what_to_type(
    machine: Machine, api: Api, wanted: VmRequest
) -> None:
    machine.failure = REVOKED
    async with ComputeEngine("a-project", api.url, patience=20) as engine:
        with pytest.raises(CredentialsError) as raised:
            await engine.insert(wanted)
    assert machine.refreshed == 1, "a second attempt gains nothing"
    assert str(raised.value).startswith("Google did not accept the credentials: invalid_grant: Token has been expired")
    assert "`gcloud auth application-default login`" in raised.value.fix
    assert api.requests == []


async def test_a_login_is_picked_up_without_a_restart(machine: Machine, api: Api) -> None:
    api.on("GET", WORKER, instance("c1-worker-1"))
    machine.failure = REVOKED
    async with ComputeEngine("a-project", api.url, patience=5) as engine:
        with pytest.raises(CredentialsError):
            await engine.get(ZONE, "c1-worker-1")
        machine.failure = None
        with pytest.raises(CredentialsError):
            await engine.get(ZONE, "c1-worker-1")
        await engine.renew()
        vm = await engine.get(ZONE, "c1-worker-1")
        assert vm
        assert vm.name == "c1-worker-1"
    assert machine.found == 2


async def test_a_401_of_the_api_is_the_same_error(api: Api, engine: ComputeEngine) -> None:
    refused = [refusal(401, "authError", "Invalid Credentials")] * 3  # google-auth refreshes the token twice
    api.on("GET", WORKER, *refused, instance("c1-worker-1"))
    with pytest.raises(CredentialsError, match="gcloud auth application-default login"):
        await engine.get(ZONE, "c1-worker-1")
    assert await engine.get(ZONE, "c1-worker-1")


@pytest.mark.slow
async def test_a_token_server_that_fails_for_a_moment_is_asked_again(machine: Machine, api: Api) -> None:
    api.on("GET", WORKER, instance("c1-worker-1"))
    machine.failure = exceptions.RefreshError("internal_failure", retryable=True)
    async with ComputeEngine("a-project", api.url, patience=4) as engine:
        with pytest.raises(CredentialsError):
            await engine.get(ZONE, "c1-worker-1")
    assert machine.refreshed > 1
    machine.failure = exceptions.TransportError("no network")
    async with ComputeEngine("a-project", api.url, patience=0.3) as engine:
        with pytest.raises(UnreachableError):
            await engine.get(ZONE, "c1-worker-1")


KINDS = {
    "a user's login": lambda: user.Credentials(None, refresh_token="r", client_id="c", quota_project_id="another"),
    "a service account's key": lambda: service_account.Credentials(
        None, "a@p", "https://t", quota_project_id="another"
    ),
    "an impersonated account": lambda: impersonated_credentials.Credentials(
        user.Credentials(None, refresh_token="r"), "a@p", [], quota_project_id="another"
    ),
    "an identity of another provider": lambda: identity_pool.Credentials(
        "//iam", "type", "https://sts.googleapis.com/v1/token", {"file": "/token"}, quota_project_id="another"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_credentials_of_every_kind_are_had_without_their_quota_project(kind: str) -> None:
    found = KINDS[kind]()
    assert quota_project_of(found) == "another"
    plain = without_quota_project(found)
    assert quota_project_of(plain) == ""
    assert type(plain) is type(found)
    nobody = credentials.AnonymousCredentials()
    assert without_quota_project(nobody) is nobody
