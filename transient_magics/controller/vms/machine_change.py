"""Change the machine type of workers' VMs as requested: stop, change, start.

The next step follows from the journal and from Compute Engine (`decisions.machine_change`).
Observed states are recorded, and each step is repeated until its result is observed, so a
controller that dies between two steps loses nothing. A VM that cannot be started again is given up,
and replaced as one that was preempted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

from ...cloud import STOPPED, ComputeEngine, Vm
from ...errors import (
    CloudError,
    CredentialsError,
    GoneError,
    NotReadyError,
    RateLimitError,
    UnreachableError,
)
from ...journal import ClusterState, VmState, events, now
from ..decisions.machine_change import next_act
from ..record import Recorder
from ..tasks import Tasks
from .access import Access
from .credentials import CredentialStatus
from .link import Link
from .machines import instance_name

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_AGAIN_SECONDS = 2.0
_PASSING = (UnreachableError, CredentialsError, RateLimitError, NotReadyError)
"""Errors that give no information about the VM."""


class Restarts:
    """Executor of requested changes.

    `link` returns the link of a running VM, and `cause` the name of an error in the journal. `here`
    converts a time of Compute Engine to this machine's clock, in ns since 1970. `told_to_stop`
    returns when a VM was requested to stop (0 if unknown).
    """

    def __init__(
        self,
        recorder: Recorder,
        access: Access,
        tasks: Tasks,
        credentials: CredentialStatus,
        link: Callable[[str], Link | None],
        cause: Callable[[CloudError], str],
        here: Callable[[datetime | None], int],
        told_to_stop: Callable[[VmState], Awaitable[int]],
    ) -> None:
        self._recorder = recorder
        self._access = access
        self._tasks = tasks
        self._credentials = credentials
        self._link = link
        self._cause = cause
        self._here = here
        self._told_to_stop = told_to_stop
        self._begun: set[str] = set()

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    @property
    def _engine(self) -> ComputeEngine:
        return self._access.engine

    def advance(self) -> None:
        """Continue the change of every VM that has one. Called at every change of the state."""
        for vm in self._state.living:
            if self._pending(vm.name) and not self._credentials.refused:
                self._begun.add(vm.name)
                self._tasks.do(_key(vm.name), partial(self._carry_out, vm.name))
        # A change can also end elsewhere: by a preemption notice, or with the deletion of the VM.
        over = {
            name
            for name in self._begun
            if not self._pending(name) and _key(name) not in self._tasks
        }
        for name in over:
            self._recorder.note(_key(name), "")
        self._begun -= over

    def cancel(self, vm: str) -> None:
        """Cancel the change of a VM that is deleted."""
        self._tasks.cancel(_key(vm))

    def _pending(self, name: str) -> VmState | None:
        """Return the VM while its change is pending and it is not being deleted."""
        vm = self._state.vms[name]
        deleted = self._state.phase == "deleting" or vm.left or f"delete {name}" in self._tasks
        return vm if vm.living and vm.change and not deleted else None

    async def _carry_out(self, name: str) -> None:
        while vm := self._pending(name):
            try:
                with self._credentials.noting_refusal():
                    await self._step(vm)
            except GoneError:
                # Wait until the VM is not found any more.
                await asyncio.sleep(_LOOK_SECONDS)
            except CloudError:
                # The loop of the controller starts the task again immediately.
                await asyncio.sleep(_AGAIN_SECONDS)
                raise
            if self._credentials.refused:
                return

    async def _step(self, vm: VmState) -> None:
        """Take one step of a VM's change."""
        assert vm.change
        name = vm.name
        where = (vm.zone, instance_name(self._recorder.spec, vm.name))
        seen = await self._engine.get(*where)
        seen = seen if seen and seen.id == vm.vm_id else None
        if seen and seen.status in STOPPED and vm.state == "stopping":
            why = f"to become {vm.change.machine_type}"
            stopping = await self._told_to_stop(vm)
            self._recorder.record(events.VmStopped(vm=name, reason=why, stopping=stopping))
            return
        if seen and seen.status in STOPPED and seen.machine_type != vm.machine_type:
            self._recorder.record(
                events.VmMachineChanged(
                    vm=name, machine_type=seen.machine_type, machine_before=vm.machine_type
                )
            )
            return
        match next_act(vm, seen, self._recorder.spec.ends_at, now()):
            case "stop":
                await self._stop(vm, *where)
            case "set machine type":
                try:
                    await self._engine.power.set_machine_type(*where, vm.change.machine_type)
                except CloudError as error:
                    self._refused(error, events.VmMachineRefused(vm=name, reason=str(error)))
            case "set end":
                ends = self._recorder.spec.ends_at
                try:
                    await self._engine.power.set_end(*where, datetime.fromtimestamp(ends, UTC))
                except CloudError as error:
                    self._start_refused(name, error)
                else:
                    self._recorder.record(events.VmEndSet(vm=name, ends=ends))
            case "start":
                try:
                    await self._engine.power.start(*where)
                except CloudError as error:
                    self._start_refused(name, error)
            case "done" | "stop again" as act:
                assert seen
                self._started(vm, seen, done=act == "done")
            case "gone":
                self._recorder.record(events.VmRevoked(vm=name, signal="api"))
            case "give up":
                self._recorder.record(events.VmRevoked(vm=name, signal="start"))
            case "wait":
                await asyncio.sleep(_LOOK_SECONDS)

    async def _stop(self, vm: VmState, zone: str, instance: str) -> None:
        link = self._link(vm.name)
        if link:
            await link.dismiss()
        try:
            await self._engine.power.stop(zone, instance)
        except CloudError as error:
            if link:
                link.allow_work()
            if isinstance(error, GoneError):
                raise
            self._refused(error, events.VmMachineRefused(vm=vm.name, reason=str(error)))

    def _started(self, vm: VmState, seen: Vm, *, done: bool) -> None:
        self._recorder.record(
            events.VmStarted(
                vm=vm.name,
                address=seen.address if done else "",
                external_address=seen.external_address if done else "",
                started=self._here(seen.last_start),
            )
        )

    def _start_refused(self, name: str, error: CloudError) -> None:
        self._refused(
            error, events.VmStartRefused(vm=name, reason=str(error), cause=self._cause(error))
        )

    def _refused(self, error: CloudError, event: events.Event) -> None:
        """Record that Compute Engine refused, if it did.

        A missing resource may be a machine type or a disk. If the VM itself is missing, the next
        step finds out.
        """
        if isinstance(error, _PASSING):
            raise error
        self._recorder.record(event)


def _key(vm: str) -> str:
    return f"change {vm}"
