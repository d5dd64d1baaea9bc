"""The Dask clusters of a cluster: what `decisions` decides is written down and done, for each VM its part.

A VM's part is brought there with a certificate of its own, given to its agent, and followed: what the VM tells goes
into the journal. Tasks and results never come here: the kernel talks with the scheduler itself (`programs/forward.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...errors import ClusterError, ForeignError, RemoteError, TrainingError
from ...journal import ClusterState, DaskState, VmState, events, now
from ...protocol import checks, layout
from ...protocol.agent_commands import BeginDask, EndDask
from ...protocol.dask.spec import DaskSpec
from ...protocol.vm_events import from_dask
from ...remote import Allowance, Connection, follow_across, push_bundle
from ...spec import ClusterSpec
from ..foreign import Refusals
from ..record import Recorder
from ..runs.sending import is_plain
from ..tasks import Tasks
from ..vms.link import Link
from . import certificates
from .decisions import Begin, End, Stop, decide, parts

log = logging.getLogger(__name__)

_TRY_AGAIN_SECONDS, _LINK_SECONDS = 1.0, 2.0
_MOST_EVENTS = 16 * 2**20
_SPARE_SECONDS = 86_400.0
"""For which certificates hold after the cluster's own end."""


def until(spec: ClusterSpec) -> float:
    """The moment until which certificates hold on a cluster, in seconds since 1970."""
    return spec.declared_at + spec.max_seconds + _SPARE_SECONDS


class Dasks:
    """The Dask clusters on the cluster in `directory`; `link` gives the link of a VM (None: there is none).

    `refused` says why none may begin on these VMs, or nothing.
    """

    def __init__(
        self, directory: Path, recorder: Recorder, link: Callable[[str], Link | None], refused: Callable[[], str]
    ) -> None:
        self._directory, self._recorder, self._link, self._refused = directory, recorder, link, refused
        self._ended: dict[str, frozenset[str]] = {}
        self._allowances: dict[tuple[str, str], Allowance] = {}

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    def declare(self, name: str) -> None:
        """Begin the one whose declaration is in the cluster's folder. Raises ClusterError."""
        if name in self._state.dasks:
            return
        self._state.refuse_taken("Dask cluster", name)
        path = self._folder(name) / layout.DASK
        try:
            spec = DaskSpec.from_dict({**checks.parsed_object(path.read_bytes()), "name": name})
            certificates.make(self._folder(name), name, self._until)
        except (OSError, ValueError) as error:
            raise ClusterError(f"The declaration of {name} cannot be read: {error}", where=str(path)) from error
        self._recorder.record(events.DaskDeclared(dask=name, spec=spec.to_dict()))

    async def stop(self, name: str, reason: str = "") -> None:
        """End the Dask cluster. Does nothing if it ends already."""
        self.end(name, reason or "stopped by the user")

    def end(self, name: str, reason: str, *, failed: bool = False) -> None:
        """Record that it ends. Does nothing where it ends already, or was never declared."""
        dask = self._state.dasks.get(name)
        if dask and not dask.over and not dask.stop:
            self._recorder.record(events.DaskStopping(dask=name, reason=reason, failed=failed))

    def take_back(self) -> None:
        """After a time in which another machine was in charge: end those of which this one has no keys."""
        for dask in self._state.active_dasks:
            if not dask.stop and not (self._folder(dask.name) / layout.TLS_CA_KEY).exists():
                reason = "its keys were lost with the VM of its controller"
                self._recorder.record(events.DaskStopping(dask=dask.name, reason=reason, failed=True))

    def look(self, tasks: Tasks, at: float) -> None:
        """Write down and do what is due."""
        for name in [dask.name for dask in self._state.active_dasks]:
            for decision in decide(self._state.dasks[name], self._state, self._ended.get(name, frozenset()), at):
                match decision:
                    case Begin():
                        if refused := self._refused():
                            self._recorder.record(events.DaskStopping(dask=name, reason=refused, failed=True))
                            continue
                        self._recorder.record(events.DaskBegan(dask=name, vm=decision.vm))
                    case Stop():
                        stopping = events.DaskStopping(dask=name, reason=decision.reason, failed=decision.failed)
                        self._recorder.record(stopping)
                    case End():
                        ended = "failed" if decision.state == "failed" else "finished"
                        self._recorder.record(events.DaskEnded(dask=name, state=ended, reason=decision.reason))
                        self._recorder.note(f"dask {name}", "")
                        certificates.forget(self._folder(name))
            self._follow(tasks, self._state.dasks[name])

    def _follow(self, tasks: Tasks, dask: DaskState) -> None:
        """Have somebody with each VM that has a part."""
        mine = {vm.name: vm for vm in ([] if dask.over else parts(dask, self._state))}
        for vm in self._state.vms.values():
            key = f"dask {dask.name} on {vm.name}"
            if vm.name not in mine or dask.stop:
                tasks.cancel(key)
            else:
                tasks.do(key, lambda vm=vm: _Part(self, dask, vm).conduct())
        if dask.stop:
            for name in set(mine) - self._ended.get(dask.name, frozenset()):
                tasks.do(f"end {dask.name} on {name}", lambda name=name: self._end(dask.name, name))

    async def _end(self, dask: str, vm: str) -> None:
        if link := self._link(vm):
            try:
                await link.ask(EndDask(dask=dask))
            except (RemoteError, TrainingError, OSError) as error:  # tried again at the next look
                log.info("%s on %s: %s", dask, vm, error)
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
            else:
                self._ended[dask] = self._ended.get(dask, frozenset()) | {vm}
        else:
            await asyncio.sleep(_TRY_AGAIN_SECONDS)

    # What parts take of it

    def _folder(self, name: str) -> Path:
        return self._directory / layout.DASKS / name

    @property
    def _until(self) -> float:
        return until(self._recorder.spec)

    def files(self, dask: DaskState, vm: VmState) -> dict[str, bytes | Path]:
        """What the VM needs for its part, but the declaration. Raises OSError."""
        certificate, key = certificates.issued(self._folder(dask.name), vm.name, self._until)
        authority = self._folder(dask.name) / layout.TLS_CA
        files: dict[str, bytes | Path] = {
            layout.TLS_CA: authority, layout.TLS_CERTIFICATE: certificate, layout.TLS_KEY: key,
        }  # fmt: skip
        if dask.spec.bag:
            bag = self._directory / layout.BAGS / dask.spec.bag
            for name in (layout.INCLUDE, layout.WHEELS):
                files |= {str(each.relative_to(bag)): each for each in (bag / name).rglob("*") if is_plain(each)}
            if vm.name == dask.vm:
                files |= {name: bag / name for name in (layout.BAG, layout.CELL, layout.LIFETIMES)}
                files[layout.BAG_KNOWN] = self._folder(dask.name) / layout.BAG_KNOWN
        return files

    def declaration(self, dask: DaskState) -> Path:
        """The file of the declaration."""
        return self._folder(dask.name) / layout.DASK

    def begins(self, dask: DaskState, vm: VmState, code: str = "") -> BeginDask:
        """What is said to the agent of the VM. `code`: the whole package, for a bag."""
        if vm.name == dask.vm:
            return BeginDask(dask=dask.name, part="scheduler", vm=vm.name, address=vm.address, code=code)
        known = self._state.dasks[dask.name]
        assert known.serving
        scheduler = f"{self._state.vms[dask.vm].address}:{known.serving.port}"
        return BeginDask(dask=dask.name, part="worker", vm=vm.name, address=vm.address, scheduler=scheduler,
                         born=vm.running_at, code=code)  # fmt: skip

    def allowance(self, dask: DaskState, vm: str) -> Allowance:
        """How much is taken of what the VM tells about it, or about all that a bag has, over all who follow it."""
        return self._allowances.setdefault((dask.spec.bag or dask.name, vm), Allowance(_MOST_EVENTS))

    def knows(self, dask: str, vm: str, event: events.Event) -> bool:
        """Whether the journal has what the VM tells, from a controller before."""
        return event.time <= self._state.dasks[dask].heard.get(vm, 0)

    def link(self, vm: str) -> Link | None:
        """The link of a VM."""
        return self._link(vm)

    def record(self, event: events.Event) -> None:
        """Have it in the journal."""
        self._recorder.record(event)

    def note(self, name: str, what: str) -> None:
        """Say what is in the way, or nothing any more."""
        self._recorder.note(f"dask {name}", what)


class _Part:
    """One VM's part in a Dask cluster."""

    def __init__(self, dasks: Dasks, dask: DaskState, vm: VmState) -> None:
        self._dasks, self._dask, self._vm = dasks, dask, vm
        self._there = layout.dask_on_vm(dask.name)
        self._since = int(dask.declared_at * 1e9)
        self._heard = 0
        self._refusals = Refusals(f"{vm.name}, about {dask.name}", lambda what: dasks.note(dask.name, what))

    async def conduct(self) -> None:
        """Give it to the VM and follow it there. Cancelled when the VM is gone, or has no part any more."""
        while True:
            try:
                await self._give()
                return await self._follow()
            except ForeignError as error:  # more of it than is taken from a VM
                self._dasks.note(self._dask.name, str(error))
                if self._vm.name == self._dask.vm:  # nobody would hear of its end
                    self._dasks.end(self._dask.name, "its VM has told more than is taken from one", failed=True)
                return await _until_cancelled()
            except (RemoteError, TrainingError, OSError) as error:  # the latter: its agent says no, as under notice
                log.warning("%s on %s: %s", self._dask.name, self._vm.name, error)
                await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _give(self) -> None:
        connection = await self._connection()
        if not await connection.exists(f"{self._there}/{layout.DASK}"):
            await connection.put_files(self._dasks.files(self._dask, self._vm), below=self._there)
            await connection.put_files({layout.DASK: self._dasks.declaration(self._dask)}, below=self._there)
        code = ""
        if self._dask.spec.bag:  # its driver is above the runtime, and jobs may use what is beside that
            code = await push_bundle(connection, whole=True)
        if link := self._dasks.link(self._vm.name):
            await link.ask(self._dasks.begins(self._dask, self._vm, code))

    async def _follow(self) -> None:
        path, schedules = f"{self._there}/{layout.DASK_EVENTS}", self._vm.name == self._dask.vm
        allowance = self._dasks.allowance(self._dask, self._vm.name)
        async for offset, line in follow_across(self._connection, path, self._heard, allowance=allowance):
            try:
                event = from_dask(line, self._dask.name, self._vm.name, schedules, self._since, int(now() * 1e9))
            except ValueError as error:
                self._refusals.add(line, error)
            else:
                if not self._dasks.knows(self._dask.name, self._vm.name, event):
                    self._dasks.record(event)
            self._heard = offset

    async def _connection(self) -> Connection:
        while True:
            if link := self._dasks.link(self._vm.name):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LINK_SECONDS):
                        return await link.connection()
            else:
                await asyncio.sleep(_TRY_AGAIN_SECONDS)


async def _until_cancelled() -> None:
    await asyncio.get_running_loop().create_future()
