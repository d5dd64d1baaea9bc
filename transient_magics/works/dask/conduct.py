"""Conduct the Dask clusters of a cluster, from the controller.

`decisions.decide` returns what is due, and `Dasks` records it. One `_Part` for each VM copies the files
and a certificate there, asks the agent to begin the scheduler or a worker, and records the events
that the VM reports. Tasks and results never pass the controller: the kernel has a connection of its
own to the scheduler (`forward.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...controller import on_vm
from ...controller.on_vm import OnVm, ask, files_below
from ...controller.record import Recorder
from ...controller.tasks import Tasks
from ...controller.vms.link import Link
from ...controller.works import Tick, Works
from ...errors import ClusterError, ForeignError, reason_of
from ...journal import Event, VmState, events, now
from ...protocol import agent_commands, layout
from ...remote import push_bundle
from . import certificates
from .decisions import Begin, Decision, End, Stop, decide, parts
from .events import DaskBegan, from_dask
from .on_vm.task import DaskTask
from .spec import DaskSpec
from .state import DaskState


class Dasks(Works[DaskSpec]):
    """The Dask clusters of a cluster."""

    kind = "dask"
    stopped_as = "finished"
    spec_class = DaskSpec

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        link: Callable[[str], Link | None],
        others: Mapping[str, Works[Any]] | None = None,
    ) -> None:
        super().__init__(directory, recorder, link, others)
        self._left: dict[str, frozenset[str]] = {}
        """The VMs of each Dask cluster whose agents have ended their parts."""

    def prepare(self, name: str, spec: DaskSpec) -> None:
        """Create the keys of a Dask cluster. Raises ClusterError."""
        try:
            certificates.make(self.folder(name), name, self._until)
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"The keys of {name} cannot be created: {reason_of(error)}",
                where=str(self.folder(name)),
            ) from error

    def take_back(self) -> None:
        """Stop Dask clusters without keys on this machine, after another one was in charge."""
        for dask in self.state.active(DaskState):
            if not (self.folder(dask.name) / layout.TLS_CA_KEY).exists():
                self.request_end(
                    dask.name,
                    reason="its keys were lost with the VM of its controller",
                    state="failed",
                )

    def tick(self, tick: Tick) -> None:
        """Record and start what is due."""
        for name in [dask.name for dask in self.state.active(DaskState)]:
            dask = self.state.of(DaskState)[name]
            ended = self._left.get(name, frozenset())
            for decision in decide(dask, self.state, ended, tick.at):
                self._apply(name, decision)
            self._follow(tick.tasks, self.state.of(DaskState)[name])

    def _apply(self, name: str, decision: Decision) -> None:
        match decision:
            case Begin():
                refusal = self.fleet.training_refused if self.fleet else ""
                if refusal:
                    self.request_end(name, reason=refusal, state="failed")
                else:
                    self.recorder.record(DaskBegan(dask=name, vm=decision.vm))
            case Stop():
                self.request_end(name, reason=decision.reason, state=decision.state)
            case End():
                self.record_end(name, state=decision.state, reason=decision.reason)
                certificates.forget(self.folder(name))

    def _follow(self, tasks: Tasks, dask: DaskState) -> None:
        """Keep a task for each VM with a part, and end the parts of one that stops."""
        with_part = set[str]()
        if not dask.over:
            with_part = {vm.name for vm in parts(dask, self.state)}
        for vm in self.state.vms.values():
            key = f"dask {dask.name} on {vm.name}"
            if vm.name not in with_part or dask.stop:
                tasks.cancel(key)
            else:
                tasks.do(key, _Part(self, dask, vm).conduct)
        if dask.stop:
            for vm in with_part - self._left.get(dask.name, frozenset()):
                tasks.do(f"end {dask.name} on {vm}", partial(self._end_on, dask.name, vm))

    async def _end_on(self, dask: str, vm: str) -> None:
        """Ask a VM's agent to end its part. The next tick retries if that fails."""
        if await ask(self.link(vm), agent_commands.End(kind=self.kind, work=dask)):
            self._left[dask] = self._left.get(dask, frozenset()) | {vm}
        else:
            await asyncio.sleep(on_vm.TRY_AGAIN_SECONDS)

    # For the parts

    @property
    def _until(self) -> float:
        return certificates.until(self.recorder.spec)

    def files(self, dask: DaskState, vm: VmState) -> dict[str, bytes | Path]:
        """Return the files of a VM's part, without the declaration. Raises OSError."""
        certificate, key = certificates.issued(self.folder(dask.name), vm.name, self._until)
        authority = self.folder(dask.name) / layout.TLS_CA
        files: dict[str, bytes | Path] = {
            layout.TLS_CA: authority,
            layout.TLS_CERTIFICATE: certificate,
            layout.TLS_KEY: key,
        }
        if dask.spec.bag:
            bag = self.directory / layout.BAGS / dask.spec.bag
            files |= files_below(bag, (layout.INCLUDE, layout.WHEELS))
            if vm.name == dask.vm:
                files |= {name: bag / name for name in (layout.BAG, layout.CELL, layout.LIFETIMES)}
                files[layout.BAG_KNOWN] = self.folder(dask.name) / layout.BAG_KNOWN
        return files

    def begins(self, dask: DaskState, vm: VmState, code: str = "") -> agent_commands.Begin:
        """Return the command that starts a VM's part; `code` is the whole package, for a bag."""
        if vm.name == dask.vm:
            task = DaskTask("scheduler", vm.name, vm.address, code=code)
        else:
            serving = self.state.of(DaskState)[dask.name].serving
            assert serving
            scheduler = f"{self.state.vms[dask.vm].address}:{serving.port}"
            task = DaskTask("worker", vm.name, vm.address, scheduler, vm.running_at, code)
        return agent_commands.Begin(kind=self.kind, work=dask.name, task=task.to_dict())

    def knows(self, dask: str, vm: str, event: events.Event) -> bool:
        """Return whether the journal has an event of a VM, from an earlier controller."""
        return event.time <= self.state.of(DaskState)[dask].reported_at.get(vm, 0)


class _Part(OnVm):
    """One VM's part in a Dask cluster."""

    def __init__(self, dasks: Dasks, dask: DaskState, vm: VmState) -> None:
        super().__init__(dask.name, vm.name, dasks.link, partial(dasks.note, dask.name))
        self._dasks = dasks
        self._dask = dask
        self._state = vm
        self._folder_on_vm = layout.work_on_vm(dasks.kind, dask.name)
        self._schedules = vm.name == dask.vm
        self._declared_ns = int(dask.declared_at * 1e9)

    async def conduct(self) -> None:
        """Begin the part and follow it. Cancelled when the VM is gone or has no part any more."""
        try:
            await self.retried(self._begin_and_follow)
        except ForeignError as error:  # it has reported more than is read from a VM
            self.note(str(error))
            if self._schedules:  # its end would not be read
                reason = "its VM has reported more than is read from a VM"
                self._dasks.request_end(self.name, reason=reason, state="failed")
            # Wait to be cancelled: the control loop would start this again.
            await asyncio.get_running_loop().create_future()

    async def _begin_and_follow(self) -> None:
        await self._begin()
        path = f"{self._folder_on_vm}/{layout.DASK_EVENTS}"
        # A bag has one Dask cluster after another; one limit holds for all of them together.
        allowance = self._dasks.allowance(self._dask.spec.bag or self.name, self.vm)
        await self.follow(path, self._parse, self._handle, allowance)

    async def _begin(self) -> None:
        connection = await self.connection()
        if not await connection.exists(f"{self._folder_on_vm}/{layout.DASK}"):
            await connection.put_files(
                self._dasks.files(self._dask, self._state), below=self._folder_on_vm
            )
            declaration = self._dasks.folder(self.name) / layout.DASK
            await connection.put_files({layout.DASK: declaration}, below=self._folder_on_vm)
        code = ""
        if self._dask.spec.bag:  # its driver and its jobs need more than `runtime`
            code = await push_bundle(connection, whole=True)
        link = self.link(self.vm)
        if link:
            await link.ask(self._dasks.begins(self._dask, self._state, code))

    def _parse(self, line: bytes) -> Event:
        return from_dask(
            line, self.name, self.vm, self._schedules, self._declared_ns, int(now() * 1e9)
        )

    async def _handle(self, event: Event) -> bool:
        if not self._dasks.knows(self.name, self.vm, event):
            self._dasks.recorder.record(event)
        return False


WORKS = Dasks
