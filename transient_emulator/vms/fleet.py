"""All VMs and their lives: insert, boot, preemption, time limits, stop, start, delete, death.

A request changes a record, stores it and returns an operation immediately. The rest runs in one
task per VM. A second request replaces the task of the first. After the emulator's own death,
`recover` continues every VM from the state of its record.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from pathlib import Path
from typing import Any

from ..instances import Record, new_record
from ..network import isolation
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
_FIRST_NUMBER = 2
_NUMBERS = 4000
# A bridge of Linux takes this many cables.
_MOST_VMS = 1000
_SSH_PORT = 22
# A timer of the event loop cannot be set for more than some weeks, and longer limits are checked
# daily.
_LONGEST_TIMER = 86_400.0
_BAD_REQUEST = (400, "BAD REQUEST")


class Fleet:
    """The VMs of the emulator.

    Parameters
    ----------
    state
        The emulator's directory.
    homes
        A directory with a short path, for links to the VMs' home directories.
    isolated
        How VMs are separated.
    owner_only
        The check for requests to metadata servers that other users of this machine could reach.
    operations
        The operations.
    weather
        The weather.
    on_change
        Called after a VM was added, changed or deleted.
    on_gone
        Called with the address of a VM that no longer runs.
    beside
        Returns the services that a VM's metadata server has besides metadata.

    Attributes ----------
    prepare
        Awaited before a VM boots, to fill its disks.
    forbidden
        Returns how the request for a VM fails because of what its project lacks; takes the VM and
        all VMs.
    """

    def __init__(
        self,
        state: Path,
        homes: Path,
        isolated: Isolation,
        owner_only: PeerCheck,
        operations: Operations,
        weather: Weather,
        *,
        on_change: Callable[[], None],
        on_gone: Callable[[str], None],
        beside: Callable[[Record], Beside] | None = None,
    ) -> None:
        self._folder = state / "vms"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._homes = homes
        self._store = Store(state / "instances")
        self._operations = operations
        self.weather = weather
        self._on_change = on_change
        self._on_gone = on_gone
        self._isolation = isolated
        # Several emulators of a user share the directory of homes.
        self._tag = hashlib.sha256(str(state).encode()).hexdigest()[:6]
        self._zygotes: Zygotes | None = None
        zygotes: Path | None = None
        if isolated is Isolation.FULL:
            shared = os.environ.get(SHARED)
            if shared:
                zygotes = Path(shared)
            else:
                self._zygotes = Zygotes(homes / f"zygotes-{self._tag}")
                zygotes = self._zygotes.folder
        self._surroundings = Surroundings(
            self._folder,
            isolated,
            owner_only,
            self._save,
            weather.attributes,
            beside,
            zygotes=zygotes,
        )
        self._revoker = Revoker(weather, self)
        self._links = Links(weather, lambda: self._hosts)
        self.shares = Shares(weather, lambda: self._hosts, self._share_changed)
        weather.on_change(self._weather_changed)
        self._records: dict[tuple[str, str, str], Record] = {}
        # The following are by the ids of VMs.
        self._hosts: dict[str, Host] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._latest_number = 1
        self.prepare: Callable[[Record], Awaitable[None]] = _prepare_nothing
        self.forbidden: Callable[[Record, list[Record]], Refusal | None] = _forbid_nothing

    # -------------------- lookup

    def __len__(self) -> int:
        return len(self._records)

    def records(self, project: str | None = None) -> list[Record]:
        """Return all records (of a project)."""
        return [vm for vm in self._records.values() if project in (None, vm.project)]

    def get(self, project: str, zone: str, name: str) -> Record:
        """Return one record by name or id. Raises ApiError 404 if it does not exist."""
        for vm in self._records.values():
            if (vm.project, vm.zone) == (project, zone) and name in (vm.name, vm.identity):
                return vm
        raise wire.not_found(f"projects/{project}/zones/{zone}/instances/{name}")

    def reach(self, address: str, port: int) -> tuple[str, int] | None:
        """Return where the relay connects to for a port of a VM; None if no such VM runs."""
        for vm in self._records.values():
            if vm.address == address and vm.identity in self._hosts:
                if self._isolation is Isolation.NONE and port == _SSH_PORT:
                    # Without a network of its own, a VM's SSH server has another port.
                    return self._hosts[vm.identity].ssh_place
                return address, port
        return None

    def serial_output(self, record: Record, start: int) -> tuple[str, int]:
        """Return what the start-up scripts wrote from byte `start` on, and the size of all."""
        path = self._folder / record.folder / "serial.log"
        content = path.read_bytes() if path.exists() else b""
        return content[start:].decode(errors="replace"), len(content)

    # -------------------- requests

    def insert(
        self, project: str, zone: str, body: dict[str, Any], request: str | None
    ) -> dict[str, Any]:
        """Create a VM.

        Parameters
        ----------
        project, zone, body
            The request of the insert.
        request
            The client's request id.

        Returns
        -------
        dict
            The operation, which is DONE when the VM runs.

        Raises
        ------
        ApiError
            If the request is not legal, or is refused immediately.
        """
        name = body.get("name")
        if (project, zone, name) in self._records:
            path = f"projects/{project}/zones/{zone}/instances/{name}"
            raise wire.ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
        records = self._records.values()
        number = _free_number(self._latest_number, {vm.number for vm in records})
        # VMs in other zones may have the same name.
        folder = str(body.get("name", ""))
        if any(vm.folder == folder for vm in records):
            folder = f"{folder}.{zone}"
        address = _address(number, self._isolation is not Isolation.NONE)
        home = self._homes / f"{self._tag}-{number}"
        record = new_record(project, zone, body, number, address, folder, home)
        self._check_refusal(record)
        self._latest_number = number
        operation = self._begin(record, "insert", request)
        self._records[record.key] = record
        self._run_task(record, self._fail(record) if record.refusal else self._boot(record))
        self._on_change()
        return operation

    def delete(self, record: Record, request: str | None) -> dict[str, Any]:
        """Delete a VM with its files. The operation is DONE when it is gone."""
        operation = self._begin(record, "delete", request)
        self._end(record, "delete")
        return operation

    def stop(self, record: Record, request: str | None) -> dict[str, Any]:
        """Stop a VM, which keeps its disks. The operation is DONE when it is TERMINATED."""
        operation = self._begin(record, "stop", request)
        if record.status == "TERMINATED":
            self._settle(record)
        else:
            self._end(record, "stop")
        return operation

    def start(self, record: Record, request: str | None) -> dict[str, Any]:
        """Start a TERMINATED VM.

        The operation is DONE when it runs. Raises ApiError 400 while it is stopping.
        """
        if record.status == "STOPPING":
            raise _not_ready(record)
        if record.status != "TERMINATED":
            return self._operations.finish(self._begin(record, "start", request, keep=False))
        self._check_refusal(record)
        operation = self._begin(record, "start", request)
        if record.refusal:
            self._run_task(record, self._fail(record))
            return operation
        record.preempted = False
        record.ending = None
        self._change_status(record, "PROVISIONING")
        self._run_task(record, self._boot(record))
        return operation

    def reset(self, record: Record, request: str | None) -> dict[str, Any]:
        """Power-cycle a RUNNING VM, without a shutdown script. Raises ApiError 400 otherwise."""
        if record.status != "RUNNING":
            raise _not_ready(record)
        operation = self._begin(record, "reset", request)
        self._run_task(record, self._restart(record))
        return operation

    def simulate_maintenance(self, record: Record, request: str | None) -> dict[str, Any]:
        """Maintain the VM's host: transient VMs are preempted, others restarted.

        Raises ApiError 400.
        """
        if record.status not in ("PROVISIONING", "STAGING", "RUNNING"):
            raise _not_ready(record)
        kind = "compute.instances.simulateMaintenanceEvent"
        operation = self._begin(record, kind, request, keep=False)
        if record.transient:
            self.preempt(record)
        elif record.status == "RUNNING":
            self._run_task(record, self._restart(record))
        return self._operations.finish(operation)

    def preempt(self, record: Record) -> None:
        """Preempt a transient VM.

        Its metadata has the notice immediately. Its shutdown starts after the time that its
        scheduling requests, and it ends when the notice of the weather is over too.
        """
        notice = self._notice(record, self.weather.notice)
        requested = self._notice(record, self.weather.requested_notice(record))
        record.preempted = True
        self._metadata_changed(record)
        running = record.status == "RUNNING"
        self._system_event(record, "compute.instances.preempted", "Instance was preempted.")
        if not running:
            message = "Instance failed to start due to preemption."
            self._settle(record, ("UNSUPPORTED_OPERATION", message))
            # A VM that does not run yet gets no notice.
            notice = 0.0
            requested = 0.0
        self._end(record, record.then, notice, after=requested)

    def change(
        self, record: Record, kind: str, fields: dict[str, Any], request: str | None
    ) -> dict[str, Any]:
        """Change fields of a VM's resource: labels, metadata, scheduling and the like.

        Parameters
        ----------
        record
            The VM.
        kind
            The type of the operation.
        fields
            The new values.
        request
            The client's request id.
        """
        record.resource.update(fields)
        record.resource["fingerprint"] = wire.fingerprint((record.identity, time.time_ns()))
        self._save(record)
        if record.status == "RUNNING":
            # The change may be about the time limit.
            self._limit(record)
        self._metadata_changed(record)
        self._on_change()
        return self._operations.finish(self._begin(record, kind, request, keep=False))

    # -------------------- start and end of the emulator itself

    async def recover(self, same_network: bool) -> None:
        """Take over what an earlier emulator left, and start the loops of the weather.

        Parameters
        ----------
        same_network
            Whether the earlier network still exists. Without it, running VMs are lost.
        """
        if self._zygotes:
            self._zygotes.start()
        for saved in self._store:
            record = Record(**saved)
            self._records[record.key] = record
            self._latest_number = max(self._latest_number, record.number)
        for record in list(self._records.values()):
            if record.first and not same_network and isolation.alive(*record.first):
                isolation.kill(record.first[0])
                record.first = None
            await self._continue(record)
        folders = {vm.folder for vm in self._records.values()}
        for folder in self._folder.iterdir():
            if folder.name not in folders:
                remove_folder(folder)
        for loop in (self._revoker, self._links, self.shares):
            self._loops.append(asyncio.create_task(loop.run()))

    async def close(self, keep: bool) -> None:
        """End all VMs, or with `keep` leave them to the next emulator."""
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._tasks.values(), *self._loops]
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

    # -------------------- the life of one VM

    def _check_refusal(self, record: Record) -> None:
        """Note in the record how its request fails later.

        Raises ApiError if it is refused immediately.
        """
        present = [vm for vm in self.records(record.project) if not vm.refusal]
        refusal = self.forbidden(record, present) or self.weather.refusal(record, present)
        record.refusal = None
        if refusal:
            record.refusal = {
                "error": refusal.error,
                "http": refusal.http,
                "at": time.time() + refusal.delay,
            }

    async def _fail(self, record: Record) -> None:
        """Fail the request for a VM when its time has come.

        A stopped VM stays stopped, a new one is removed.
        """
        assert record.refusal
        await asyncio.sleep(record.refusal["at"] - time.time())
        refusal = record.refusal
        record.refusal = None
        if record.status != "TERMINATED":
            # Removed before the operation ends: the client may then request the same name again.
            waiting = record.operations
            record.operations = []
            await self._remove(record)
            record.operations = waiting
        self._settle(record, refusal["error"], tuple(refusal["http"]))

    async def _boot(self, record: Record) -> None:
        startup = self.weather.startup(record)
        await asyncio.sleep(startup.provisioning)
        began = time.monotonic()
        self._change_status(record, "STAGING")
        host = Host(record, self._surroundings, lambda: self._on_death(record))
        self._hosts[record.identity] = host
        try:
            await self.prepare(record)
            await host.power_on()
            self._write_names()
            # Before anything in it answers: no packet may take an unshaped way.
            await self._links.settle()
            if not startup.booting and startup.answers:
                await host.serve()
        except (OSError, TimeoutError) as error:
            _LOG.exception("cannot start VM %s", record.name)
            await self._power_off(record)
            message = f"The emulator could not start the VM: {error}"
            self._settle(record, ("INTERNAL_ERROR", message), (500, "INTERNAL"))
            await self._remove(record)
            return
        remaining = startup.staging - (time.monotonic() - began)
        part = self.weather.preempted_in_creation(record)
        if part is not None:
            await asyncio.sleep(remaining * part)
            asyncio.get_running_loop().call_soon(self.preempt, record)
            # The task of the preemption replaces this one.
            await asyncio.Event().wait()
        await asyncio.sleep(remaining)
        record.resource["lastStartTimestamp"] = wire.now()
        self._change_status(record, "RUNNING")
        self._settle(record)
        self._limit(record)
        self.shares.wake()
        if startup.booting:
            await asyncio.sleep(startup.booting)
            await host.serve()
        if startup.fails:
            host.fail_to_boot()

    def _end(
        self, record: Record, then: str, notice: float | None = None, *, after: float = 0.0
    ) -> None:
        """End a VM.

        Parameters
        ----------
        record
            The VM.
        then
            `delete` or `stop`.
        notice
            Seconds that its shutdown takes, for a preemption; None for other ends.
        after
            Seconds until its shutdown starts.
        """
        if record.ending and record.ending["then"] == "delete":
            # A stop does not revoke a delete.
            then = "delete"
        begins = time.time() + after
        record.ending = {
            "begins": begins,
            "until": begins + (notice or 0.0),
            "then": then,
            "preemption": notice is not None,
        }
        if record.status != "TERMINATED" and not after:
            self._change_status(record, "STOPPING")
        else:
            self._save(record)
        self._run_task(record, self._wind_down(record))

    async def _wind_down(self, record: Record) -> None:
        """Run the rest of a VM's life, as the `ending` of its record says."""
        assert record.ending
        await asyncio.sleep(max(record.ending["begins"] - time.time(), 0.0))
        if record.status == "RUNNING":
            self._change_status(record, "STOPPING")
        host = self._hosts.get(record.identity)
        if host and "shutdown-script" in record.attributes():
            limit = max(record.ending["until"] - time.time(), 0.0)
            if not record.ending["preemption"]:
                limit = self._notice(record, self.weather.usual_notice)
            script = asyncio.create_task(host.shut_down_script())
            await asyncio.wait([script], timeout=limit)
            script.cancel()
        await asyncio.sleep(max(record.ending["until"] - time.time(), 0.0))
        # A later request may have changed a stop to a delete.
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
        host = self._hosts.get(record.identity)
        if not host:
            return
        await host.power_off()
        # Forgotten only when it is off. A second request may cancel this, and then does it again.
        self._hosts.pop(record.identity, None)
        self._on_gone(record.address)
        self._write_names()
        self._links.wake()
        self.shares.wake()

    async def _remove(self, record: Record) -> None:
        await self._power_off(record)
        self._cancel_timer(record)
        await asyncio.to_thread(remove_folder, self._folder / record.folder)
        self._records.pop(record.key, None)
        self._store.drop(record.identity)
        self._settle(record)
        self._on_change()

    def _on_death(self, record: Record) -> None:
        """React to the unexpected end of a VM's first process: emulate a failure of its host."""
        if record.status == "RUNNING":
            self._lose(record)

    def _lose(self, record: Record) -> None:
        if record.transient:
            record.preempted = True
            self._system_event(record, "compute.instances.preempted", "Instance was preempted.")
            self._end(record, record.then, 0.0)
        else:
            message = "Instance terminated by host error."
            self._system_event(record, "compute.instances.hostError", message)
            self._end(record, "stop", 0.0)

    async def _continue(self, record: Record) -> None:
        """Continue the life of a VM of an earlier emulator."""
        host = Host(record, self._surroundings, lambda: self._on_death(record))
        try:
            alive = await host.adopt()
        except OSError:
            _LOG.exception("cannot take over VM %s", record.name)
            alive = False
        if alive:
            self._hosts[record.identity] = host
            self._write_names()
        else:
            await host.power_off()
        if record.refusal:
            self._run_task(record, self._fail(record))
        elif record.status in ("PROVISIONING", "STAGING"):
            await self._power_off(record)
            self._run_task(record, self._boot(record))
        elif record.status == "STOPPING" or record.ending:
            self._run_task(record, self._wind_down(record))
        elif record.status == "RUNNING" and not alive:
            self._lose(record)
        self._limit(record)

    # -------------------- time limits and the weather

    def _limit(self, record: Record) -> None:
        """Show a VM's time limit, and set the timer for it."""
        self._cancel_timer(record)
        moment = record.limit(self.weather.clock)
        record.show_end(moment)
        if moment is not None and record.ending is None:
            wait = min(max(moment - time.time(), 0.0), _LONGEST_TIMER)
            loop = asyncio.get_running_loop()
            self._timers[record.identity] = loop.call_later(wait, self._time_is_up, record)

    def _cancel_timer(self, record: Record) -> None:
        timer = self._timers.pop(record.identity, None)
        if timer:
            timer.cancel()

    def _time_is_up(self, record: Record) -> None:
        moment = record.limit(self.weather.clock)
        if moment is None or moment > time.time():
            # Only the longest timer is over, or the limit has changed.
            self._limit(record)
        elif record.transient and record.resource["scheduling"]["provisioningModel"] == "STANDARD":
            self.preempt(record)
        elif record.status != "TERMINATED":
            # The limit of a stopped VM counts again when it is started.
            self._system_event(record, record.then, "Instance reached its time limit.")
            self._end(record, record.then)

    def _weather_changed(self) -> None:
        # Time may pass at another rate now, and the weather adds to a VM's metadata.
        for record in self._records.values():
            if record.identity in self._timers:
                self._limit(record)
            self._metadata_changed(record)

    def _share_changed(self, record: Record) -> None:
        self._save(record)
        self._hosts[record.identity].metadata.changed()
        self._links.wake()

    def _metadata_changed(self, record: Record) -> None:
        """Wake the programs in the VM that wait for a change of its metadata."""
        host = self._hosts.get(record.identity)
        if host:
            host.metadata.changed()

    def _notice(self, record: Record, longest: float) -> float:
        """Return the seconds of a notice; a VM's metadata may ask for less than `longest`."""
        requested = record.attributes().get("emulator-notice-seconds", "")
        if not requested:
            return longest
        try:
            return min(float(requested), longest)
        except ValueError:
            return longest

    # -------------------- tasks, operations, records

    def _run_task(self, record: Record, life: Coroutine[None, None, None]) -> None:
        """Run the next part of a VM's life, in place of the present one."""
        previous = self._tasks.pop(record.identity, None)

        async def replace() -> None:
            if previous:
                previous.cancel()
                # It may still be cleaning up, and both must not change the VM simultaneously.
                await asyncio.wait([previous])
            await life

        task = asyncio.create_task(replace(), name=record.name)
        self._tasks[record.identity] = task
        task.add_done_callback(lambda done: self._on_task_end(record, life, done))

    def _on_task_end(
        self, record: Record, life: Coroutine[None, None, None], task: asyncio.Task[None]
    ) -> None:
        # It has not started if the task was replaced before that.
        life.close()
        if self._tasks.get(record.identity) is task:
            del self._tasks[record.identity]
        if task.cancelled():
            return
        error = task.exception()
        if error:
            _LOG.error("the task of VM %s failed", record.name, exc_info=error)

    def _begin(
        self, record: Record, kind: str, request: str | None, keep: bool = True
    ) -> dict[str, Any]:
        """Start an operation on a VM. With `keep`, the next `_settle` finishes it."""
        scope = f"zones/{record.zone}"
        link = record.resource["selfLink"]
        operation = self._operations.start(
            record.project, scope, kind, link, record.identity, request=request
        )
        if keep:
            record.operations.append(operation["name"])
        # Unlike `_save`, this raises OSError: what cannot be stored must not be promised to a
        # client.
        self._store.put(record.identity, record.to_dict())
        return operation

    def _settle(
        self,
        record: Record,
        error: tuple[str, str] | dict[str, Any] | None = None,
        http: tuple[int, str] = _BAD_REQUEST,
    ) -> None:
        """Finish the operations that waited for what has just happened."""
        waiting = record.operations
        record.operations = []
        if record.key in self._records:
            self._save(record)
        for name in waiting:
            # A client may have deleted the operation.
            operation = self._operations.named(record.project, name)
            if operation:
                self._operations.finish(operation, error=error, http=http)

    def _system_event(self, record: Record, kind: str, message: str) -> None:
        """Create a finished operation of Compute Engine itself."""
        digest = hashlib.sha256(record.identity.encode()).hexdigest()[:12]
        operation = self._operations.start(
            record.project,
            f"zones/{record.zone}",
            kind,
            record.resource["selfLink"],
            record.identity,
            user=wire.SYSTEM,
            name=f"systemevent-{time.time_ns() // 1_000_000}-{digest}",
        )
        operation["statusMessage"] = message
        self._operations.finish(operation)

    def _change_status(self, record: Record, status: str) -> None:
        record.resource["status"] = status
        # `_limit` shows the end of a VM that runs.
        record.show_end(None)
        self._save(record)
        self._revoker.wake()

    def _write_names(self) -> None:
        """Write the hosts files of all VMs, after one was added or removed."""
        for record, content in names.hosts_files(host.record for host in self._hosts.values()):
            try:
                self._hosts[record.identity].machine.write_hosts(content)
            except OSError:
                # A full disk must not keep VMs from starting or ending. The next change writes it
                # again.
                _LOG.exception("cannot write the names of VMs for %s", record.name)

    def _save(self, record: Record) -> None:
        try:
            self._store.put(record.identity, record.to_dict())
        except OSError:
            # A full disk must not stop what is in progress. What clients rely on is stored before
            # (see `_begin`).
            _LOG.exception("cannot save the record of VM %s", record.name)


async def _prepare_nothing(record: Record) -> None:
    """Do nothing with the disks of a VM."""


def _forbid_nothing(record: Record, present: list[Record]) -> Refusal | None:
    return None


def _not_ready(record: Record) -> wire.ApiError:
    path = f"projects/{record.project}/zones/{record.zone}/instances/{record.name}"
    return wire.ApiError(400, "resourceNotReady", f"The resource '{path}' is not ready")


def _free_number(latest: int, used: Collection[int]) -> int:
    """Return the number of a new VM. Raises ApiError 403 if there are too many."""
    if len(used) < _MOST_VMS:
        # The next one after `latest`, not the lowest: clients may still try to reach the VM that
        # has just given up an address, and must not find another one there.
        for offset in range(1, _NUMBERS):
            number = _FIRST_NUMBER + (latest - _FIRST_NUMBER + offset) % _NUMBERS
            # The last byte of an address is neither 0 nor 255.
            if number not in used and number & 255 not in (0, 255):
                return number
    limit = f"Limit: {_MOST_VMS}.0 on this machine."
    raise wire.ApiError(403, "quotaExceeded", f"Quota 'INSTANCES' exceeded. {limit}")


def _address(number: int, own_network: bool) -> str:
    """Return the address of a VM, in the VM network or on this machine's loopback."""
    network = "10.128" if own_network else "127.128"
    return f"{network}.{number >> 8}.{number & 255}"
