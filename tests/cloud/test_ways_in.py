"""By which way a VM is entered: through Identity-Aware Proxy, but directly where its addresses were said."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from scripted_api import PROJECT, ZONE, Api, instance, operation

from transient_magics.cloud import ComputeEngine, Vm
from transient_magics.controller.vms.access import Access
from transient_magics.controller.vms.machines import PROXY_LABEL
from transient_magics.errors import ConnectionLostError
from transient_magics.journal import VmState
from transient_magics.remote import generate_key
from transient_magics.spec import IAP_RANGE, ClusterSpec

NAME = "c-worker-0"
GUEST = f"zones/{ZONE}/instances/{NAME}/getGuestAttributes"
INSIDE, OUTSIDE = "10.128.0.2", "127.0.0.1"


@pytest.fixture(autouse=True)
def _nobody_answers() -> None:
    with socket.socket() as knocking:
        if knocking.connect_ex((OUTSIDE, 22)) == 0:
            pytest.skip("this machine has an SSH server of its own")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    generate_key(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A gcloud that writes down what it is asked for, and refuses."""
    asked, folder = tmp_path / "asked", tmp_path / "bin"
    folder.mkdir()
    (folder / "gcloud").write_text(
        f'#!/bin/sh\necho "$@" >>{asked}\necho "You may not tunnel" >&2\nexit 1\n', encoding="utf-8"
    )
    (folder / "gcloud").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return asked


def access(engine: ComputeEngine, **more: Any) -> Access:
    opened = Access(ClusterSpec(name="c", groups=(), zones=(ZONE,), prices={}, project=PROJECT, **more))
    opened.engine = engine
    return opened


async def refused(way: Access, key: Path) -> str:
    vm = VmState("worker-0", "worker", 0, ZONE, "", "", "spot", 0, 0, address=INSIDE, external_address=OUTSIDE)
    with pytest.raises(ConnectionLostError) as error:
        await way.connect(vm, key, timeout=1)
    return str(error.value)


@pytest.mark.slow
async def test_the_way_is_the_one_that_the_firewall_leaves(
    api: Api, engine: ComputeEngine, key: Path, gcloud: Path
) -> None:
    host_key = generate_key(key.with_name("host")).split()
    item = {"namespace": "hostkeys", "key": host_key[0], "value": host_key[1]}
    api.on("GET", GUEST, {"queryValue": {"items": [item]}})
    api.on("GET", f"zones/{ZONE}/instances/{NAME}", instance(NAME))

    assert "gcloud printed: You may not tunnel" in await refused(access(engine, ssh_from=(IAP_RANGE,)), key)
    asked = gcloud.read_text(encoding="utf-8").splitlines()[0].split()
    assert asked[:4] == ["compute", "start-iap-tunnel", NAME, "22"]
    assert {f"--zone={ZONE}", f"--project={PROJECT}", "--listen-on-stdin", "--quiet"} == set(asked[4:])
    gcloud.unlink()

    said = await refused(access(engine, ssh_from=("203.0.113.7/32",)), key)
    assert f"at {OUTSIDE}:22" in said
    assert "SSH may come from 203.0.113.7/32 alone (--ssh-from)" in said
    assert "--ssh-from" not in await refused(access(engine, firewall=False), key)
    assert not gcloud.exists()


async def test_the_rules_let_ssh_in_from_where_it_was_said_and_without_a_firewall_there_are_none(
    api: Api, engine: ComputeEngine
) -> None:
    api.on("POST", "global/firewalls", operation())
    api.on("POST", "global/operations/operation-1/wait", operation())
    await access(engine, firewall=False, ssh_from=("203.0.113.7/32",)).protect({})
    assert api.requests == []
    await access(engine, ssh_from=("203.0.113.7/32", "198.51.100.0/24")).protect({})
    made = {body["name"]: body.get("sourceRanges") for _, body in api.asked("POST", "global/firewalls")}
    assert made == {
        "transient-magics-c-members": None, "transient-magics-c-deny": ["0.0.0.0/0"],
        "transient-magics-c-ssh": ["203.0.113.7/32", "198.51.100.0/24"],
    }  # fmt: skip


@pytest.mark.slow
async def test_a_vm_of_which_nothing_else_is_known_says_by_a_label_how_it_is_entered(
    api: Api, engine: ComputeEngine, key: Path, gcloud: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transient_magics.controller.vms.access._CONNECT_SECONDS", 1.0)
    host_key = generate_key(key.with_name("host")).split()
    item = {"namespace": "hostkeys", "key": host_key[0], "value": host_key[1]}
    api.on("GET", GUEST, {"queryValue": {"items": [item]}})
    for labels in ({}, PROXY_LABEL):
        vm = Vm(NAME, ZONE, "1", "RUNNING", INSIDE, OUTSIDE, labels, None, False, None)
        with pytest.raises(ConnectionLostError):
            await access(engine).enter(vm, key)
        assert gcloud.exists() == bool(labels)
