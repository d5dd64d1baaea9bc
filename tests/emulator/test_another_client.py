"""A Compute Engine client that shares no code with Google's, Apache Libcloud: all that it does to a VM."""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from emulated_cloud import PROJECT, ZONE, Cloud, Running
from libcloud.common.google import GoogleAuthType, ResourceNotFoundError
from libcloud.compute.drivers.gce import GCEConnection, GCENodeDriver


@pytest.fixture
def driver(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GCENodeDriver:
    """Libcloud's driver, sent to the emulator, with a token as if it had logged in before."""
    place = urllib.parse.urlsplit(running.url)

    class ToTheEmulator(GCEConnection):
        def __init__(self, *words: Any, **settings: Any) -> None:
            super().__init__(*words, **settings, host=place.hostname, port=place.port)

    monkeypatch.setattr(GCENodeDriver, "connectionCls", ToTheEmulator)
    token = tmp_path / "token"
    token.write_text(json.dumps({
        "access_token": "emulated", "token_type": "Bearer", "expires_in": 3600, "expire_time": "2999-01-01T00:00:00Z",
    }), encoding="utf-8")  # fmt: skip
    return GCENodeDriver(
        "someone", "", datacenter=ZONE, project=PROJECT, auth_type=GoogleAuthType.GCE, credential_file=str(token),
        secure=False,
    )  # fmt: skip


@pytest.mark.slow
def test_it_creates_lists_describes_and_deletes(driver: GCENodeDriver, cloud: Cloud) -> None:
    node = driver.create_node(
        "theirs", "n1-standard-4", "debian-12", ex_preemptible=True, ex_accelerator_type="nvidia-tesla-t4",
        ex_accelerator_count=1, ex_on_host_maintenance="TERMINATE", ex_labels={"made-by": "libcloud"},
    )  # fmt: skip
    assert node.name == "theirs"
    assert "theirs" in {each.name for each in driver.list_nodes()}
    described = driver.ex_get_node("theirs", ZONE)
    assert described.extra["labels"] == {"made-by": "libcloud"}
    assert described.extra["scheduling"]["preemptible"] is True
    assert described.state == "running"
    assert cloud.get("theirs").guest_accelerators[0].accelerator_count == 1
    assert described.private_ips == [cloud.get("theirs").network_interfaces[0].network_i_p]
    assert driver.destroy_node(described)
    assert "theirs" not in cloud.names()
    with pytest.raises(ResourceNotFoundError):
        driver.ex_get_node("theirs", ZONE)


def test_it_has_a_vm_taken_away(driver: GCENodeDriver, cloud: Cloud) -> None:
    cloud.create("taken")
    driver.connection.async_request(f"/zones/{ZONE}/instances/taken/simulateMaintenanceEvent", method="POST")
    assert driver.ex_get_node("taken", ZONE).extra["status"] in ("STOPPING", "TERMINATED")
