"""A VM that runs: machine, SSH server and metadata server together, seen from the record that describes it.

The fleet decides when a VM starts and ends; a `Host` makes it so.
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


@dataclass(frozen=True)
class Surroundings:
    """What all VMs of an emulator share."""

    folder: Path
    isolation: Isolation
    owner_only: PeerCheck
    save: Callable[[Record], None]
    attributes: Callable[[Record], dict[str, str]]
    beside: Callable[[Record], Beside] | None = None
    """What a VM's metadata server offers besides."""
    zygotes: Path | None = None


class Host:
    """The running part of one instance."""

    def __init__(self, record: Record, around: Surroundings, on_death: Callable[[], None]) -> None:
        self.record, self._around = record, around
        self._folder = around.folder / record.folder
        plan = Plan(
            identity=record.identity, name=record.name, number=record.number, address=record.address,
            directory=self._folder, home=Path(record.home), user=_user(record),
            has_gpu=bool(record.resource.get("guestAccelerators")), zygotes=around.zygotes,
        )  # fmt: skip
        self._machine = Machine(plan, around.isolation, on_death)
        allowed = around.owner_only if self._bare else lambda request: True
        beside = around.beside(record) if around.beside else None
        self.metadata = MetadataServer(self._tree, self._put, allowed, beside)
        self._shell: SecureShell | None = None
        self._script: asyncio.Task[None] | None = None

    @property
    def _bare(self) -> bool:
        return self._around.isolation is Isolation.NONE

    @property
    def ssh_place(self) -> tuple[str, int]:
        """Where its SSH server really listens."""
        address, port = self._machine.sockets["ssh"].getsockname()[:2]
        return address, port

    async def power_on(self) -> None:
        """Up to where the VM exists; nothing in it answers yet."""
        await self._machine.power_on(self.record.ports)
        self._remember_first()

    async def serve(self) -> None:
        """Up to where SSH answers and the start-up script has begun."""
        await self._serve()
        self._script = asyncio.create_task(self._run_script("startup-script"))

    def fail_to_boot(self) -> None:
        """As where the start-up script fails: nothing answers, and what it tells is all that can be learnt."""
        self._put("transient-magics", "boot", "failed: installing what the weather wants to be missing")
        with (self._folder / "serial.log").open("ab") as log:
            log.write(f"{wire.now()} startup-script: the weather is `boot fails`\n".encode())

    async def adopt(self) -> bool:
        """Take over what an earlier emulator left running. False if it is dead."""
        if not self.record.first or not alive(*self.record.first):
            return False
        self._machine.adopt(self.record.first[0], self.record.ports)
        await self._serve()
        return True

    async def power_off(self) -> None:
        """At once, whatever runs."""
        if self._script:
            self._script.cancel()
        if self._shell:
            self._shell.stop()
        await self.metadata.stop()
        await self._machine.power_off()
        self.record.first = None

    @property
    def machine(self) -> Machine:
        """Its processes and its network."""
        return self._machine

    async def shut_down_script(self) -> None:
        """Run the shutdown-script, if there is one."""
        await self._run_script("shutdown-script")

    async def _serve(self) -> None:
        machine = self._machine
        if self._bare:
            self.record.ports = {name: each.getsockname()[1] for name, each in machine.sockets.items()}
        shell = SecureShell(machine, lambda: self.record.attributes().get("ssh-keys", ""), network=not self._bare)
        self._shell = shell
        self.record.guest_attributes.setdefault("hostkeys", {})["ssh-ed25519"] = shell.host_key
        await shell.start()
        await self.metadata.start(machine.sockets["metadata"])
        self._remember_first()

    def _remember_first(self) -> None:
        first = self._machine.first_process
        self.record.first = list(first) if first else None
        self._around.save(self.record)

    async def _run_script(self, name: str) -> None:
        script = self.record.attributes().get(name)
        if not script:
            return
        path = self._folder / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o700)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(script if script.startswith("#!") else f"#!/bin/sh\n{script}")
        with (self._folder / "serial.log").open("ab") as log:
            log.write(f"{wire.now()} {name} begins\n".encode())
            log.flush()
            try:
                command = await self._machine.run(str(path), stdout=log.fileno(), stderr=subprocess.STDOUT)
                log.write(f"{wire.now()} {name} ended with code {await command.process.wait()}\n".encode())
            except OSError as error:
                log.write(f"{wire.now()} {name} cannot be run: {error}\n".encode())

    def _put(self, namespace: str, key: str, value: str | None) -> None:
        attributes = self.record.guest_attributes
        if value is None:
            attributes.get(namespace, {}).pop(key, None)
        else:
            attributes.setdefault(namespace, {})[key] = value
        self._around.save(self.record)
        self.metadata.changed()

    def _tree(self) -> Tree:
        record = self.record
        number = wire.fixed_id("projects", record.project)
        scheduling = record.resource["scheduling"]
        accounts: Tree = {
            each["email"]: {"aliases": "default", "email": each["email"], "scopes": "\n".join(each["scopes"])}
            for each in record.resource["serviceAccounts"]
        }
        if accounts:
            # What looks like credentials here opens nothing anywhere.
            token = '{"access_token":"emulated-token-without-any-right","expires_in":3600,"token_type":"Bearer"}'
            first = next(iter(accounts.values()))
            accounts["default"] = {**first, "token": token}
        return {
            "instance": {
                "id": record.identity, "name": record.name,
                "hostname": names.full_name(record),
                "zone": f"projects/{number}/zones/{record.zone}",
                "machine-type": f"projects/{number}/machineTypes/{wire.last(record.resource['machineType'])}",
                "preempted": "TRUE" if record.preempted else "FALSE",
                "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE" if record.preempted else "NONE",
                "tags": record.resource["tags"].get("items", []), "cpu-platform": record.resource["cpuPlatform"],
                "attributes": {**self._around.attributes(record), **record.attributes()},
                "guest-attributes": record.guest_attributes,
                "network-interfaces": {"0": {"ip": record.address, "network": f"projects/{number}/networks/default"}},
                "scheduling": {"preemptible": str(record.transient).upper(),
                               "on-host-maintenance": scheduling["onHostMaintenance"],
                               "automatic-restart": str(scheduling["automaticRestart"]).upper()},
                "service-accounts": accounts,
            },
            "project": {"project-id": record.project, "numeric-project-id": number, "attributes": {}},
            "universe": {"universe-domain": "googleapis.com"},
            "oslogin": {}, "region": catalog.region(record.zone),
        }  # fmt: skip


def _user(record: Record) -> str:
    return record.attributes().get("ssh-keys", "").partition(":")[0].strip() or "transient"
