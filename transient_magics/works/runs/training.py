"""One run on the controller, from its declaration to its results on this machine.

The chief on ps-0 owns the training. The controller only provides machines: it has the user's code
checked, sends the run's folder, assigns the parameter servers and then the workers, copies the
chief's events to the journal and its metrics to the run's folder, and copies each checkpoint as it
is written. If the run has a place in a bucket, the chief uploads checkpoints itself, and only those
that it could not upload are copied here. After a restart all of it is done again from the journal:
events that are there already are recognised by kind and time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...cloud import CloudStorage
from ...controller.host import controller_vm
from ...controller.packages import gather
from ...controller.trust import RejectedLines
from ...controller.vms.link import Link, Work
from ...errors import CloudError, ForeignError, RemoteError, RoomError, TrainingError
from ...journal import Event, RunState, VmState, events, now, read
from ...protocol import jsonl, layout
from ...protocol.agent_commands import DISPATCHER, Assignment, Evaluate, Role, Save
from ...protocol.run import RunSpec
from ...protocol.vm_events import (
    TrainEvaluated,
    TrainFailed,
    TrainFinished,
    TrainProgress,
    from_chief,
)
from ...remote import Allowance
from ...spec import CONTROLLER, PARAMETER_SERVER, PREPARATION, WORKER
from ...spec.image import has_gpu
from .artifacts import MOST_METRICS, Results, thin_metrics
from .bucket_token import Mint, TokenKeeper, only_own, tokens
from .checking import counts, declared_by_fit, found_alike, reason_against
from .chief_line import ChiefLine
from .sending import files_of, send_newest, send_rest
from .shipments import CHECKPOINTS, INTO_BUCKET_SECONDS, SHIP_SECONDS, Shipments

log = logging.getLogger(__name__)

PARAMETER_SERVER_PORT = 2222
CHIEF_PORT = 2221
"""The port of the first run; each further one at the same time has the port two higher."""
_DISPATCHER_PORT = 2500
"""The port of tf.data service; each further run at the same time has the next one."""
_RETRY_SECONDS = 2.0
_ROOM_SECONDS = 5.0
_NOT_BUILT = (
    "--pip-build would run code of the packages on the controller's VM: build wheels on "
    "your machine (pip wheel) and name those with --pip"
)
_CATCH_UP_SECONDS = 3.0
_POLL_SECONDS = 0.1
_CONNECTED_WITHIN = 10.0
_MOST_GIVEN_UP = 3
"""VMs on which a worker kept ending before any step, after which the run is at fault."""
_MOST_EVENTS = 64 * 2**20
"""The most bytes of events that are taken from a run's chief."""
_LINES = "chief"
_LAST = "last checkpoint"
_STEPS_UNKNOWN = (
    "model.fit does not say how many steps an epoch has: its data have no known length. "
    "Give it steps_per_epoch, or the run --train-steps."
)
_HOME = "results"
_BUCKET = "results in bucket"
_TOKEN = "token"
_PACKAGES = "packages"
_PRESENT = (_LINES, CHECKPOINTS, _TOKEN, _PACKAGES)
"""Sources of trouble that end with the run; all others remain until another run begins."""


class Training:
    """The conduct of one run.

    Parameters
    ----------
    run
        The run, with the spec of its `run.json` here.
    folder
        Its folder on this machine.
    record
        Appends an event to the journal.
    link
        Returns the link of a VM; None: not there yet.
    changed
        Asks for another call of `give`.
    store
        The run's place in a bucket; None without one.
    storage
        Returns the client of that bucket.
    mint
        Creates the tokens for the chief's VM.
    note
        Takes a problem: its source and a sentence, empty once it is solved.
    checked
        Returns the runs that have passed their checks.
    own
        Whether the run was declared here. The code of other runs came from a VM: it does not run
        here without the user's agreement, and no bucket that it names is opened.
    """

    def __init__(
        self,
        run: RunState,
        folder: Path,
        record: Callable[[Event], object],
        link: Callable[[str], Link | None],
        changed: Callable[[], None],
        store: str | None = None,
        storage: Callable[[], CloudStorage | None] = lambda: None,
        mint: Mint | None = None,
        note: Callable[[str, str], None] = lambda source, text: None,
        *,
        checked: Callable[[], Iterable[RunState]] = tuple,
        own: bool = True,
    ) -> None:
        self.name = run.name
        self.folder = folder
        self._record = record
        self._link = link
        self._changed = changed
        self._trouble = note
        self._chief = ChiefLine(self.name, link)
        self._chief_at = ""
        self._events = Allowance(_MOST_EVENTS)
        self._metrics = Allowance(MOST_METRICS, _size(folder / layout.METRICS))
        self._results = Results(store, storage)
        self._shipments = Shipments(folder, self._chief, note, to_bucket=bool(store))
        self._token: TokenKeeper | None = None
        reached = run.spec if own else only_own(store, run.spec)
        if reached != run.spec:
            denied = "its VMs get no token for places of other clusters"
            note(_TOKEN, f"{run.name} was declared elsewhere: {denied}")
        if mint and (mints := tokens(mint, store, reached)):
            self._token = TokenKeeper(
                layout.run_on_vm(self.name), mints, self._chief.connection, note
            )
        self._token_awaited = self._token is not None
        self._spec = run.spec
        self._others = checked
        self._packages = run.spec.pip
        self._may_build = run.spec.pip_build
        self._model = run.spec.model
        self._to_build = run.spec.check
        self._passed = bool(run.started_at) or run.checked or not own
        # A controller elsewhere gathered its packages there, and no code comes here from a VM.
        lacking = (
            own
            and not controller_vm()
            and bool(run.spec.pip)
            and not (folder / layout.WHEELS).exists()
        )
        self._checked = self._passed and not lacking
        self._unreported = run.spec.check and not (run.checked or run.started_at)
        self._since = int(run.declared_at * 1e9)
        self._refusals = RejectedLines(f"The chief of {run.name}", partial(note, _LINES))
        self._recorded = {
            (event.kind, event.time) for event in read(folder.parent.parent / layout.JOURNAL)
        }
        self._server: str | None = None
        self._begun = asyncio.Event()
        self._given_up: set[str] = set()
        self._over: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        # Whether it was stopped and saved its last checkpoint then.
        self._saved = False
        # Whether its results are kept; those of a pruned trial are not.
        self._keeps_results = True

    def give(
        self, vms: list[VmState], servers: int, port: int = 0, ahead: Sequence[VmState] = ()
    ) -> None:
        """Prepare the VMs and, once the check has passed, assign those that are ready.

        It is called at every change.

        Parameters
        ----------
        vms
            The VMs of the parameter servers and of the run's own workers.
        servers
            The number of parameter servers.
        port
            The number of the run's ports there.
        ahead
            VMs on which a worker is prepared for later.
        """
        if self._over.done():
            return
        self._begun.set()
        self._expect([*vms, *ahead], warm=not self._checked)
        self.find_server(vms)
        if self._checked and not self._token_awaited:
            self._assign_all(vms, servers, port, ahead=ahead)

    def stand_by(self, vms: Sequence[VmState], servers: int, port: int) -> None:
        """Prepare VMs at the destination of a move, except for the values of the model.

        If the parameter servers move, the VMs get their assignments already and wait for their
        start. Else they only import what the training needs: workers would begin, because the chief
        lives.
        """
        new = sum(vm.role == PARAMETER_SERVER and vm.state == "ready" for vm in vms) == servers
        self._expect(vms, warm=not new)
        if new:
            self._assign_all(vms, servers, port, standby=True)

    def unprepared(self, vms: Iterable[VmState]) -> Iterator[str]:
        """Yield the VMs that do not have everything ready."""
        for vm in vms:
            link = self._link(vm.name)
            if vm.role != CONTROLLER and not (link and link.prepared(self.name)):
                yield vm.name

    def _expect(self, vms: Iterable[VmState], *, warm: bool) -> None:
        for vm in vms:
            if vm.role != CONTROLLER and (link := self._link(vm.name)):
                link.expect(
                    self.name, _role(vm), own=not self._model, warm=warm and vm.role != PREPARATION
                )

    def _assign_all(
        self,
        vms: Sequence[VmState],
        servers: int,
        port: int,
        *,
        standby: bool = False,
        ahead: Sequence[VmState] = (),
    ) -> None:
        """Assign its part to each VM that is ready, once all parameter servers are."""
        ready = [vm for vm in vms if vm.living and vm.state in ("ready", "leaving")]
        by_slot = {vm.slot: vm for vm in ready if vm.role == PARAMETER_SERVER}
        if len(by_slot) < servers:
            return
        addresses = tuple(
            f"{by_slot[slot].address}:{PARAMETER_SERVER_PORT + 2 * port}" for slot in range(servers)
        )
        chief = f"{by_slot[0].address}:{CHIEF_PORT + 2 * port}"
        dispatcher = ""
        if self._spec.prep:
            dispatcher = f"{by_slot[0].address}:{_DISPATCHER_PORT + port}"
        for slot, vm in by_slot.items():
            given = Assignment(
                self.name,
                "ps",
                vm.name,
                vm.address,
                addresses,
                chief,
                slot,
                dispatcher=dispatcher,
                **_fit_of(self._spec),
            )
            if slot:
                files = self._workers_files
            else:
                files = self._next_chiefs_files if standby else self._chiefs_files
            self._assign(vm.name, Work(given, files, standby))
        if not standby:
            self._chief.leads_to(by_slot[0].name)
            self._chief_at = chief
        for vm in (*ready, *ahead):
            if vm.role in (WORKER, PREPARATION) and vm.state == "ready":
                given = Assignment(
                    self.name,
                    _role(vm),
                    vm.name,
                    vm.address,
                    addresses,
                    chief,
                    dispatcher=dispatcher,
                    gpu=vm.accelerator if has_gpu(vm.accelerator) else "",
                    shares=self._spec.study if self._spec.share_input else "",
                    **_fit_of(self._spec),
                )
                self._assign(vm.name, Work(given, self._workers_files, standby, vm in ahead))

    def find_server(self, vms: list[VmState]) -> None:
        """Find the VM for the check, also of a run that waits; called at every change."""
        first = (
            vm.name for vm in vms if (vm.role, vm.slot, vm.state) == (PARAMETER_SERVER, 0, "ready")
        )
        self._server = next(first, None)

    async def conduct(self) -> None:
        """Conduct the run until its end is in the journal and its results are here.

        A failed run does not raise: its failure is an event, too.
        """
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(self._check()),
                tasks.create_task(self._retried(self._follow_chief)),
                tasks.create_task(self._retried(self._follow_metrics)),
                tasks.create_task(self._shipments.keep_shipping()),
                tasks.create_task(self._keep_token()),
            ]
            last = await self._over
            for task in helpers:
                task.cancel()
        for source in _PRESENT:
            self._trouble(source, "")
        if self._chief.has_chief:
            await self._bring_home()
        await thin_metrics(self.folder)
        await self._keep_results(last)
        self._record(last)

    async def save(self) -> None:
        """Save now and upload or copy. Raises RemoteError, TrainingError or OSError."""
        await self._shipments.save()

    async def caught_up(self) -> None:
        """Wait until everything is here that a chief that has ended wrote.

        It is sent to the VM of the next chief, which continues from it. After a few seconds the
        rest is lost.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                while True:
                    if await self._has_all_lines():
                        return
                    await asyncio.sleep(_POLL_SECONDS)

    async def send_on(self, vm: str) -> None:
        """Send the newest checkpoint, events and metrics to the VM where the next chief waits.

        Raises RemoteError or OSError.
        """
        if link := self._link(vm):
            # The link may be that of a VM that is gone.
            async with asyncio.timeout(_CONNECTED_WITHIN):
                connection = await link.connection()
            there = layout.run_on_vm(self.name)
            await send_newest(
                connection, self.folder / layout.CHECKPOINTS, f"{there}/{layout.CHECKPOINTS}"
            )
            for name in (layout.EVENTS, layout.METRICS):
                await send_rest(connection, self.folder / name, f"{there}/{name}")

    async def _has_all_lines(self) -> bool:
        try:
            return all([await self._has_all(name) for name in (layout.EVENTS, layout.METRICS)])
        except (RemoteError, OSError, ValueError) as error:
            log.warning("%s: how much its chief wrote is not known: %s", self.name, error)
            return False

    async def _has_all(self, name: str) -> bool:
        connection = await self._chief.connection()
        size = await connection.run(f"wc -c < {layout.run_on_vm(self.name)}/{name} || echo 0")
        return _size(self.folder / name) >= int(size)

    async def ask_chief(self, command: Save | Evaluate) -> None:
        """Send the chief a command. Raises RemoteError."""
        await self._chief.ask(command)

    @property
    def ending(self) -> bool:
        """Whether the run is over; results may still be copied."""
        return self._over.done()

    async def stop(self, state: Callable[[], RunState], *, save: bool = True) -> None:
        """Stop the run where it is, with a last checkpoint if possible.

        Parameters
        ----------
        state
            Returns the present state of the run.
        save
            Whether the last checkpoint and the results are kept; not those of a pruned trial.
        """
        self._keeps_results = save
        # A run that has made all its steps has written its last checkpoint.
        if save and state().phase == "running" and not state().made:
            try:
                await self.save()
                self._saved = not self._over.done()
            except RoomError as error:
                # The checkpoint stays on the VM and is copied at the end, once there is room.
                log.warning("%s: the last checkpoint is not here yet: %s", self.name, error)
            except (RemoteError, TrainingError, OSError) as error:
                self._report_no_checkpoint(state(), error)
        run = state()
        # Progress is reported only now and then, so the last checkpoint may be ahead of it.
        step = max(run.step, run.checkpoint_step or 0)
        seconds = now() - run.started_at if run.started_at else 0.0
        self._end(
            TrainFinished(
                run=self.name,
                step=step,
                loss=run.loss,
                seconds=seconds,
                checkpoint=run.checkpoint,
                stopped=True,
            )
        )

    def _report_no_checkpoint(self, run: RunState, error: Exception) -> None:
        log.warning("%s: no last checkpoint: %s", self.name, error)
        if self._over.done():
            return
        last = "no checkpoint"
        if run.checkpoint_step is not None:
            last = f"that of step {run.checkpoint_step:,}"
        stopped = (
            f"{self.name} is stopped at step {run.step:,} without a checkpoint of it ({error})"
        )
        self._trouble(_LAST, f"{stopped}; there is {last}")

    def fail(self, reason: str) -> None:
        """End the run as failed. `reason`: one sentence."""
        self._end(TrainFailed(run=self.name, reason=reason))

    def give_up(self, vm: str, role: str, output: str) -> bool:
        """Return whether to replace a VM on which a process keeps ending; else the run fails.

        A run fails with its parameter server, and after several workers in a row that do not
        train. `output`: the last output of the process.
        """
        self._given_up.add(vm)
        if role in (PARAMETER_SERVER, DISPATCHER):
            process = "parameter server" if role == PARAMETER_SERVER else role
            self.fail(f"The {process} on {vm} keeps ending: {output}")
        elif len(self._given_up) >= _MOST_GIVEN_UP:
            processes = "Preparation VMs" if role == PREPARATION else "Workers"
            self.fail(f"{processes} keep ending, the last one on {vm}: {output}")
        return not self._over.done()

    def _end(self, event: Event) -> None:
        if not self._over.done():
            self._over.set_result(event)
        self._shipments.wait_no_more()

    async def _check(self) -> None:
        if not self._checked:
            if (
                self._packages
                and self._may_build
                and controller_vm()
                and not (self.folder / layout.WHEELS).exists()
            ):
                self.fail(_NOT_BUILT)
                return
            if (lacking := await self._gathered()) and not self._passed:
                self.fail(lacking)
                return
            if lacking:
                # The run continues with the VMs that have its packages.
                what = f"New VMs of {self.name} have none of its packages: {lacking}"
                self._trouble(_PACKAGES, what)
            others = tuple(self._others())
            to_build = self._to_build and not self._passed
            to_build = to_build and not await asyncio.to_thread(
                found_alike, self.folder, self._spec, others
            )
            if to_build and (
                reason := await reason_against(self.folder, self._server_link, self._chiefs_files)
            ):
                self.fail(reason)
                return
        if self._unreported:
            counted = counts(self.folder)
            sizes = {
                name: max(0, int(counted.get(name, 0))) for name in ("parameters", "variable_bytes")
            }
            fit = declared_by_fit(self.folder)
            if not (self._spec.train_steps or fit.steps):
                self.fail(_STEPS_UNKNOWN)
                return
            self._spec = fit.applied(self._spec)
            self._record(events.TrainChecked(run=self.name, **sizes, **asdict(fit)))
        self._checked = True
        self._changed()

    async def _gathered(self) -> str:
        """Download the packages of the run. Return why that failed; empty if it did not."""
        try:
            await gather(self._packages, self.folder / layout.WHEELS, build=self._may_build)
        except TrainingError as error:
            return str(error)
        except OSError as error:
            return f"The packages could not be gathered: {error}"
        return ""

    async def _keep_token(self) -> None:
        """Keep tokens for the bucket fresh on the chief's VM.

        The chief begins with what is in the bucket, so it gets its assignment once there is a
        token.
        """
        if self._token:
            await self._token.renew()
            if not self._begun.is_set():
                # A run may wait for hours, until the first token has expired.
                await self._begun.wait()
                await self._token.renew()
                await self._bring(self._token)
            self._token_awaited = False
            self._changed()
            await self._chief.until_known()
            await self._token.keep()

    async def _bring(self, token: TokenKeeper) -> None:
        """Send a fresh token to the VM of the check, which has the other files of the run."""
        link = self._server_link()
        try:
            if link and link.answering:
                connection = await link.bring(self.name, self._chiefs_files)
                await connection.put_files(token.files, below=layout.run_on_vm(self.name))
        except (RemoteError, OSError) as error:
            # It is sent again when the chief has its assignment.
            log.warning("%s: its token is not on the VM yet: %s", self.name, error)

    async def _retried(self, follow: Callable[[], Awaitable[None]]) -> None:
        """Repeat `follow` after errors of the network or the disk, until it ends."""
        while True:
            try:
                return await follow()
            except ForeignError as error:
                # The VM sent more than is accepted.
                self._trouble(_LINES, str(error))
                if follow == self._follow_chief:
                    # Without its events the end of the run would not be noticed.
                    self.fail(str(error))
                return None
            except (RemoteError, OSError) as error:
                log.warning("%s: %s", self.name, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _follow_chief(self) -> None:
        await self._chief.until_known()
        # With the connection, a chief on another VM than before has the files that are here.
        await self._chief.connection()
        # The file of events is written again from the first line.
        (self.folder / layout.EVENTS).unlink(missing_ok=True)
        async for line in self._chief.lines(layout.EVENTS, 0, self._events):
            try:
                event = from_chief(line, self.name, self._since, int(now() * 1e9))
            except ValueError as error:
                self._refusals.add(line, error)
                continue
            # A copy for the VM of a new parameter server; the journal has what matters.
            with suppress(OSError):
                jsonl.append_lines(self.folder / layout.EVENTS, line + b"\n")
            if event.kind in ("train.finished", "train.failed"):
                self._end(replace(event, time=await self._when(event)))
                return
            self._note(event)
            if (event.kind, event.time) not in self._recorded:
                self._recorded.add((event.kind, event.time))
                self._record(event)

    async def _when(self, event: Event) -> int:
        """Return the time of an event by this machine's clock, in ns.

        The idle time of a cluster counts from the end of its run.
        """
        ahead = await self._chief.ahead()
        there = event.time - int(ahead * 1e9)
        return max(self._since, min(there, int(now() * 1e9)))

    def _note(self, event: Event) -> None:
        self._shipments.note(event)
        match event:
            case TrainProgress() if event.steps_per_second > 0:
                self._given_up.clear()
            case TrainEvaluated():
                self._results.metrics = dict(event.metrics)
            case _:
                pass

    async def _follow_metrics(self) -> None:
        path = self.folder / layout.METRICS
        async for lines in self._chief.blocks(layout.METRICS, _size(path), self._metrics):
            try:
                jsonl.append_lines(path, lines)
            except OSError as error:
                log.warning("%s: metrics are lost: %s", self.name, error)

    async def _bring_home(self) -> None:
        """Copy the last checkpoint and the rest of the metrics, within a time limit.

        The chief's VM may be gone. Without room on this machine it waits: after the end of the run
        the VMs may be deleted.
        """
        waited = False
        while True:
            try:
                # Raises where the VM is gone: the next one has only what is here.
                self._chief.link()
                async with asyncio.timeout(SHIP_SECONDS):
                    await self._shipments.ship_the_last(saved=self._saved)
                    connection = await self._chief.connection()
                    measured = f"{layout.run_on_vm(self.name)}/{layout.METRICS}"
                    if await connection.exists(measured):
                        await connection.get(
                            measured, self.folder / layout.METRICS, most=MOST_METRICS
                        )
                    files = f"{layout.run_on_vm(self.name)}/{layout.FILES_ARCHIVE}"
                    if self._spec.callbacks and await connection.exists(files):
                        archive = self.folder / layout.FILES_ARCHIVE
                        await connection.get(files, archive, most=layout.MOST_FILES_BYTES)
                if waited:
                    self._trouble(_HOME, "")
                return
            except RoomError as error:
                if not self._keeps_results:
                    return
                waited = True
                self._trouble(_HOME, f"The results of {self.name} wait for room here: {error}")
                await asyncio.sleep(_ROOM_SECONDS)
            except (RemoteError, OSError) as error:
                log.warning("%s: not all results are here: %s", self.name, error)
                self._trouble(_HOME, f"Not all results of {self.name} could be copied: {error}")
                return

    async def _keep_results(self, last: Event) -> None:
        try:
            async with asyncio.timeout(INTO_BUCKET_SECONDS):
                await self._results.keep(self.folder, last)
        except (CloudError, OSError) as error:
            log.warning("%s: not all results are in the bucket: %s", self.name, error)
            what = f"Not all results of {self.name} could be uploaded to the bucket: {error}"
            self._trouble(_BUCKET, what)

    def _assign(self, vm: str, work: Work) -> None:
        if link := self._link(vm):
            link.assign(work)

    def _server_link(self) -> Link | None:
        """Return the link of the VM for the check, if any."""
        if self._server:
            return self._link(self._server)
        return None

    def _chiefs_files(self) -> Mapping[str, bytes | Path]:
        return {
            **files_of(self.folder, with_results=True),
            **(self._token.files if self._token else {}),
        }

    def _next_chiefs_files(self) -> Mapping[str, bytes | Path]:
        return {**self._chiefs_files(), layout.STANDBY: self._chief_at.encode()}

    def _workers_files(self) -> Mapping[str, bytes | Path]:
        return files_of(self.folder, with_results=False)


def _size(path: Path) -> int:
    if path.exists():
        return path.stat().st_size
    return 0


def _fit_of(spec: RunSpec) -> dict[str, Any]:
    """Return the fields of an assignment that repeat what the cell's `model.fit` declared.

    A run.json that leaves the steps to the cell is completed with them on the VM.
    """
    return {
        "steps": spec.train_steps,
        "epoch_steps": spec.epoch_steps,
        "first_epoch": spec.first_epoch,
        "eval_steps": spec.eval_steps or 0,
        "keep_best": spec.keep_best,
        "callbacks": spec.callbacks,
        "phase_steps": spec.phase_steps,
    }


def _role(vm: VmState) -> Role:
    if vm.role == PARAMETER_SERVER:
        return "ps"
    return "prep" if vm.role == PREPARATION else "worker"
