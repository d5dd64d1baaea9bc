"""All VMs and what happens to them: insert, boot, preemption, time limits, stop, start, delete, death.

Requests change a record, write it, return an operation at once; the rest goes on in one task per VM. A second request
replaces the task of the first. After the emulator's own death `recover` continues every VM from where its record is.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from ..instances import Record, new_record
from ..network import isolation
from ..network.addresses import address, free_number
from ..network.isolation import Isolation
from ..rest import wire
from ..rest.operations import Operations
from ..rest.store import Store, remove_folder
from ..weather.capacity import Refusal
from ..weather.revoker import Revoker
from ..weather.weather import Weather
from . import names
from .host import Host, PeerCheck, Surroundings
from .links import Links
from .metadata_server import Beside
from .shares import Shares
from .zygote import SHARED, Zygotes

_LOG = logging.getLogger(__name__)


class Fleet:
    """The emulated project's VMs, in their `weather`. `on_change` is told whenever one appears, changes or is deleted,
    `on_gone` the address of each that does not run any more."""

    def __init__(
        self, state: Path, homes: Path, isolated: Isolation, owner_only: PeerCheck, operations: Operations,
        weather: Weather, *, on_change: Callable[[], None], on_gone: Callable[[str], None],
        beside: Callable[[Record], Beside] | None = None,
    ) -> None:  # fmt: skip
        self._folder, self._homes = state / "vms", homes
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._store = Store(state / "instances")
        self._operations = operations
        self.weather, self._on_change, self._on_gone = weather, on_change, on_gone
        self._isolation = isolated
        self._tag = hashlib.sha256(str(state).encode()).hexdigest()[:6]
        self._zygotes: Zygotes | None = None
        zygotes: Path | None = None
        if isolated is Isolation.FULL:
            if shared := os.environ.get(SHARED):
                zygotes = Path(shared)
            else:
                self._zygotes = Zygotes(homes / f"zygotes-{self._tag}")
                zygotes = self._zygotes.folder
        self._around = Surroundings(
            self._folder, isolated, owner_only, self._save, weather.attributes, beside, zygotes=zygotes
        )
        self._revoker = Revoker(weather, self)
        self._links = Links(weather, lambda: self._hosts)
        self.shares = Shares(weather, lambda: self._hosts, self._share_changed)
        weather.on_change(self._weather_changed)
        self._records: dict[tuple[str, str, str], Record] = {}
        self._hosts: dict[str, Host] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._raining: list[asyncio.Task[None]] = []
        self._latest = 1
        self.prepare: Callable[[Record], Awaitable[None]] = _nothing
        """What is to be done with a VM's disks before it boots."""
        self.forbidden: Callable[[Record, list[Record]], Refusal | None] = lambda record, present: None
        """How the request for a VM will fail because of what its project lacks, beside VMs that are there."""

    # What there is.

    def __len__(self) -> int:
        return len(self._records)

    def records(self, project: str | None = None) -> list[Record]:
        """All records (of a project)."""
        return [each for each in self._records.values() if project in (None, each.project)]

    def get(self, project: str, zone: str, name: str) -> Record:
        """One record, by name or id. ApiError 404 where there is none."""
        for each in self._records.values():
            if (each.project, each.zone) == (project, zone) and name in (each.name, each.identity):
                return each
        raise wire.not_found(f"projects/{project}/zones/{zone}/instances/{name}")

    def reach(self, place: str, port: int) -> tuple[str, int] | None:
        """Where the relay finds this port of a running VM, or None for a place that is no VM's."""
        record = next((each for each in self._records.values() if each.address == place), None)
        if record is None or record.identity not in self._hosts:
            return None
        if self._isolation is Isolation.NONE and port == 22:
            return self._hosts[record.identity].ssh_place
        return place, port

    def serial_output(self, record: Record, start: int) -> tuple[str, int]:
        """What the start-up scripts wrote, from byte `start` on, and where it ends."""
        path = self._folder / record.folder / "serial.log"
        content = path.read_bytes() if path.exists() else b""
        return content[start:].decode(errors="replace"), len(content)

    # Requests.

    def insert(self, project: str, zone: str, body: dict[str, Any], request: str | None) -> dict[str, Any]:
        """A new VM; the operation is DONE when it runs."""
        if (project, zone, body.get("name")) in self._records:
            path = f"projects/{project}/zones/{zone}/instances/{body['name']}"
            raise wire.ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
        number = free_number(self._latest, {each.number for each in self._records.values()})
        folder = str(body.get("name", ""))
        if any(each.folder == folder for each in self._records.values()):
            folder = f"{folder}.{zone}"
        place = address(number, self._isolation is not Isolation.NONE)
        home = self._homes / f"{self._tag}-{number}"
        record = new_record(project, zone, body, number, place, folder, home)
        self._refuse(record)
        self._latest = number
        operation = self._begin(record, "insert", request)
        self._records[record.key] = record
        self._go(record, self._fail(record) if record.refusal else self._boot(record))
        self._on_change()
        return operation

    def delete(self, record: Record, request: str | None) -> dict[str, Any]:
        """No VM any more, and nothing of it."""
        operation = self._begin(record, "delete", request)
        self._end(record, "delete")
        return operation

    def stop(self, record: Record, request: str | None) -> dict[str, Any]:
        """A VM that is TERMINATED and keeps its disk."""
        operation = self._begin(record, "stop", request)
        if record.status == "TERMINATED":
            self._settle(record)
        else:
            self._end(record, "stop")
        return operation

    def start(self, record: Record, request: str | None) -> dict[str, Any]:
        """A TERMINATED VM that runs again."""
        if record.status != "TERMINATED":
            if record.status in ("STOPPING",):
                raise wire.ApiError(400, "resourceNotReady", f"The resource '{_path(record)}' is not ready")
            return self._operations.finish(self._begin(record, "start", request, keep=False))
        self._refuse(record)
        operation = self._begin(record, "start", request)
        if record.refusal:
            self._go(record, self._fail(record))
            return operation
        record.preempted, record.ending = False, None
        self._change_status(record, "PROVISIONING")
        self._go(record, self._boot(record))
        return operation

    def reset(self, record: Record, request: str | None) -> dict[str, Any]:
        """A RUNNING VM whose power goes off and on again, without a shutdown script."""
        if record.status != "RUNNING":
            raise wire.ApiError(400, "resourceNotReady", f"The resource '{_path(record)}' is not ready")
        operation = self._begin(record, "reset", request)
        self._go(record, self._restart(record))
        return operation

    def simulate_maintenance(self, record: Record, request: str | None) -> dict[str, Any]:
        """A maintenance of the VM's host: transient VMs are preempted, others restarted."""
        if record.status not in ("PROVISIONING", "STAGING", "RUNNING"):
            raise wire.ApiError(400, "resourceNotReady", f"The resource '{_path(record)}' is not ready")
        operation = self._begin(record, "compute.instances.simulateMaintenanceEvent", request, keep=False)
        if record.transient:
            self.preempt(record)
        elif record.status == "RUNNING":
            self._go(record, self._restart(record))
        return self._operations.finish(operation)

    def preempt(self, record: Record) -> None:
        """Preempt a transient VM.

        Its metadata has the notice immediately. Its shutdown starts after the time that its scheduling requests, and it
        ends when the notice of the weather is over too.
        """
        notice = self._notice(record, self.weather.notice)
        requested = self._notice(record, self.weather.requested_notice(record))
        record.preempted = True
        if host := self._hosts.get(record.identity):
            host.metadata.changed()
        running = record.status == "RUNNING"
        self._system_event(record, "compute.instances.preempted", "Instance was preempted.")
        if not running:
            self._settle(record, ("UNSUPPORTED_OPERATION", "Instance failed to start due to preemption."))
        self._end(record, record.then, notice if running else 0.0, after=requested if running else 0.0)

    def change(self, record: Record, kind: str, fields: dict[str, Any], request: str | None) -> dict[str, Any]:
        """New labels, metadata, scheduling and the like."""
        record.resource.update(fields)
        record.resource["fingerprint"] = wire.fingerprint((record.identity, time.time_ns()))
        self._save(record)
        if record.status == "RUNNING":
            self._limit(record)
        if host := self._hosts.get(record.identity):
            host.metadata.changed()
        self._on_change()
        return self._operations.finish(self._begin(record, kind, request, keep=False))

    # Beginning and end of the emulator itself.

    async def recover(self, same_network: bool) -> None:
        """Take over what an earlier emulator left, and let the weather work; without its network, its VMs are lost."""
        if self._zygotes:
            self._zygotes.start()
        for saved in self._store:
            record = Record(**saved)
            self._records[record.key] = record
            self._latest = max(self._latest, record.number)
        for record in list(self._records.values()):
            if record.first and not same_network and isolation.alive(*record.first):
                isolation.end(record.first[0])
                record.first = None
            await self._continue(record)
        known = {each.folder for each in self._records.values()}
        for folder in self._folder.iterdir():
            if folder.name not in known:
                remove_folder(folder)
        self._raining = [asyncio.create_task(each.run()) for each in (self._revoker, self._links, self.shares)]

    async def close(self, keep: bool) -> None:
        """End all VMs (or leave them to the next emulator)."""
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._tasks.values(), *self._raining]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not keep:
            async with asyncio.TaskGroup() as group:
                for record in list(self._records.values()):
                    group.create_task(self._remove(record))
        self.shares.close()
        if self._zygotes:
            await self._zygotes.stop()

    # The life of one VM.

    def _refuse(self, record: Record) -> None:
        """Note that this VM cannot be had, where that shows only later. ApiError where it shows at once."""
        present = [each for each in self.records(record.project) if not each.refusal]
        refusal = self.forbidden(record, present) or self.weather.refusal(record, present)
        record.refusal = None
        if refusal:
            record.refusal = {"error": refusal.error, "http": refusal.http, "at": time.time() + refusal.delay}

    async def _fail(self, record: Record) -> None:
        """The whole life of a VM that cannot be had; one that was stopped stays so."""
        assert record.refusal
        await asyncio.sleep(record.refusal["at"] - time.time())
        refusal, record.refusal = record.refusal, None
        if record.status != "TERMINATED":
            # First gone, then told: whoever hears of it may ask for the same name again.
            waiting, record.operations = record.operations, []
            await self._remove(record)
            record.operations = waiting
        self._settle(record, refusal["error"], tuple(refusal["http"]))

    async def _boot(self, record: Record) -> None:
        takes = self.weather.startup(record)
        await asyncio.sleep(takes.provisioning)
        begun = time.monotonic()
        self._change_status(record, "STAGING")
        host = self._hosts[record.identity] = Host(record, self._around, lambda: self._died(record))
        try:
            await self.prepare(record)
            await host.power_on()
            self._name_all()
            await self._links.settle()
            if not takes.booting and takes.answers:
                await host.serve()
        except (OSError, TimeoutError) as error:
            _LOG.exception("VM %s cannot be started", record.name)
            await self._power_off(record)
            self._settle(record, ("INTERNAL_ERROR", f"The emulator could not start the VM: {error}"), (500, "INTERNAL"))
            await self._remove(record)
            return
        left = takes.staging - (time.monotonic() - begun)
        if (part := self.weather.preempted_in_creation(record)) is not None:
            await asyncio.sleep(left * part)
            asyncio.get_running_loop().call_soon(self.preempt, record)
            await asyncio.Event().wait()  # The end of the VM takes this task's place.
        await asyncio.sleep(left)
        record.resource["lastStartTimestamp"] = wire.now()
        self._change_status(record, "RUNNING")
        self._settle(record)
        self._limit(record)
        self.shares.stir()
        if takes.booting:
            await asyncio.sleep(takes.booting)
            await host.serve()
        if takes.fails:
            host.fail_to_boot()

    def _end(self, record: Record, then: str, notice: float | None = None, *, after: float = 0.0) -> None:
        """End a VM: its shutdown starts `after` some seconds, and takes the time of the notice."""
        if record.ending and record.ending["then"] == "delete":
            then = "delete"
        begins = time.time() + after
        record.ending = {
            "begins": begins, "until": begins + (notice or 0.0), "then": then, "preemption": notice is not None,
        }  # fmt: skip
        if record.status not in ("TERMINATED",) and not after:
            self._change_status(record, "STOPPING")
        else:
            self._save(record)
        self._go(record, self._wind_down(record))

    async def _wind_down(self, record: Record) -> None:
        """The rest of a VM's life, as its record's `ending` says."""
        assert record.ending
        await asyncio.sleep(max(record.ending["begins"] - time.time(), 0.0))
        if record.status == "RUNNING":
            self._change_status(record, "STOPPING")
        host = self._hosts.get(record.identity)
        script = host and "shutdown-script" in record.attributes()
        preempted = record.ending["preemption"]
        left = max(record.ending["until"] - time.time(), 0.0)
        if host and script:
            scripted = asyncio.create_task(host.shut_down_script())
            usual = self._notice(record, self.weather.usual_notice)
            await asyncio.wait([scripted], timeout=left if preempted else usual)
            scripted.cancel()
            left = max(record.ending["until"] - time.time(), 0.0)
        await asyncio.sleep(left)
        if record.ending["then"] == "delete":
            await self._remove(record)
            return
        await self._power_off(record)
        record.ending = None
        record.resource["lastStopTimestamp"] = wire.now()
        self._change_status(record, "TERMINATED")
        self._settle(record)

    async def _restart(self, record: Record) -> None:
        await self._power_off(record)
        self._change_status(record, "PROVISIONING")
        await self._boot(record)

    async def _power_off(self, record: Record) -> None:
        if host := self._hosts.get(record.identity):
            # Forgotten only when it is off: this may be cancelled by a second request, which then does it again.
            await host.power_off()
            self._hosts.pop(record.identity, None)
            self._on_gone(record.address)
            self._name_all()
            self._links.stir()
            self.shares.stir()

    async def _remove(self, record: Record) -> None:
        await self._power_off(record)
        if timer := self._timers.pop(record.identity, None):
            timer.cancel()
        await asyncio.to_thread(remove_folder, self._folder / record.folder)
        self._records.pop(record.key, None)
        self._store.drop(record.identity)
        self._settle(record)
        self._on_change()

    def _died(self, record: Record) -> None:
        """The first process of a VM ended without being asked: the host failed, as it were."""
        if record.status != "RUNNING":
            return
        self._lost(record)

    def _lost(self, record: Record) -> None:
        if record.transient:
            record.preempted = True
            self._system_event(record, "compute.instances.preempted", "Instance was preempted.")
        else:
            self._system_event(record, "compute.instances.hostError", "Instance terminated by host error.")
        self._end(record, record.then if record.transient else "stop", 0.0)

    async def _continue(self, record: Record) -> None:
        host = Host(record, self._around, lambda: self._died(record))
        try:
            lives = await host.adopt()
        except OSError:
            _LOG.exception("VM %s cannot be taken over", record.name)
            lives = False
        if lives:
            self._hosts[record.identity] = host
            self._name_all()
        else:
            await host.power_off()
        if record.refusal:
            self._go(record, self._fail(record))
        elif record.status in ("PROVISIONING", "STAGING"):
            await self._power_off(record)
            self._go(record, self._boot(record))
        elif record.status == "STOPPING" or record.ending:
            self._go(record, self._wind_down(record))
        elif record.status == "RUNNING" and not lives:
            self._lost(record)
        self._limit(record)

    def _limit(self, record: Record) -> None:
        """Have the time limit kept, and shown."""
        if timer := self._timers.pop(record.identity, None):
            timer.cancel()
        moment = record.limit(self.weather.clock)
        record.show_end(moment)
        if moment is not None and record.ending is None:
            # A timer cannot be set for longer than some weeks; looking again once a day is enough.
            wait = min(max(moment - time.time(), 0.0), 86_400.0)
            self._timers[record.identity] = asyncio.get_running_loop().call_later(wait, self._time_is_up, record)

    def _weather_changed(self) -> None:
        """Time may pass at another rate now, and a VM's metadata say something else."""
        for record in self._records.values():
            if record.identity in self._timers:
                self._limit(record)
            if host := self._hosts.get(record.identity):
                host.metadata.changed()

    def _share_changed(self, record: Record) -> None:
        self._save(record)
        self._hosts[record.identity].metadata.changed()
        self._links.stir()

    def _time_is_up(self, record: Record) -> None:
        moment = record.limit(self.weather.clock)
        if moment is None or moment > time.time():
            self._limit(record)
        elif record.transient and record.resource["scheduling"]["provisioningModel"] == "STANDARD":
            self.preempt(record)
        elif record.status != "TERMINATED":  # of one that is stopped no limit ends, until it is started
            self._system_event(record, record.then, "Instance reached its time limit.")
            self._end(record, record.then)

    # Small parts.

    def _notice(self, record: Record, longest: float) -> float:
        asked = record.attributes().get("emulator-notice-seconds", "")
        try:
            return min(float(asked), longest) if asked else longest
        except ValueError:
            return longest

    def _go(self, record: Record, life: Coroutine[None, None, None]) -> None:
        previous = self._tasks.pop(record.identity, None)

        async def replace() -> None:
            if previous:
                previous.cancel()
                await asyncio.wait([previous])
            await life

        task = asyncio.create_task(replace(), name=record.name)
        self._tasks[record.identity] = task
        task.add_done_callback(lambda done: self._ended(record, life, done))

    def _ended(self, record: Record, life: Coroutine[None, None, None], task: asyncio.Task[None]) -> None:
        life.close()
        if self._tasks.get(record.identity) is task:
            del self._tasks[record.identity]
        if not task.cancelled() and (error := task.exception()):
            _LOG.error("the life of VM %s went wrong", record.name, exc_info=error)

    def _begin(self, record: Record, kind: str, request: str | None, keep: bool = True) -> dict[str, Any]:
        scope = f"zones/{record.zone}"
        own = record.resource["selfLink"]
        operation = self._operations.start(record.project, scope, kind, own, record.identity, request=request)
        if keep:
            record.operations.append(operation["name"])
        self._store.put(record.identity, record.to_dict())
        return operation

    def _settle(
        self,
        record: Record,
        error: tuple[str, str] | dict[str, Any] | None = None,
        http: tuple[int, str] = (400, "BAD REQUEST"),
    ) -> None:
        """Finish the operations that waited for what has just happened."""
        waiting, record.operations = record.operations, []
        if record.key in self._records:
            self._save(record)
        for name in waiting:
            if operation := self._operations.named(record.project, name):
                self._operations.finish(operation, error=error, http=http)

    def _system_event(self, record: Record, kind: str, message: str) -> None:
        name = f"systemevent-{time.time_ns() // 1_000_000}-{hashlib.sha256(record.identity.encode()).hexdigest()[:12]}"
        operation = self._operations.start(
            record.project, f"zones/{record.zone}", kind, record.resource["selfLink"], record.identity,
            user=wire.SYSTEM, name=name,
        )  # fmt: skip
        operation["statusMessage"] = message
        self._operations.finish(operation)

    def _change_status(self, record: Record, status: str) -> None:
        record.resource["status"] = status
        record.show_end(None)  # a VM that runs is given its end anew
        self._save(record)
        self._revoker.stir()

    def _name_all(self) -> None:
        """Write the hosts files of all VMs: one has come or gone."""
        for record, content in names.hosts_files(host.record for host in self._hosts.values()):
            try:
                self._hosts[record.identity].machine.write_hosts(content)
            except OSError:
                # A full disk must not keep VMs from starting or ending; the next one that does writes it again.
                _LOG.exception("the names of VMs cannot be written for %s", record.name)

    def _save(self, record: Record) -> None:
        try:
            self._store.put(record.identity, record.to_dict())
        except OSError:
            # A full disk must not stop what is under way; what clients are promised is written before (see _begin).
            _LOG.exception("the record of VM %s cannot be written", record.name)


async def _nothing(record: Record) -> None:
    """No disk has anything to be done with."""


def _path(record: Record) -> str:
    return f"projects/{record.project}/zones/{record.zone}/instances/{record.name}"
