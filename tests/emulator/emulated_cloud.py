"""An emulator as its clients see it: Google's own client, SSH through the relay, plain HTTP."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from transient_magics import emulator

PROJECT, ZONE = "emulated-project", "us-central1-c"
KEY = asyncssh.generate_private_key("ssh-ed25519")


@dataclass
class Running:
    """One emulator process."""

    process: subprocess.Popen[str]
    url: str
    state: Path

    def about(self) -> dict[str, Any]:
        return emulator.about(self.url)


def start(state: Path, *options: str, **environment: str) -> Running:
    """Run an emulator in the foreground until it is ready."""
    command = [sys.executable, "-m", "transient_emulator", "--state", str(state), "--boot", "0.2", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}, encoding="utf-8"
    )
    assert process.stdout
    line = process.stdout.readline()
    assert line.startswith("ready http://127.0.0.1:"), line
    return Running(process, line.split()[1], state)


@dataclass
class Cloud:
    """Google's client, pointed at an emulator."""

    running: Running
    instances: compute_v1.InstancesClient = field(init=False)
    operations: compute_v1.ZoneOperationsClient = field(init=False)

    def __post_init__(self) -> None:
        self.instances = self.client(compute_v1.InstancesClient)
        self.operations = self.client(compute_v1.ZoneOperationsClient)

    def client(self, kind: type[Any]) -> Any:
        return kind(credentials=AnonymousCredentials(), client_options={"api_endpoint": self.running.url})

    def wait(self, operation: compute_v1.Operation, zone: str = ZONE) -> compute_v1.Operation:
        while operation.status != compute_v1.Operation.Status.DONE:
            operation = self.operations.wait(project=PROJECT, zone=zone, operation=operation.name)
        return operation

    def insert(self, name: str, **changes: Any) -> compute_v1.Operation:
        request_id = changes.pop("request_id", None)
        request = compute_v1.InsertInstanceRequest(
            project=PROJECT, zone=ZONE, instance_resource=vm(name, **changes), request_id=request_id
        )
        return self.instances.insert_unary(request)

    def create(self, name: str, **changes: Any) -> compute_v1.Instance:
        assert not self.wait(self.insert(name, **changes)).error.errors
        return self.get(name)

    def get(self, name: str) -> compute_v1.Instance:
        return self.instances.get(project=PROJECT, zone=ZONE, instance=name)

    def names(self) -> set[str]:
        return {each.name for each in self.instances.list(project=PROJECT, zone=ZONE)}

    def delete(self, *names: str) -> None:
        begun = [self.instances.delete_unary(project=PROJECT, zone=ZONE, instance=name) for name in names]
        for operation in begun:
            self.wait(operation)

    def preempt(self, name: str) -> None:
        self.wait(self.instances.simulate_maintenance_event_unary(project=PROJECT, zone=ZONE, instance=name))

    def host_key(self, name: str) -> asyncssh.SSHKey:
        request = compute_v1.GetGuestAttributesInstanceRequest(
            project=PROJECT, zone=ZONE, instance=name, query_path="hostkeys/"
        )
        (entry,) = self.instances.get_guest_attributes(request).query_value.items
        return asyncssh.import_public_key(f"{entry.key} {entry.value}")

    async def ssh(self, name: str, **options: Any) -> asyncssh.SSHClientConnection:
        tunnel = dial(self.running.about()["relay"], self.get(name).network_interfaces[0].network_i_p, 22)
        known: Any = {"client_keys": [KEY], "username": "transient", "known_hosts": ([self.host_key(name)], [], [])}
        return await asyncssh.connect(name, sock=tunnel, config=None, agent_path=None, **(known | options))


def vm(name: str, *, metadata: dict[str, str] | None = None, spot: bool = True, **changes: Any) -> compute_v1.Instance:
    """A VM with a GPU, as small as a legal one can be."""
    items = {"ssh-keys": f"transient:{KEY.export_public_key().decode().strip()}", "enable-guest-attributes": "TRUE"}
    scheduling = compute_v1.Scheduling(
        provisioning_model="SPOT" if spot else "STANDARD", on_host_maintenance="TERMINATE", automatic_restart=not spot
    )
    fields: dict[str, Any] = {
        "machine_type": f"zones/{ZONE}/machineTypes/n1-standard-4",
        "scheduling": scheduling,
        "guest_accelerators": [
            compute_v1.AcceleratorConfig(
                accelerator_type=f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-k80", accelerator_count=1
            )
        ],
        "disks": [compute_v1.AttachedDisk(boot=True, auto_delete=True)],
        "network_interfaces": [compute_v1.NetworkInterface(network="global/networks/default")],
        "metadata": compute_v1.Metadata(
            items=[compute_v1.Items(key=key, value=value) for key, value in (items | (metadata or {})).items()]
        ),
    }
    for key in [key for key in changes if key.startswith("scheduling__")]:
        setattr(scheduling, key.removeprefix("scheduling__"), changes.pop(key))
    return compute_v1.Instance(name=name, **(fields | changes))


_ASK = """
import http.client, json, os, sys
for line in sys.stdin:
    path, method, body, headers = json.loads(line)
    connection = http.client.HTTPConnection(os.environ["GCE_METADATA_HOST"])
    connection.request(method, "/computeMetadata/v1/" + path, body, headers)
    answer = connection.getresponse()
    print(json.dumps([answer.status, answer.read().decode(), answer.headers["ETag"]]))
"""


async def ask_metadata(
    connection: asyncssh.SSHClientConnection, path: str, method: str, body: str, headers: dict[str, str]
) -> tuple[int, str]:
    """What a program in the VM hears from its metadata server."""
    status, text, _ = await ask_with_etag(connection, path, method, body, headers)
    return status, text


async def ask_with_etag(
    connection: asyncssh.SSHClientConnection, path: str, method: str, body: str, headers: dict[str, str]
) -> tuple[int, str, str]:
    """The same with the value's etag, by which a program waits for another value."""
    (answer,) = await ask_in_turn(connection, (path, method, body, headers))
    return answer


async def ask_in_turn(
    connection: asyncssh.SSHClientConnection, *questions: tuple[str, str, str, dict[str, str]]
) -> list[tuple[int, str, str]]:
    """Several questions of one program (path, method, body, headers); status, text and etag of each answer."""
    asked = "".join(json.dumps(each) + "\n" for each in questions)
    said = await connection.run(f"transient-python -S -c {shlex.quote(_ASK)}", input=asked, check=True)
    return [tuple(json.loads(line)) for line in str(said.stdout).splitlines()]


def dial(relay: str, address: str, port: int) -> socket.socket:
    """A connection into the VM network. Raises ConnectionError with the relay's own sentence."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(relay)
    connection.sendall(f"CONNECT {address} {port}\n".encode())
    answer = b""
    while not answer.endswith(b"\n"):
        answer += connection.recv(1)
    if answer != b"OK\n":
        connection.close()
        raise ConnectionError(answer.decode().strip())
    return connection


def http_request(url: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of a plain request."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def processes(text: str) -> list[int]:
    """Ids of the processes whose command line or environment holds `text`."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            content = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in content and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def text_of(path: Path) -> str:
    """What stands in a file, nothing as long as there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def eventually(check: Any) -> None:
    """Wait until `check()` is true, far longer than it takes: a machine with two busy cores is no failure."""
    deadline = time.monotonic() + 90
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
