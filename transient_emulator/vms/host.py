"""A running VM: machine, SSH server and metadata server together, for one record.

The fleet decides when a VM starts and ends. A `Host` carries it out.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from transient_magics import catalog

from ..instances import Record
from ..network.isolation import Isolation, alive
from ..rest import wire
from . import names
from .machine import Machine, Plan
from .metadata_server import Beside, MetadataServer, Tree
from .secure_shell import SecureShell

PeerCheck = Callable[[web.BaseRequest], bool]
# These credentials open nothing anywhere.
_TOKEN = (
    '{"access_token":"emulated-token-without-any-right","expires_in":3600,"token_type":"Bearer"}'
)


@dataclass(frozen=True)
class Surroundings:
    """The common parts of all VMs of an emulator.

    Attributes
    ----------
    folder
        The folder of the VMs' folders.
    isolation
        How VMs are separated.
    owner_only
        The check for requests that other users of this machine could send.
    save
        Stores a record.
    attributes
        Returns the metadata attributes that the emulator adds to a VM's.
    beside
        Returns the services that a VM's metadata server has besides metadata.
    zygotes
        The folder of the sockets of zygotes.
    """

    folder: Path
    isolation: Isolation
    owner_only: PeerCheck
    save: Callable[[Record], None]
    attributes: Callable[[Record], dict[str, str]]
    beside: Callable[[Record], Beside] | None = None
    zygotes: Path | None = None


class Host:
    """The running part of one instance.

    `on_death` is called when its first process ends unexpectedly.
    """

    def __init__(
        self, record: Record, surroundings: Surroundings, on_death: Callable[[], None]
    ) -> None:
        self.record = record
        self._surroundings = surroundings
        self._folder = surroundings.folder / record.folder
        plan = Plan(
            identity=record.identity,
            name=record.name,
            number=record.number,
            address=record.address,
            directory=self._folder,
            home=Path(record.home),
            user=_user(record),
            has_gpu=bool(record.resource.get("guestAccelerators")),
            zygotes=surroundings.zygotes,
        )
        self._machine = Machine(plan, surroundings.isolation, on_death)
        self._has_network = surroundings.isolation is not Isolation.NONE
        # Only programs in the VM reach a server in its network. One on the loopback can be reached
        # by other users.
        allowed = (lambda request: True) if self._has_network else surroundings.owner_only
        beside = surroundings.beside(record) if surroundings.beside else None
        self.metadata = MetadataServer(self._tree, self._put, allowed, beside)
        self._shell: SecureShell | None = None
        self._script: asyncio.Task[None] | None = None

    @property
    def machine(self) -> Machine:
        """Its processes and its network."""
        return self._machine

    @property
    def ssh_place(self) -> tuple[str, int]:
        """The address and port on which its SSH server listens."""
        address, port = self._machine.sockets["ssh"].getsockname()[:2]
        return address, port

    async def power_on(self) -> None:
        """Create the VM. Nothing in it answers yet. Raises OSError, TimeoutError."""
        await self._machine.power_on(self.record.ports)
        self._save_first_process()

    async def serve(self) -> None:
        """Start the SSH and metadata servers, and the start-up script. Raises OSError."""
        await self._serve()
        self._script = asyncio.create_task(self._run_script("startup-script"))

    def fail_to_boot(self) -> None:
        """Report a failed start-up script.

        SSH does not answer, so this is all that clients can learn.
        """
        self._put(
            "transient-magics", "boot", "failed: installing what the weather wants to be missing"
        )
        with (self._folder / "serial.log").open("ab") as log:
            log.write(f"{wire.now()} startup-script: the weather is `boot fails`\n".encode())

    async def adopt(self) -> bool:
        """Take over a VM that an earlier emulator left running. Returns False if it is dead."""
        if not self.record.first or not alive(*self.record.first):
            return False
        self._machine.adopt(self.record.first[0], self.record.ports)
        await self._serve()
        return True

    async def power_off(self) -> None:
        """End everything immediately."""
        if self._script:
            self._script.cancel()
        if self._shell:
            self._shell.stop()
        await self.metadata.stop()
        await self._machine.power_off()
        self.record.first = None

    async def shut_down_script(self) -> None:
        """Run the shutdown-script. Does nothing if there is none."""
        await self._run_script("shutdown-script")

    async def _serve(self) -> None:
        machine = self._machine
        if not self._has_network:
            # Stored, so that the servers have the same ports after the emulator's death.
            self.record.ports = {
                name: listening.getsockname()[1] for name, listening in machine.sockets.items()
            }
        self._shell = SecureShell(machine, self._ssh_keys, network=self._has_network)
        hostkeys = self.record.guest_attributes.setdefault("hostkeys", {})
        hostkeys["ssh-ed25519"] = self._shell.host_key
        await self._shell.start()
        await self.metadata.start(machine.sockets["metadata"])
        self._save_first_process()

    def _ssh_keys(self) -> str:
        return self.record.attributes().get("ssh-keys", "")

    def _save_first_process(self) -> None:
        first = self._machine.first_process
        self.record.first = list(first) if first else None
        self._surroundings.save(self.record)

    async def _run_script(self, name: str) -> None:
        script = self.record.attributes().get(name)
        if not script:
            return
        if not script.startswith("#!"):
            script = f"#!/bin/sh\n{script}"
        path = self._folder / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o700), "w", encoding="utf-8") as file:
            file.write(script)
        with (self._folder / "serial.log").open("ab") as log:
            log.write(f"{wire.now()} {name} begins\n".encode())
            # The script writes to the same file.
            log.flush()
            try:
                command = await self._machine.run(
                    str(path), stdout=log.fileno(), stderr=subprocess.STDOUT
                )
                code = await command.process.wait()
                log.write(f"{wire.now()} {name} ended with code {code}\n".encode())
            except OSError as error:
                log.write(f"{wire.now()} {name} cannot be run: {error}\n".encode())

    def _put(self, namespace: str, key: str, value: str | None) -> None:
        """Set a guest attribute; None deletes it."""
        attributes = self.record.guest_attributes
        if value is None:
            attributes.get(namespace, {}).pop(key, None)
        else:
            attributes.setdefault(namespace, {})[key] = value
        self._surroundings.save(self.record)
        self.metadata.changed()

    def _tree(self) -> Tree:
        """Return the metadata."""
        record = self.record
        number = wire.fixed_id("projects", record.project)
        project = f"projects/{number}"
        scheduling = record.resource["scheduling"]
        machine_type = wire.last(record.resource["machineType"])
        maintenance = "TERMINATE_ON_HOST_MAINTENANCE" if record.preempted else "NONE"
        instance: Tree = {
            "id": record.identity,
            "name": record.name,
            "hostname": names.full_name(record),
            "zone": f"{project}/zones/{record.zone}",
            "machine-type": f"{project}/machineTypes/{machine_type}",
            "preempted": str(record.preempted).upper(),
            "maintenance-event": maintenance,
            "tags": record.resource["tags"].get("items", []),
            "cpu-platform": record.resource["cpuPlatform"],
            "attributes": {**self._surroundings.attributes(record), **record.attributes()},
            "guest-attributes": record.guest_attributes,
            "network-interfaces": {
                "0": {"ip": record.address, "network": f"{project}/networks/default"}
            },
            "scheduling": {
                "preemptible": str(record.transient).upper(),
                "on-host-maintenance": scheduling["onHostMaintenance"],
                "automatic-restart": str(scheduling["automaticRestart"]).upper(),
            },
            "service-accounts": self._service_accounts(),
        }
        return {
            "instance": instance,
            "project": {
                "project-id": record.project,
                "numeric-project-id": number,
                "attributes": {},
            },
            "universe": {"universe-domain": "googleapis.com"},
            "oslogin": {},
            "region": catalog.region(record.zone),
        }

    def _service_accounts(self) -> Tree:
        accounts: Tree = {}
        for account in self.record.resource["serviceAccounts"]:
            email = account["email"]
            accounts[email] = {
                "aliases": "default",
                "email": email,
                "scopes": "\n".join(account["scopes"]),
            }
        if accounts:
            first = next(iter(accounts.values()))
            accounts["default"] = {**first, "token": _TOKEN}
        return accounts


def _user(record: Record) -> str:
    """Return the user's name in the VM: that of the first SSH key."""
    return record.attributes().get("ssh-keys", "").partition(":")[0].strip() or "transient"
