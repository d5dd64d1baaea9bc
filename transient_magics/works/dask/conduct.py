"""The Dask clusters of a cluster: what `decisions` decides is written down and done, for each VM
its part.

A VM's part is brought there with a certificate of its own, given to its agent, and followed: what
the VM tells goes into the journal. Tasks and results never come here: the kernel talks with the
scheduler itself (`dask/forward.py`).
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
from ...errors import ClusterError, ForeignError
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
        """Make its keys. Raises ClusterError."""
        try:
            certificates.make(self.folder(name), name, self._until)
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"The keys of {name} cannot be made: {error}", where=str(self.folder(name))
            ) from error

    def take_back(self) -> None:
        """End those of which this machine has no keys, after another one was in charge."""
        for dask in self.state.active(DaskState):
            if not (self.folder(dask.name) / layout.TLS_CA_KEY).exists():
                self.end(dask.name, "its keys were lost with the VM of its controller", "failed")

    def tick(self, tick: Tick) -> None:
        """Record and start what is due."""
        for name in [dask.name for dask in self.state.active(DaskState)]:
            for decision in decide(
                self.state.of(DaskState)[name],
                self.state,
                self._left.get(name, frozenset()),
                tick.at,
            ):
                self._carry_out(name, decision)
            self._follow(tick.tasks, self.state.of(DaskState)[name])

    def _carry_out(self, name: str, decision: Decision) -> None:
        match decision:
            case Begin():
                if refused := self.fleet.training_refused if self.fleet else "":
                    self.end(name, refused, "failed")
                else:
                    self.recorder.record(DaskBegan(dask=name, vm=decision.vm))
            case Stop():
                self.end(name, decision.reason, decision.state)
            case End():
                self.ended(name, decision.state, decision.reason)
                certificates.forget(self.folder(name))

    def _follow(self, tasks: Tasks, dask: DaskState) -> None:
        """Conduct it on each VM that has a part."""
        mine = {vm.name: vm for vm in ([] if dask.over else parts(dask, self.state))}
        for vm in self.state.vms.values():
            key = f"dask {dask.name} on {vm.name}"
            if vm.name not in mine or dask.stop:
                tasks.cancel(key)
            else:
                tasks.do(key, _Part(self, dask, vm).conduct)
        if dask.stop:
            for vm in set(mine) - self._left.get(dask.name, frozenset()):
                tasks.do(f"end {dask.name} on {vm}", partial(self._end_on, dask.name, vm))

    async def _end_on(self, dask: str, vm: str) -> None:
        """Have a VM's agent end its part. Tried again at the next tick where that fails."""
        if await ask(self.link(vm), agent_commands.End(kind=self.kind, work=dask)):
            self._left[dask] = self._left.get(dask, frozenset()) | {vm}
        else:
            await asyncio.sleep(on_vm.TRY_AGAIN_SECONDS)

    # What parts take of it

    @property
    def _until(self) -> float:
        return certificates.until(self.recorder.spec)

    def files(self, dask: DaskState, vm: VmState) -> dict[str, bytes | Path]:
        """What the VM needs for its part, but the declaration. Raises OSError."""
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
        """Return the command that gives the VM its part. `code`: the whole package, for a bag."""
        if vm.name == dask.vm:
            task = DaskTask("scheduler", vm.name, vm.address, code=code)
        else:
            known = self.state.of(DaskState)[dask.name]
            assert known.serving
            scheduler = f"{self.state.vms[dask.vm].address}:{known.serving.port}"
            task = DaskTask("worker", vm.name, vm.address, scheduler, vm.running_at, code)
        return agent_commands.Begin(kind=self.kind, work=dask.name, task=task.to_dict())

    def knows(self, dask: str, vm: str, event: events.Event) -> bool:
        """Whether the journal has what the VM tells, from a controller before."""
        return event.time <= self.state.of(DaskState)[dask].heard.get(vm, 0)


class _Part(OnVm):
    """One VM's part in a Dask cluster."""

    def __init__(self, dasks: Dasks, dask: DaskState, vm: VmState) -> None:
        super().__init__(dask.name, vm.name, dasks.link, partial(dasks.note, dask.name))
        self._dasks = dasks
        self._dask = dask
        self._state = vm
        self._there = layout.dask_on_vm(dask.name)
        self._schedules = vm.name == dask.vm
        self._since = int(dask.declared_at * 1e9)

    async def conduct(self) -> None:
        """Give it to the VM and follow it there. Cancelled when the VM is gone, or has no part any
        more.
        """
        try:
            await self.retried(self._give_and_follow)
        except ForeignError as error:  # more of it than is taken from a VM
            self.note(str(error))
            if self._schedules:  # no line of its end would be read
                self._dasks.end(
                    self.name, "its VM has told more than is taken from one", state="failed"
                )
            await (
                asyncio.get_running_loop().create_future()
            )  # cancelled, as it would begin again otherwise

    async def _give_and_follow(self) -> None:
        await self._give()
        path = f"{self._there}/{layout.DASK_EVENTS}"
        # A bag has one Dask cluster after another: what is read of all of them has one limit.
        allowance = self._dasks.allowance(self._dask.spec.bag or self.name, self.vm)
        await self.follow(path, self._event, self._take, allowance)

    async def _give(self) -> None:
        connection = await self.connection()
        if not await connection.exists(f"{self._there}/{layout.DASK}"):
            await connection.put_files(
                self._dasks.files(self._dask, self._state), below=self._there
            )
            declaration = self._dasks.folder(self.name) / layout.DASK
            await connection.put_files({layout.DASK: declaration}, below=self._there)
        code = ""
        if (
            self._dask.spec.bag
        ):  # its driver is above the runtime, and jobs may use what is beside that
            code = await push_bundle(connection, whole=True)
        if link := self.link(self.vm):
            await link.ask(self._dasks.begins(self._dask, self._state, code))

    def _event(self, line: bytes) -> Event:
        return from_dask(line, self.name, self.vm, self._schedules, self._since, int(now() * 1e9))

    async def _take(self, event: Event) -> bool:
        if not self._dasks.knows(self.name, self.vm, event):
            self._dasks.recorder.record(event)
        return False


WORKS = Dasks
