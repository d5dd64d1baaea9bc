"""Carry out decisions about the VMs of one cluster, and record what happens to them.

`decisions.core` decides which VMs the cluster needs. The fleet sends the requests and deletions to
Compute Engine, and keeps an SSH link to every VM that runs. Every few seconds it polls the list of
VMs and compares it with the journal. A VM that ended without a deletion of ours is recorded as
revoked, once, no matter whether its notice, its link or the list reported it first.
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

from ...cloud import BoundedToken, CloudStorage, Reach, Vm, VmRequest
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
from ..decisions.heartbeat import SilentVms
from ..host import controller_vm
from ..record import Recorder
from ..tasks import Tasks
from ..trust import agreed_spec, refuse_difference
from .access import Access, WantedBack
from .boots import Boots
from .credentials import CredentialStatus
from .link import Hooks, Link
from .machine_change import Restarts
from .machines import instance_name, labels, requested, saved_owner, vm_name, vm_request

log = logging.getLogger(__name__)

_MEMORY = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
"""Memory of this machine, in bytes."""
_POLL_SECONDS = 5.0
_RETRY_SECONDS = 2.0
_BACKUP_SECONDS = 60.0
_CAUSES: dict[type[CloudError], str] = {
    StockoutError: STOCKOUT,
    QuotaError: QUOTA,
    AccessError: ACCESS,
    ConsumerError: ACCESS,
}
_PATH_CLOSED = (
    "No VM answers, although Compute Engine lists them as running. They are left as they are: the path to them may be "
    "closed (SSH out of this machine's network, or its address in --ssh-from)"
)
_ENDED = ("STOPPED", "TERMINATED", "SUSPENDING", "SUSPENDED")
_NOTICE_SECONDS = 4.0
"""Time for an agent to report its notice, which Compute Engine shows at the same moment.

It is less than the time between two polls, so that the second poll that lists the VM as stopping
records the notice.
"""

_Answer = Callable[[events.VmRequested], Awaitable[Vm]]
"""Function that waits for the outcome of a request. Raises CloudError for a refused VM."""


class Fleet:
    """The VMs of one cluster.

    Methods that wait are coroutines. Slow work runs in `tasks`, so that no work runs twice: under
    the name of its VM (requests), `delete NAME`, `remove NAME` (a VM that the journal does not
    have), `revoke NAME` or `link NAME`. The state of the VMs is in the journal only: a controller
    that follows a killed one starts with an empty fleet and resumes the pending requests after its
    first poll.

    Parameters
    ----------
    directory
        The folder of the cluster.
    recorder
        Appends to the journal, and has the state that follows from it.
    access
        Compute Engine, SSH and the bucket of the cluster.
    tasks
        Runs the work that is in flight.
    agent_line
        Called with the VM and each line that its agent writes.
    report_wanted_back
        Called after every poll with the VMs that the provider wants back, or None.
    """

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        access: Access,
        tasks: Tasks,
        agent_line: Callable[[str, AgentLine], None],
        report_wanted_back: Callable[[WantedBack | None], None],
    ) -> None:
        self._directory = directory
        self._recorder = recorder
        self._access = access
        self._tasks = tasks
        self._agent_line = agent_line
        self._report_wanted_back = report_wanted_back
        self._public_key = generate_key(directory / layout.KEY)
        self._owner = saved_owner(directory)
        self._links: dict[str, Link] = {}
        self._silent = SilentVms()
        self._link_lost = asyncio.Event()
        self._stopping_since: dict[str, float] = {}
        """When Compute Engine first listed a VM as stopping, by VM.

        Entries stay: a VM that stops does not run again, and its name is never used again. VMs that
        stop to change their machine type are not in it.
        """
        self._credentials = CredentialStatus(recorder)
        self._boots = Boots(recorder, access, tasks)
        self._restarts = Restarts(
            recorder,
            access,
            tasks,
            self._credentials,
            self.link,
            _cause,
            self._local_time,
            self._stopping_time,
        )

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    @property
    def _spec(self) -> ClusterSpec:
        return self._recorder.spec

    @property
    def _spec_of_requests(self) -> ClusterSpec:
        """The declaration of new VMs: of a moving cluster, the one that it moves to."""
        if self._state.relocation:
            return self._state.relocation.spec
        return self._spec

    # ---------------------------------------------------------------- what others ask for

    def link(self, vm: str) -> Link | None:
        """Return the SSH link to a VM that runs, or None."""
        return self._links.get(vm)

    @property
    def answering(self) -> frozenset[str]:
        """VMs whose agents answer now. The controller's VM has no agent: its link counts."""
        return frozenset(name for name, link in self._links.items() if link.answering)

    @property
    def storage(self) -> CloudStorage | None:
        """Cloud Storage, if the cluster has a bucket."""
        return self._access.storage

    async def bounded_token(self, reaches: Sequence[Reach]) -> BoundedToken:
        """Return a token that is limited to these places in buckets. Raises CloudError."""
        return await self._access.bounded_token(reaches)

    @property
    def training_refused(self) -> str:
        """Sentence why no run may train on these VMs, or ''."""
        return self._access.training_refused

    @property
    def server(self) -> Server:
        """Resources of a parameter server, from the catalog or, if emulated, of this machine."""
        return server(self._spec, self._access.link, _MEMORY)

    def find_silent(self) -> list[str]:
        """Return the VMs that have not answered for too long, to be deleted.

        The result depends on the time, so call it for every decision. If no VM answers, it is
        empty: this reports instead that the path to the VMs may be closed.
        """
        names = [
            vm.name
            for vm in self._state.living
            if vm.address and vm.answered_at and not vm.change and vm.name != controller_vm()
        ]
        silent = self._silent.given_up(names, time.monotonic())
        self._recorder.note("silence", _PATH_CLOSED if self._silent.path_closed else "")
        return silent

    # ---------------------------------------------------------------- requests

    def request(self, decisions: Sequence[RequestVm], going: Collection[str] = ()) -> None:
        """Record the requests, then send them: one for all VMs of the same shape and zone.

        The record comes first, so that a killed controller loses no VM. A VM outside the user's
        agreement is not requested, and the others are.

        Parameters
        ----------
        decisions
            The VMs to request. Requests that are in flight are skipped.
        going
            VMs that are being deleted, and so do not count as present.
        """
        # Requests without credentials fail. The same ones are decided again after a login.
        if self._credentials.refused:
            return
        batches: dict[tuple[str, ...], list[events.VmRequested]] = {}
        refused = ""
        for decision in decisions:
            if decision.vm in self._tasks:
                continue
            event = requested(self._spec_of_requests, decision)
            if why := self._outside_agreement(event, going):
                refused = refused or why
                continue
            # Not written, for example on a full disk: the request would be forgotten.
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
            answer = self._send_one if len(batch) == 1 else self._send_batch(batch)
            for event in batch:
                self._tasks.do(event.vm, partial(self._insert, event, answer))

    def _outside_agreement(self, event: events.VmRequested, going: Collection[str] = ()) -> str:
        """Return why the VM is outside the user's agreement, one sentence, or ''."""
        state = self._state
        run = state.deadline_run or state.run
        # Only the run whose deadline steers the workers adds to the agreement of the cluster.
        steering = run.name if run and state.steered is not None else ""
        there = [
            vm
            for vm in state.living
            if vm.state != "leaving" and not vm.left and vm.name not in going
        ]
        try:
            agreed = agreement(self._directory, steering)
            # The user's consent to a move counts only while the cluster moves.
            if state.relocation is None:
                agreed = replace(agreed, moving=None)
            spec = agreed_spec(agreed, event, there)
            refuse_difference(agreed, event, self._vm_request(event), self._vm_request(event, spec))
        except (AgreementError, DeclarationError) as error:
            return str(error)
        return ""

    def _vm_request(self, event: events.VmRequested, spec: ClusterSpec | None = None) -> VmRequest:
        """Return the request for a VM, by `spec` (default: the declaration of new VMs)."""
        return vm_request(spec or self._spec_of_requests, event, self._public_key, self._owner)

    async def _send_one(self, event: events.VmRequested) -> Vm:
        """Request one VM."""
        return await self._access.engine.insert(self._vm_request(event))

    def _send_batch(self, batch: Sequence[events.VmRequested]) -> _Answer:
        """Request all VMs of `batch` with one call, and return a waiter for each answer."""
        requests = {event.vm: self._vm_request(event) for event in batch}
        sent = asyncio.ensure_future(self._access.engine.insert_many(list(requests.values())))

        async def answer(event: events.VmRequested) -> Vm:
            # Shielded: cancelling the task of one VM must not cancel the request of the others.
            outcomes = await asyncio.shield(sent)
            outcome = outcomes[requests[event.vm].name]
            if isinstance(outcome, CloudError):
                raise outcome
            return outcome

        return answer

    async def _insert(self, event: events.VmRequested, answer: _Answer) -> None:
        """Wait for the answer to a request, and record it."""
        try:
            vm = await answer(event)
        except GoneError:
            # It was created and ended before the answer came.
            stopping = await self._record_unseen_life(event.vm)
            self._recorder.record(events.VmRevoked(vm=event.vm, signal="api", stopping=stopping))
        except CredentialsError as error:
            # Not recorded as refused: the same request is sent again after a login.
            self._credentials.refuse(error)
        except CloudError as error:
            hints = error.zones if isinstance(error, StockoutError) else ()
            self._recorder.record(
                events.VmRefused(vm=event.vm, reason=str(error), cause=_cause(error), hints=hints)
            )
            await self._report_failure("provisioning", error)
        else:
            self._recorder.note("provisioning", "")
            self._recorder.note("notice", self._access.engine.notice_refused)
            self._recorder.record(
                events.VmRunning(
                    vm=event.vm,
                    address=vm.address,
                    external_address=vm.external_address,
                    vm_id=str(vm.id),
                    started=self._local_time(vm.last_start),
                )
            )

    def _resume_requests(self, vms: Collection[VmState]) -> None:
        """Send requests without an answer again.

        These are requests of an earlier controller, and those that the credentials did not allow;
        usually there are none. They have the same identities, so that Compute Engine creates no VM
        twice. Only the journal has the requests, and it is read once for all of them.
        """
        if not vms:
            return
        requests = {
            event.vm: event
            for event in read(self._directory / layout.JOURNAL)
            if isinstance(event, events.VmRequested)
        }
        for vm in vms:
            earlier = requests[vm.name]
            if why := self._outside_agreement(earlier):
                self._recorder.note("agreement", why)
                # If the earlier controller had sent it, the VM exists. Then a poll finds it listed
                # although it is gone by the journal, and removes it.
                self._recorder.record(
                    events.VmDeleted(vm=vm.name, reason="it is outside what was declared")
                )
            else:
                self._tasks.do(vm.name, partial(self._insert, earlier, self._send_one))

    # ---------------------------------------------------------------- links

    def update_links(self) -> None:
        """Open a link to every VM that runs, and close those to VMs that are gone."""
        running = {
            vm.name: vm
            for vm in self._state.living
            if vm.address and not vm.left and not self._is_own_controller_vm(vm)
        }
        for name in self._links.keys() - running.keys():
            del self._links[name]
            self._tasks.cancel(f"link {name}")
            self._boots.forget(name)
            self._silent.remove(name)
            self._recorder.note(name, "")
        hooks = Hooks(self._on_ready, self._lost, self._agent_line, self._recorder.note)
        for name, vm in running.items():
            if name not in self._links:
                has_agent = vm.role != CONTROLLER
                self._links[name] = Link(name, partial(self._connect, name), hooks, agent=has_agent)
            self._tasks.do(f"link {name}", self._links[name].run)
            self._boots.follow(vm)
        self._recorder.note("boot", self._boots.trouble)

    @staticmethod
    def _is_own_controller_vm(vm: VmState) -> bool:
        """Return whether this process runs on the VM and is all that runs there."""
        return vm.role == CONTROLLER and vm.name == controller_vm()

    async def _connect(self, name: str) -> Connection:
        return await self._access.connect(self._state.vms[name], self._directory / layout.KEY)

    def _on_ready(self, name: str) -> None:
        """Handle a VM whose agent answers."""
        self._silent.remove(name)
        if self._state.vms[name].state == "booting":
            self._recorder.record(events.VmReady(vm=name))
        self._recorder.note(name, "")
        self._recorder.changed.set()

    def _lost(self, name: str) -> None:
        """Handle a broken link: poll now instead of at the next regular time."""
        if self._state.vms[name].answered_at:
            self._silent.add(name, time.monotonic())
        self._link_lost.set()

    def release(self, run: str) -> None:
        """End what the agents of all VMs do for a run."""
        for link in self._links.values():
            link.release(run)

    async def stop_work(self, vms: Sequence[str], role: str) -> None:
        """Make the agents of those `vms` that have this role stop their work for runs.

        The runs continue on other VMs. The agents get no work again until `allow_work`.

        Raises
        ------
        RemoteError
            A VM does not answer, and Compute Engine does not list it as gone.
        TrainingError
            An agent refused.
        """
        links = [
            self._links[name]
            for name in vms
            if name in self._links
            and self._state.vms[name].living
            and self._state.vms[name].role == role
        ]
        # A worker completes its step first. A parameter server ends immediately: otherwise its chief
        # would report that the run has ended.
        stopping = (link.stop_work(at_once=role != WORKER) for link in links)
        # All of them get the command before the first error is raised.
        for outcome in await asyncio.gather(*stopping, return_exceptions=True):
            if outcome is not None:
                raise outcome

    def allow_work(self, vms: Sequence[str]) -> None:
        """Allow these VMs to get work again, after `stop_work`."""
        for name in vms:
            if link := self._links.get(name):
                link.allow_work()

    def advance_machine_changes(self) -> None:
        """Take the next step for VMs whose machine type changes."""
        self._restarts.advance()

    # ---------------------------------------------------------------- polls

    async def poll(self) -> None:
        """Poll the list of VMs every five seconds, and immediately when a link breaks.

        Runs until cancelled.
        """
        while True:
            asked = now()
            began = time.monotonic()
            try:
                if self._credentials.refused:
                    await self._access.renew()
                found = await self._listed()
            except CloudError as error:
                self._silent.polled(began, time.monotonic(), answered=False)
                await self._report_failure("poll", error)
            else:
                self._silent.polled(began, time.monotonic(), answered=True)
                self._recorder.note("poll", "")
                self._credentials.accept()
                await self._read_emulator_state()
                listed = {vm_name(self._spec, vm.name): vm for vm in found}
                self._reconcile(listed, asked, await self._endings(listed))
            if self._credentials.refused:
                await asyncio.sleep(self._credentials.next_pause())
                continue
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._link_lost.wait()
            except TimeoutError:
                continue
            finally:
                self._link_lost.clear()

    async def _listed(self, *, whole: bool = False) -> list[Vm]:
        """Return the VMs of the cluster that Compute Engine lists.

        Parameters
        ----------
        whole
            Whether all zones that the cluster may use have to answer, or only those with VMs. VMs
            of all zones are listed in both cases.

        Raises
        ------
        CloudError
            UnreachableError if one of these zones does not answer.
        """
        zones = {vm.zone for vm in self._state.living}
        if whole:
            zones = {vm.zone for vm in self._state.vms.values()}.union(self._spec.all_zones)
        found = await self._access.engine.list(labels(self._spec), within=zones)
        if self._spec.id:
            return found
        # Without an id, the labels are a name and an owner, and an earlier cluster may have both.
        return [vm for vm in found if vm_name(self._spec, vm.name) in self._state.vms]

    async def _read_emulator_state(self) -> None:
        """Read the clock of the emulator, and which VMs the provider wants back.

        On Google the clock is that of this machine, and no VMs are wanted back.
        """
        try:
            clock, wanted_back = await self._access.weather()
        except CloudError as error:
            # The next poll reopens the emulator, and reads this again.
            log.warning("%s", error)
            return
        if clock != self._state.clock:
            self._recorder.record(events.ClusterClock(anchors=clock.anchors))
        self._report_wanted_back(wanted_back)

    def _reconcile(
        self, found: Mapping[str, Vm], asked: float, endings: Mapping[str, datetime]
    ) -> None:
        """Record how the list of VMs differs from the journal.

        Parameters
        ----------
        found
            The listed VMs, by their names in the cluster.
        asked
            When the list was requested, in seconds since 1970.
        endings
            When VMs that are gone began to stop, by id.
        """
        unanswered: list[VmState] = []
        for vm in self._state.living:
            if vm.name in self._tasks or f"delete {vm.name}" in self._tasks:
                continue
            # A machine change stops and starts the VM: the list may show it before the start.
            if vm.change or asked <= vm.restarted_at:
                continue
            if not vm.running_at:
                unanswered.append(vm)
            else:
                self._reconcile_running(vm, found.get(vm.name), asked, endings)
        self._resume_requests(unanswered)
        self._record_late_starts(found)
        living = {vm.name for vm in self._state.living}
        for name, vm in found.items():
            # A VM that is gone for the journal but listed, such as a stopped one, still costs
            # money.
            if name in living or name == controller_vm():
                continue
            if name not in self._tasks and f"delete {name}" not in self._tasks:
                self._tasks.do(f"remove {name}", partial(self._remove, name, vm))

    def _reconcile_running(
        self, vm: VmState, seen: Vm | None, asked: float, endings: Mapping[str, datetime]
    ) -> None:
        """Record how a VM that runs by the journal is listed; `seen` is None if it is missing."""
        if seen and seen.status == "STOPPING":
            transient = vm.provisioning_model != "standard"
            if transient and vm.state != "leaving" and self._notice_is_due(vm.name):
                self._recorder.record(events.VmPreemptionNotice(vm=vm.name))
        elif seen and seen.status == "RUNNING" and seen.share != vm.share:
            self._record_share(vm, seen.share)
        elif (seen is None or seen.status in _ENDED) and vm.running_at < asked:
            if vm.state == "leaving":
                signal = "notice"
            elif vm.name in self._silent:
                signal = "ssh"
            else:
                signal = "api"
            stopping = self._local_time(endings.get(vm.vm_id))
            self._recorder.record(events.VmRevoked(vm=vm.name, signal=signal, stopping=stopping))

    def _notice_is_due(self, name: str) -> bool:
        """Return whether the list has to stand in for the agent's report of a preemption notice.

        The agent knows the exact time of the notice, so it gets a few seconds to report it.
        """
        since = self._stopping_since.setdefault(name, time.monotonic())
        return name not in self.answering or time.monotonic() - since >= _NOTICE_SECONDS

    def _record_share(self, vm: VmState, share: Share) -> None:
        """Record that the provider reduced the resources of a VM, or restored some of them."""
        reduced = share.cpu < vm.share.cpu or share.network < vm.share.network
        kind = events.VmDeflated if reduced else events.VmInflated
        event = kind(
            vm=vm.name,
            cpu=share.cpu,
            network=share.network,
            cpu_before=vm.share.cpu,
            network_before=vm.share.network,
        )
        self._recorder.record(event)

    # ---------------------------------------------------------------- times for the bill

    async def _endings(self, found: Mapping[str, Vm]) -> dict[str, datetime]:
        """Return when VMs that are gone began to stop, by id.

        This machine may have slept since then, and the bill ends at that time.
        """
        zones = {
            vm.zone
            for vm in self._state.living
            if vm.running_at
            and not vm.change
            and f"delete {vm.name}" not in self._tasks
            and (vm.name not in found or found[vm.name].status in _ENDED)
        }
        endings: dict[str, datetime] = {}
        for zone in sorted(zones):
            endings |= await self._endings_in(zone)
        return endings

    async def _endings_in(self, zone: str) -> dict[str, datetime]:
        """Return when VMs of a zone began to stop, by id; empty if that is unknown."""
        try:
            return await self._access.engine.endings(zone)
        except CloudError as error:
            # Only the bill is less exact.
            log.warning("the times at which VMs of %s ended are unknown: %s", zone, error)
            return {}

    async def _stopping_time(self, vm: VmState) -> int:
        """Return when the VM began to stop (`_local_time`)."""
        endings = await self._endings_in(vm.zone)
        return self._local_time(endings.get(vm.vm_id))

    def _local_time(self, moment: datetime | None) -> int:
        """Return a time of Compute Engine by this machine's clock, in ns since 1970; 0 for None."""
        if moment is None:
            return 0
        return round((moment.timestamp() + self._access.engine.ahead) * 1e9)

    async def _record_unseen_life(self, name: str) -> int:
        """Record that a VM ran although no poll showed it, and return when it began to stop.

        It may have run while the controller was killed or this machine slept, and costs money.
        Returns 0 if it did not run, or if its life is unknown.
        """
        vm = self._state.vms[name]
        try:
            life = await self._access.engine.life(vm.zone, instance_name(self._spec, name))
        except CloudError as error:
            # Only the bill is less exact.
            log.warning("whether %s ran is unknown: %s", name, error)
            return 0
        if life is None:
            return 0
        started = self._local_time(life.started)
        # This is the life of a VM that an earlier cluster had under the same name.
        if started < vm.requested_at * 1e9:
            return 0
        self._recorder.record(events.VmRunning(vm=name, address="", vm_id=life.id, started=started))
        return self._local_time(life.stopping)

    def _record_late_starts(self, found: Mapping[str, Vm]) -> bool:
        """Record that VMs run whose requests were given up: they cost money until they are deleted.

        Returns whether there are any. The rule of `VmRunning` counts them as failed, and `decide`
        deletes failed VMs. Without an address they get no link, and so no work.
        """
        late = [
            name for name, vm in found.items() if vm.status == "RUNNING" and self._never_ran(name)
        ]
        for name in late:
            started = self._local_time(found[name].last_start)
            self._recorder.record(
                events.VmRunning(vm=name, address="", vm_id=found[name].id, started=started)
            )
        return bool(late)

    def _never_ran(self, name: str) -> bool:
        """Return whether a VM was requested and, by the journal, is gone without having run."""
        vm = self._state.vms.get(name)
        if vm is None or vm.living or vm.running_at:
            return False
        return name not in self._tasks

    # ---------------------------------------------------------------- deletion

    def delete(self, vm: VmState, reason: str) -> None:
        """Delete a VM once its request is answered; `reason` is a clause.

        The VM of this process is only recorded as deleted: `verify_gone` deletes it with the last
        call of this process.
        """
        if vm.name == controller_vm():
            self._recorder.record(events.VmDeleted(vm=vm.name, reason=reason))
            return
        if self._credentials.refused:
            self._credentials.report()
            return
        if vm.change:
            self._restarts.cancel(vm.name)
        self._tasks.do(f"delete {vm.name}", partial(self._delete, vm, reason))

    async def _delete(self, vm: VmState, reason: str) -> None:
        # A VM whose request is not answered yet cannot be deleted. Requests time out after ten
        # minutes; a deletion that fails then is decided again.
        await self._tasks.finished(vm.name, timeout=600)
        link = self._links.get(vm.name)
        if link and vm.role == WORKER:
            await link.dismiss()
        with self._credentials.noting_refusal():
            try:
                name = instance_name(self._spec, vm.name)
                begun = await self._access.engine.delete(vm.zone, name, labels(self._spec))
            except CloudError:
                if link and vm.role == WORKER:
                    link.allow_work()
                # The deletion is decided again as soon as this task has failed. While the task
                # sleeps it keeps its key, so the next attempt waits as long.
                await asyncio.sleep(_RETRY_SECONDS)
                raise
            latest = self._state.vms[vm.name]
            if latest.living and not latest.running_at:
                stopping = await self._record_unseen_life(vm.name)
            elif begun:
                stopping = self._local_time(begun)
            else:
                # It was already stopping, or gone.
                stopping = await self._stopping_time(latest)
            self._recorder.record(events.VmDeleted(vm=vm.name, reason=reason, stopping=stopping))

    async def _remove(self, name: str, vm: Vm) -> None:
        """Delete a listed VM that is gone by the journal, or that the journal does not have."""
        with self._credentials.noting_refusal():
            await self._access.engine.delete(vm.zone, vm.name, labels(self._spec))
            # It may have run before it was deleted.
            if self._never_ran(name):
                await self._record_unseen_life(name)

    async def preempt(self, vm: VmState, seconds: float) -> None:
        """Ask Compute Engine to preempt a VM, `seconds` from now."""

        async def preempt_later() -> None:
            await asyncio.sleep(seconds)
            instance = vm.vm_id or instance_name(self._spec, vm.name)
            await self._access.engine.preempt(vm.zone, instance)

        if seconds > 0:
            self._tasks.do(f"revoke {vm.name}", preempt_later)
        else:
            await preempt_later()

    async def verify_gone(self) -> None:
        """Record the cluster as deleted once Compute Engine lists no VM of it in any zone.

        Deletes what is still listed. A controller on one of the VMs deletes that VM last, and ends
        with it. Before that it uploads its journal, if the bucket answers.
        """
        if self._credentials.refused:
            self._credentials.report()
            await asyncio.sleep(_RETRY_SECONDS)
            return
        try:
            left = await self._listed(whole=True)
            if self._record_late_starts({vm_name(self._spec, vm.name): vm for vm in left}):
                # The journal has them as running again: they are deleted as all others.
                return
            for vm in sorted(left, key=self._runs_this_process):
                if self._runs_this_process(vm) and not await self._upload_journal():
                    # Only this VM has the events since the last backup, so the upload is tried once
                    # more. After that, a VM that costs money is worse than a journal without them.
                    await asyncio.sleep(_RETRY_SECONDS)
                    await self._upload_journal()
                await self._access.engine.delete(vm.zone, vm.name, labels(self._spec))
            if not left and self._spec.firewall:
                await self._access.unprotect()
        except CloudError as error:
            await self._report_failure("deleting", error)
            await asyncio.sleep(_RETRY_SECONDS)
            return
        if not left:
            self._recorder.record(events.ClusterDeleted())

    def _runs_this_process(self, vm: Vm) -> bool:
        own = controller_vm()
        return bool(own) and vm.name == instance_name(self._spec, own)

    # ---------------------------------------------------------------- failures and backups

    async def _report_failure(self, source: str, error: CloudError) -> None:
        """Report a failed request as a trouble, and reconnect to an API that does not answer."""
        if isinstance(error, CredentialsError):
            self._credentials.refuse(error)
            return
        self._recorder.note(source, str(error))
        if isinstance(error, UnreachableError):
            try:
                await self._access.reopen()
            except CloudError as failure:
                log.warning("%s", failure)

    async def backup_journal(self) -> None:
        """Upload the journal to the bucket every minute: the VM of this process may be lost.

        Runs until cancelled.
        """
        uploaded = 0
        while True:
            # Events that are recorded during the upload are not in it.
            seq = self._state.seq
            if uploaded != seq and await self._upload_journal():
                uploaded = seq
            await asyncio.sleep(_BACKUP_SECONDS)

    async def _upload_journal(self) -> bool:
        """Upload the journal to the bucket, and return whether that succeeded."""
        store = cluster_store(self._spec)
        if not store or not self.storage:
            return False
        bucket, path = split(store)
        target = f"{path}{layout.JOURNAL}"
        try:
            await self.storage.upload(bucket, target, self._directory / layout.JOURNAL)
        except CloudError as error:
            # The deletion of VMs, which cost money, does not wait for the bucket.
            log.warning("the journal is not in the bucket: %s", error)
            return False
        return True


def _cause(error: CloudError) -> str:
    """Return the name that the journal has for a refusal of Compute Engine."""
    if isinstance(error, QuotaError) and error.everywhere:
        return QUOTA_EVERYWHERE
    return _CAUSES.get(type(error), "other")
