"""What the tests of this room share: Google's client imported once, a scripted API, a guard against the real one."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from google_hosts import Hosts, mounted
from scripted_api import PROJECT, ZONE, Api, serving

from transient_magics.cloud import ComputeEngine, VmRequest, preload


@pytest.fixture(scope="session", autouse=True)
def _google_is_imported() -> None:
    preload().join()


@pytest.fixture(autouse=True)
def _no_look_up_of_google(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever these tests do, the real API must never be looked up."""
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def guarded(host: Any, *rest: Any, **named: Any) -> Any:
        if host not in ("127.0.0.1", b"127.0.0.1", None):
            looked_up.append(str(host))
            raise OSError(f"a look-up of {host}")
        return real(host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", guarded)
    yield
    assert looked_up == []


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving() as served:
        yield served


@pytest.fixture
def hosts(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Google's host names, where the scripted API answers."""
    with mounted(api.url, tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
async def engine(hosts: Hosts) -> AsyncIterator[ComputeEngine]:
    """Built as for Google, without an endpoint."""
    async with ComputeEngine(PROJECT, patience=5) as opened:
        yield opened


@pytest.fixture
def wanted() -> VmRequest:
    return VmRequest(
        name="c1-worker-1",
        zone=ZONE,
        machine_type="n1-standard-4",
        accelerator="nvidia-tesla-k80",
        accelerator_count=1,
        labels={"cluster": "c1"},
        ssh_public_key="ssh-ed25519 AAAA transient",
        request_id="11111111-2222-5333-8444-555555555555",
    )


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
