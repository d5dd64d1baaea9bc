"""The VMs of one cluster: asked for, watched, connected and deleted.

The core decides which; this module carries it out through Compute Engine's API, compares what
Google lists with what the journal says, and keeps a link to every VM that runs. A VM that went
without our asking is recorded as revoked, once, whoever noticed first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from ...cloud import BoundedToken, CloudStorage, Reach, Vm
from ...errors import (
    AccessError,
    AgreementError,
    CloudError,
    ConsumerError,
    CredentialsError,
    DeclarationError,
    GoneError,
    QuotaError,
    StockoutError,
    UnreachableError,
)
from ...journal import ClusterState, VmState, events, now, read
from ...journal.declared import agreement
from ...protocol import layout
from ...protocol.machines import Share
from ...protocol.vm_events import AgentLine
from ...remote import Connection, generate_key
from ...runtime.files.manifest import split
from ...spec import CONTROLLER, WORKER, ClusterSpec, cluster_store
from ..decisions.admission import Server, server
from ..decisions.capacity import ACCESS, QUOTA, QUOTA_EVERYWHERE, STOCKOUT
from ..decisions.core import RequestVm
from ..decisions.heartbeat import Silence
from ..host import controller_vm
from ..record import Recorder
from ..tasks import Tasks
from ..trust import agreed_spec, compare
from .access import Access, WantedBack
from .boots import Boots
from .credentials import Login
from .link import Hooks, Link
from .machine_change import Restarts
from .machines import instance_name, labels, requested, saved_owner, vm_name, vm_request

log = logging.getLogger(__name__)

_MEMORY = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
"""Bytes of this machine's memory."""
_POLL_SECONDS = 5.0
_FIRST_WAIT = 2.0
_KEEP_SECONDS = 60.0
_CAUSES: dict[type[CloudError], str] = {
    StockoutError: STOCKOUT,
    QuotaError: QUOTA,
    AccessError: ACCESS,
    ConsumerError: ACCESS,
}
_SILENCE = (
    "No VM answers any more, though Compute Engine says that they run: they are left as they are, for it may be the "
    "way to them that is closed (SSH out of this machine's network, or its address in --ssh-from)"
)
_GONE = ("STOPPED", "TERMINATED", "SUSPENDING", "SUSPENDED")
_TELL_SECONDS = 4.0
"""For a VM that answers to tell of its notice, which Compute Engine shows at the same moment: until
the next poll.
"""


class Fleet:
    """Carries out decisions about VMs. `agent_line` gets what agents write down, `wanted` is told
    again and again which VMs the provider wants back.
    """

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        access: Access,
        tasks: Tasks,
        agent_line: Callable[[str, AgentLine], None],
        wanted: Callable[[WantedBack | None], None],
    ) -> None:
        self._directory = directory
        self._recorder = recorder
        self._access = access
        self._tasks = tasks
        self._agent_line = agent_line
        self._wanted = wanted
        self._public_key = generate_key(directory / layout.KEY)
        self._whose = saved_owner(directory)
        self._links: dict[str, Link] = {}
        self._silence = Silence()
        self._suspicion = asyncio.Event()
        self._stopping: dict[str, float] = {}
        """Since when VMs are seen to be taken away."""
        self._login = Login(recorder)
        self._boots = Boots(recorder, access, tasks)
        self._restarts = Restarts(
            recorder, access, tasks, self._login, self.link, _cause, self._here, self._told_to_stop
        )

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    @property
    def _spec(self) -> ClusterSpec:
        return self._recorder.spec

    @property
    def _rented_as(self) -> ClusterSpec:
        """What VMs that are asked for now are part of: the cluster as it is, or as it is to be when
        it has moved.
        """
        if self._state.relocation:
            return self._state.relocation.spec
        return self._spec

    def link(self, vm: str) -> Link | None:
        """The link of a VM that runs."""
        return self._links.get(vm)

    @property
    def storage(self) -> CloudStorage | None:
        """The way to the cluster's bucket, if it has one."""
        return self._access.storage

    async def bounded_token(self, reaches: Sequence[Reach]) -> BoundedToken:
        """A token for these places in buckets. Raises CloudError."""
        return await self._access.bounded_token(reaches)

    @property
    def training_refused(self) -> str:
        """Why no training may run on these VMs, or nothing."""
        return self._access.training_refused

    @property
    def server(self) -> Server:
        """What a parameter server has for runs, as far as the catalog knows or, of an emulated one,
        this machine.
        """
        return server(self._spec, self._access.link, _MEMORY)

    def release(self, run: str) -> None:
        """Have all agents end what they do for `run`."""
        for link in self._links.values():
            link.release(run)

    def request(self, decisions: Sequence[RequestVm], going: Collection[str] = ()) -> None:
        """Record that the VMs are wanted, then ask for them: those of one shape and zone by one
        request.

        `going`: the VMs that are deleted now. A VM outside the agreement is not recorded, and holds
        up no other.
        """
        if self._login.refused:
            return  # wanted again at once when it is over
        batches: dict[tuple[str, ...], list[events.VmRequested]] = {}
        refused = ""
        for decision in decisions:
            if decision.vm in self._tasks:
                continue
            event = requested(self._rented_as, decision)
            if why := self._outside(event, going):
                refused = refused or why
                continue
            if not self._recorder.record(event):
                continue
            if decision.replaces and decision.role == WORKER:
                self._recorder.record(
                    events.WorkerReplaced(worker=decision.replaces, by=decision.vm)
                )
            shape = (
                event.zone,
                event.role,
                event.accelerator,
                event.machine_type,
                event.provisioning_model,
            )
            batches.setdefault(shape, []).append(event)
        self._recorder.note("agreement", refused)
        for batch in batches.values():
            if len(batch) == 1:
                answer = self._single
            else:
                answer = self._bulk(batch)
            for event in batch:
                self._tasks.do(event.vm, partial(self._insert, event, answer))

    def delete(self, vm: VmState, reason: str) -> None:
        """Delete the VM, after the request for it has been answered.

        Of the VM that we run on this is only said: `verify_gone` deletes it with the last call that
        we make.
        """
        if vm.name == controller_vm():
            self._recorder.record(events.VmDeleted(vm=vm.name, reason=reason))
        elif self._login.refused:
            self._login.tell()
        else:
            if vm.change:
                self._restarts.leave(vm.name)
            self._tasks.do(f"delete {vm.name}", lambda: self._delete(vm, reason))

    async def leave(self, vms: Sequence[str], role: str) -> None:
        """Have those of these VMs that have this role end what they do for runs, for that goes on
        elsewhere.

        Raises RemoteError or TrainingError where one does not answer that is not seen to be gone.
        """
        linked = [
            vm for name in vms if (vm := self._state.vms[name]).living and name in self._links
        ]
        leaving = (
            self._links[vm.name].leave(at_once=role != WORKER) for vm in linked if vm.role == role
        )
        if failed := next(
            filter(None, await asyncio.gather(*leaving, return_exceptions=True)), None
        ):
            raise failed

    def recall(self, vms: Sequence[str]) -> None:
        """They may be given work again."""
        for name in vms:
            if link := self._links.get(name):
                link.recall()

    async def preempt(self, vm: VmState, seconds: float) -> None:
        """Have Compute Engine take the VM back (after `seconds`)."""

        async def later() -> None:
            await asyncio.sleep(seconds)
            await self._access.engine.preempt(
                vm.zone, vm.vm_id or instance_name(self._spec, vm.name)
            )

        if seconds > 0:
            self._tasks.do(f"revoke {vm.name}", later)
        else:
            await later()

    async def verify_gone(self) -> None:
        """Google's list has the last word: when nothing of this cluster is left, it is deleted.

        A controller on one of the VMs does not live to see that; its journal is in the bucket then.
        """
        if self._login.refused:
            self._login.tell()
            await asyncio.sleep(_FIRST_WAIT)
            return
        try:
            left = await self._listed(whole=True)
            if self._charge({vm_name(self._spec, vm.name): vm for vm in left}):
                return  # they are known again, and deleted as the others were
            for vm in sorted(left, key=self._is_ours):
                if self._is_ours(vm):
                    await self._keep_journal()
                await self._access.engine.delete(vm.zone, vm.name, labels(self._spec))
            if not left and self._spec.firewall:
                await self._access.unprotect()
        except CloudError as error:
            await self._unreachable("deleting", error)
            await asyncio.sleep(_FIRST_WAIT)
            return
        if not left:
            self._recorder.record(events.ClusterDeleted())

    async def _listed(self, *, whole: bool = False) -> list[Vm]:
        """The cluster's VMs that Google has; of those told by name and owner (it has no id) only
        what we asked for.

        UnreachableError where a zone is not told in which one lives, or (`whole`) where one may be.
        """
        if whole:
            places = {vm.zone for vm in self._state.vms.values()}.union(self._spec.all_zones)
        else:
            places = {vm.zone for vm in self._state.living}
        found = await self._access.engine.list(labels(self._spec), within=places)
        if self._spec.id:
            return found
        return [vm for vm in found if vm_name(self._spec, vm.name) in self._state.vms]

    def _is_ours(self, vm: Vm) -> bool:
        """Whether this process runs on the VM."""
        return bool(controller_vm()) and vm.name == instance_name(self._spec, controller_vm())

    async def keep_journal(self) -> None:
        """Have a copy of the journal in the bucket, renewed every minute: this VM may be lost.
        Until cancelled.
        """
        kept = 0
        while True:
            if kept != self._state.seq:
                kept = self._state.seq
                await self._keep_journal()
            await asyncio.sleep(_KEEP_SECONDS)

    async def _keep_journal(self) -> None:
        store = cluster_store(self._spec)
        if store and self.storage:
            bucket, path = split(store)
            try:
                await self.storage.upload(
                    bucket, f"{path}{layout.JOURNAL}", self._directory / layout.JOURNAL
                )
            except CloudError as error:
                log.warning(
                    "the journal is not in the bucket: %s", error
                )  # costs nothing; the VM does

    async def poll(self) -> None:
        """Ask Compute Engine regularly, and at once when a connection broke, which VMs it has.
        Until cancelled.
        """
        while True:
            asked = now()
            began = time.monotonic()
            try:
                if self._login.refused:
                    await self._access.renew()
                found = await self._listed()
            except CloudError as error:
                self._silence.asked(began, time.monotonic(), answered=False)
                await self._unreachable("poll", error)
            else:
                self._silence.asked(began, time.monotonic(), answered=True)
                self._recorder.note("poll", "")
                self._login.accept()
                await self._read_weather()
                listed = {vm_name(self._spec, vm.name): vm for vm in found}
                self._compare(listed, asked, await self._endings(listed))
            if self._login.refused:
                await asyncio.sleep(self._login.pause())
                continue
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._suspicion.wait()
            except TimeoutError:
                continue
            finally:
                self._suspicion.clear()

    async def _endings(self, found: Mapping[str, Vm]) -> dict[str, datetime]:
        """When our VMs that are gone began to end, by their id: this machine may have slept for
        hours since.
        """
        running = [
            vm
            for vm in self._state.living
            if vm.running_at and f"delete {vm.name}" not in self._tasks
        ]
        lost = [
            vm
            for vm in running
            if not vm.change and (vm.name not in found or found[vm.name].status in _GONE)
        ]
        endings: dict[str, datetime] = {}
        for zone in sorted({vm.zone for vm in lost}):
            endings |= await self._endings_in(zone)
        return endings

    async def _endings_in(self, zone: str) -> dict[str, datetime]:
        try:
            return await self._access.engine.endings(zone)
        except CloudError as error:
            log.warning(
                "nobody tells when VMs of %s ended: %s", zone, error
            )  # only the bill is less exact
            return {}

    async def _told_to_stop(self, vm: VmState) -> int:
        return self._here((await self._endings_in(vm.zone)).get(vm.vm_id))

    def _here(self, moment: datetime | None) -> int:
        """A moment that Compute Engine told, by this machine's clock, in ns since 1970; 0 where it
        told none.
        """
        if moment:
            return round((moment.timestamp() + self._access.engine.ahead) * 1e9)
        return 0

    async def _read_weather(self) -> None:
        try:
            clock, wanted = await self._access.weather()
        except UnreachableError as error:
            log.warning("%s", error)  # the next poll finds the emulator again, and its weather
            return
        if clock != self._state.clock:
            self._recorder.record(events.ClusterClock(anchors=clock.anchors))
        self._wanted(wanted)

    def keep_links(self) -> None:
        """A link to every VM that runs, none to those that are gone."""
        linked = (vm for vm in self._state.living if vm.address and not vm.left)
        living = {vm.name: vm for vm in linked if not self._alone_here(vm)}
        for name in set(self._links) - set(living):
            del self._links[name]
            self._tasks.cancel(f"link {name}")
            self._boots.leave(name)
            self._silence.end(name)
            self._recorder.note(name, "")
        for name, vm in living.items():
            if name not in self._links:
                hooks = Hooks(self._ready, self._lost, self._agent_line, self._recorder.note)
                self._links[name] = Link(
                    name, self._connector(name), hooks, agent=vm.role != CONTROLLER
                )
            self._tasks.do(f"link {name}", self._links[name].run)
            self._boots.follow(vm)
        self._recorder.note("boot", self._boots.trouble)

    def keep_changing(self) -> None:
        """Have VMs that are to become other machines go on with it."""
        self._restarts.look()

    @property
    def answering(self) -> frozenset[str]:
        """The VMs whose agents answer now, or what stands in for them."""
        return frozenset(name for name, link in self._links.items() if link.answering)

    def silent(self) -> list[str]:
        """The VMs that answer no more, for good; looked at again and again, because the moment
        counts.
        """
        there = (vm for vm in self._state.living if vm.address and vm.answered_at and not vm.change)
        known = [vm.name for vm in there if vm.name != controller_vm()]
        found = self._silence.for_good(known, time.monotonic())
        self._recorder.note("silence", _SILENCE if self._silence.closed else "")
        return found

    @staticmethod
    def _alone_here(vm: VmState) -> bool:
        """Whether this process runs on the VM and has it for itself: it needs no way to it."""
        return vm.role == CONTROLLER and vm.name == controller_vm()

    def _outside(self, event: events.VmRequested, going: Collection[str] = ()) -> str:
        """Return why the VM is outside what this machine's user agreed to, one sentence, or
        nothing.
        """
        state = self._state
        due = state.due or state.run
        try:
            agreed = agreement(
                self._directory, due.name if due and state.steered is not None else ""
            )
            if state.relocation is None:
                agreed = replace(agreed, moving=None)
            there = [
                vm
                for vm in state.living
                if vm.state != "leaving" and not vm.left and vm.name not in going
            ]
            spec = agreed_spec(agreed, event, there)
            request = vm_request(self._rented_as, event, self._public_key, self._whose)
            compare(agreed, event, request, vm_request(spec, event, self._public_key, self._whose))
        except (AgreementError, DeclarationError) as error:
            return str(error)
        return ""

    async def _single(self, event: events.VmRequested) -> Vm:
        return await self._access.engine.insert(
            vm_request(self._rented_as, event, self._public_key, self._whose)
        )

    def _bulk(
        self, batch: Sequence[events.VmRequested]
    ) -> Callable[[events.VmRequested], Awaitable[Vm]]:
        """One request for all of `batch`, and from it the answer for each."""
        wanted = {
            event.vm: vm_request(self._rented_as, event, self._public_key, self._whose)
            for event in batch
        }
        request = asyncio.ensure_future(self._access.engine.insert_many(list(wanted.values())))

        async def answer(event: events.VmRequested) -> Vm:
            # Shielded: one VM that is given up does not end the request of the others.
            outcome = (await asyncio.shield(request))[wanted[event.vm].name]
            if isinstance(outcome, CloudError):
                raise outcome
            return outcome

        return answer

    async def _insert(
        self, event: events.VmRequested, answer: Callable[[events.VmRequested], Awaitable[Vm]]
    ) -> None:
        try:
            vm = await answer(event)
        except GoneError:
            stopping = await self._unseen(event.vm)
            self._recorder.record(events.VmRevoked(vm=event.vm, signal="api", stopping=stopping))
        except CredentialsError as error:
            self._login.refuse(error)  # not refused: the same request is made again when it is over
        except CloudError as error:
            hints = error.zones if isinstance(error, StockoutError) else ()
            self._recorder.record(
                events.VmRefused(vm=event.vm, reason=str(error), cause=_cause(error), hints=hints)
            )
            await self._unreachable("provisioning", error)
        else:
            self._recorder.note("provisioning", "")
            self._recorder.note("notice", self._access.engine.notice_refused)
            self._running(event.vm, vm)

    async def _unseen(self, name: str) -> int:
        """Of a VM that nobody saw run: record that it ran, if it did, and return when it was told
        to stop.

        It may have come and gone while the controller was killed or this machine slept, and is to
        be paid for.
        """
        vm = self._state.vms[name]
        try:
            life = await self._access.engine.life(vm.zone, instance_name(self._spec, name))
        except CloudError as error:
            log.warning(
                "nobody tells whether %s ran: %s", name, error
            )  # only the bill is less exact
            return 0
        if (
            life is None or self._here(life.started) < vm.requested_at * 1e9
        ):  # of an earlier VM of that name
            return 0
        self._recorder.record(
            events.VmRunning(vm=name, address="", vm_id=life.id, started=self._here(life.started))
        )
        return self._here(life.stopping)

    def _running(self, name: str, vm: Vm) -> None:
        self._recorder.record(
            events.VmRunning(
                vm=name,
                address=vm.address,
                external_address=vm.external_address,
                vm_id=str(vm.id),
                started=self._here(vm.last_start),
            )
        )

    async def _delete(self, vm: VmState, reason: str) -> None:
        await self._tasks.finished(vm.name, timeout=600)
        if vm.role == WORKER:
            link = self._links.get(vm.name)
        else:
            link = None
        if link:
            await link.dismiss()
        with self._login.minded():
            try:
                name = instance_name(self._spec, vm.name)
                ours = labels(self._spec)
                begun = await self._access.engine.delete(vm.zone, name, ours)
            except CloudError:
                if link:
                    link.recall()
                await asyncio.sleep(_FIRST_WAIT)  # it is decided upon again at once
                raise
            latest = self._state.vms[vm.name]
            if latest.living and not latest.running_at:
                stopping = await self._unseen(vm.name)
            else:  # else it was on its way out, or gone
                stopping = self._here(begun or (await self._endings_in(vm.zone)).get(latest.vm_id))
            self._recorder.record(events.VmDeleted(vm=vm.name, reason=reason, stopping=stopping))

    def _compare(
        self, found: Mapping[str, Vm], asked: float, endings: Mapping[str, datetime]
    ) -> None:
        for vm in self._state.living:
            seen = found.get(vm.name)
            if vm.name in self._tasks or f"delete {vm.name}" in self._tasks:
                continue
            if vm.change or 0 < asked <= vm.restarted_at:
                continue  # it is stopped and started by us; what is listed may be of before
            if not vm.running_at:
                self._resume_request(vm)
            elif seen and seen.status == "STOPPING":
                if (
                    vm.state != "leaving"
                    and vm.provisioning_model != "standard"
                    and self._tells_nothing(vm.name)
                ):
                    self._recorder.record(events.VmPreemptionNotice(vm=vm.name))
            elif seen and seen.share != vm.share and seen.status == "RUNNING":
                self._reshare(vm, seen.share)
            elif vm.running_at < asked and (seen is None or seen.status in _GONE):
                if vm.state == "leaving":
                    signal = "notice"
                else:
                    signal = "ssh" if vm.name in self._silence else "api"
                stopping = self._here(endings.get(vm.vm_id))
                self._recorder.record(
                    events.VmRevoked(vm=vm.name, signal=signal, stopping=stopping)
                )
        self._charge(found)
        known = {vm.name for vm in self._state.living}
        for name, vm in found.items():
            # Gone for us but still listed: a stopped VM, whose disk goes on costing money, or one
            # nobody knows.
            if name in (*known, controller_vm()):
                continue
            if name not in self._tasks and f"delete {name}" not in self._tasks:
                self._tasks.do(f"remove {name}", self._remover(name, vm))

    def _reshare(self, vm: VmState, share: Share) -> None:
        """Record that the provider leaves the VM less than before, or gives some of it back."""
        less = share.cpu < vm.share.cpu or share.network < vm.share.network
        made = events.VmDeflated if less else events.VmInflated
        self._recorder.record(
            made(
                vm=vm.name,
                cpu=share.cpu,
                network=share.network,
                cpu_before=vm.share.cpu,
                network_before=vm.share.network,
            )
        )

    def _tells_nothing(self, name: str) -> bool:
        """Whether the VM itself, which knows the moment of its notice, cannot tell it or has had
        the time to.
        """
        since = self._stopping.setdefault(name, time.monotonic())
        return name not in self.answering or time.monotonic() - since >= _TELL_SECONDS

    def _charge(self, found: Mapping[str, Vm]) -> bool:
        """Record that VMs run which were given up before they did: they are paid for until they are
        deleted.

        Whether there are any.
        """
        late = [
            name for name, vm in found.items() if vm.status == "RUNNING" and self._never_ran(name)
        ]
        for name in late:  # without an address: nobody is to give it work
            started = self._here(found[name].last_start)
            self._recorder.record(
                events.VmRunning(vm=name, address="", vm_id=found[name].id, started=started)
            )
        return bool(late)

    def _never_ran(self, name: str) -> bool:
        """Whether the VM was asked for, and is gone as far as is known without having run."""
        vm = self._state.vms.get(name)
        return bool(vm and not vm.living and not vm.running_at) and name not in self._tasks

    def _remover(self, name: str, vm: Vm) -> Callable[[], Any]:
        async def remove() -> None:
            with self._login.minded():
                await self._access.engine.delete(vm.zone, vm.name, labels(self._spec))
                if self._never_ran(name):
                    await self._unseen(name)  # it may have run before it was deleted

        return remove

    def _resume_request(self, vm: VmState) -> None:
        """A request that an earlier controller made: sent again with its identity, it is the same
        request.
        """
        history = read(self._directory / layout.JOURNAL)
        earlier = next(
            each for each in history if isinstance(each, events.VmRequested) and each.vm == vm.name
        )
        if why := self._outside(earlier):
            self._recorder.note("agreement", why)
            self._recorder.record(
                events.VmDeleted(vm=vm.name, reason="it is outside what was declared")
            )
            return
        self._tasks.do(vm.name, partial(self._insert, earlier, self._single))

    async def _unreachable(self, source: str, error: CloudError) -> None:
        if isinstance(error, CredentialsError):
            self._login.refuse(error)
            return
        self._recorder.note(source, str(error))
        if isinstance(error, UnreachableError):
            try:
                await self._access.reopen()
            except CloudError as again:
                log.warning("%s", again)

    def _connector(self, name: str) -> Callable[[], Awaitable[Connection]]:
        async def connector() -> Connection:
            return await self._access.connect(self._state.vms[name], self._directory / layout.KEY)

        return connector

    def _ready(self, name: str) -> None:
        self._silence.end(name)
        if self._state.vms[name].state == "booting":
            self._recorder.record(events.VmReady(vm=name))
        self._recorder.note(name, "")
        self._recorder.changed.set()

    def _lost(self, name: str) -> None:
        if self._state.vms[name].answered_at:
            self._silence.begin(name, time.monotonic())
        self._suspicion.set()


def _cause(error: CloudError) -> str:
    """What Compute Engine's refusal is called in the journal."""
    if isinstance(error, QuotaError) and error.everywhere:
        return QUOTA_EVERYWHERE
    return _CAUSES.get(type(error), "other")
