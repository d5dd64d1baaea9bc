"""Firewall rules between emulated VMs: who reaches TensorFlow's ports, and who does not."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from typing import Any

import asyncssh
import pytest
from emulated_cloud import PROJECT, Cloud, Running
from google.cloud import compute_v1

from transient_emulator.instances import Record
from transient_emulator.network.firewall import translate
from transient_emulator.network.packet_filter import Rule
from transient_magics.cloud import rules

TAG = "transient-magics-c1"
_LISTEN = """
import socket, time
servers = [socket.create_server(("", port)) for port in (2222, 8000)]
print("listening", flush=True)
time.sleep(120)
"""
_KNOCK = """
import socket, sys
with socket.socket() as knocking:
    knocking.settimeout(1.5)
    print(knocking.connect_ex((sys.argv[1], int(sys.argv[2]))))
"""


@pytest.fixture
def firewalls(cloud: Cloud, running: Running) -> Iterator[Any]:
    if running.about()["isolation"] == "none":
        pytest.skip("the emulated VMs have no network of their own here")
    client = cloud.client(compute_v1.FirewallsClient)
    yield client
    for rule in client.list(project=PROJECT):
        if rule.name.startswith(TAG):
            client.delete_unary(project=PROJECT, firewall=rule.name)


@pytest.mark.slow
async def test_only_members_reach_the_ports_of_a_cluster(cloud: Cloud, firewalls: Any) -> None:
    def make() -> None:
        for name, tags in (("inside", [TAG]), ("member", [TAG]), ("stranger", [])):
            cloud.create(name, tags=compute_v1.Tags(items=tags))

    await asyncio.to_thread(make)
    address = cloud.get("inside").network_interfaces[0].network_i_p
    connections = {name: await cloud.ssh(name) for name in ("inside", "member", "stranger")}
    try:
        listening = await connections["inside"].create_process(f"transient-python -S -c {shlex.quote(_LISTEN)}")
        assert await listening.stdout.readline() == "listening\n"
        assert [await reaches(connections[name], address, 2222) for name in ("member", "stranger")] == [True, True]

        def close() -> None:
            for rule in rules(TAG, "", ("0.0.0.0/0",), "test"):
                firewalls.insert_unary(project=PROJECT, firewall_resource=compute_v1.Firewall(rule))

        await asyncio.to_thread(close)
        assert [await reaches(connections[name], address, 2222) for name in ("member", "stranger")] == [True, False]
        assert not await reaches(connections["stranger"], address, 8000)
        assert await reaches(connections["stranger"], address, 22), "SSH comes in from everywhere"
        assert await reaches(connections["inside"], cloud.get("stranger").network_interfaces[0].network_i_p, 22)
        firewalls.delete_unary(project=PROJECT, firewall=f"{TAG}-deny")
        assert await reaches(connections["stranger"], address, 8000)
    finally:
        for connection in connections.values():
            connection.close()


async def reaches(connection: asyncssh.SSHClientConnection, address: str, port: int) -> bool:
    """Whether a connection can be opened from there."""
    said = await connection.run(f"transient-python -S -c {shlex.quote(_KNOCK)} {address} {port}", check=True)
    return str(said.stdout).strip() == "0"


def vm(number: int, *tags: str, network: str = "default") -> Record:
    resource = {
        "id": str(number), "tags": {"items": list(tags)}, "networkInterfaces": [{"network": network}],
        "serviceAccounts": [],
    }  # fmt: skip
    return Record("p", "z", f"vm{number}", resource, number, f"10.128.0.{number}", "", "")


def rule(priority: int, **fields: Any) -> dict[str, Any]:
    return {"network": "default", "direction": "INGRESS", "disabled": False, "priority": priority, **fields}


def test_rules_count_in_the_order_of_their_numbers_denying_ones_first() -> None:
    tcp, every, udp = {"IPProtocol": "tcp", "ports": ["22", "80-90"]}, {"IPProtocol": "all"}, {"IPProtocol": "udp"}
    vms = [vm(2, "a"), vm(3, "a", "b"), vm(4, network="own")]
    all_of_it = frozenset(["0.0.0.0/0"])
    found = translate(vms, "p", [
        rule(900, allowed=[every], sourceRanges=["0.0.0.0/0"], targetTags=["b"]),
        rule(100, allowed=[tcp, udp], sourceTags=["b"], targetTags=["a"]),
        rule(900, denied=[every], sourceRanges=["0.0.0.0/0", "::/0"]),
        rule(1, allowed=[every], sourceRanges=["0.0.0.0/0"], disabled=True),
        rule(1, denied=[every], destinationRanges=["0.0.0.0/0"], direction="EGRESS"),
    ])  # fmt: skip
    assert found == [
        Rule(True, frozenset(["10.128.0.2", "10.128.0.3"]), frozenset(["10.128.0.3"]), ((22, 22), (80, 90))),
        Rule(False, frozenset(["10.128.0.2", "10.128.0.3"]), all_of_it),
        Rule(True, frozenset(["10.128.0.3"]), all_of_it),
    ]
