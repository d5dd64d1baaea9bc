"""One run, from its declaration to its results at home.

The chief on ps-0 owns the training; this side only gives it machines: has the user's code checked,
pushes the run's folder, assigns the parameter servers and then the workers, copies what the chief
writes down into the journal and the run's metrics, and brings every checkpoint home as it is
written. Where the run has a place in a bucket, the chief ships checkpoints there itself, and only
what it could not ship comes here. All of it can be done again from the journal after a restart:
events that are in the journal already are recognised by their kind and time.
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
"""Of the first run; each further one at the same time has those that lie two, four, ... higher."""
_DISPATCHER_PORT = 2500
"""Of tf.data service; of each further run at the same time the next."""
_TRY_AGAIN_SECONDS = 2.0
_ROOM_SECONDS = 5.0
_NOT_BUILT = (
    "--pip-build would run the packages' own code beside the controller, which has a VM for itself: build wheels on "
    "your machine (pip wheel) and name those with --pip"
)
_CATCH_UP_SECONDS = 3.0
_LOOK_SECONDS = 0.1
_CONNECTED_WITHIN = 10.0
_MOST_GIVEN_UP = 3
"""So many VMs on which the worker kept ending, without a step of anybody, and it is the run's
fault.
"""
_MOST_EVENTS = 64 * 2**20
"""Bytes of events of a run that are taken from its chief."""
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
"""Sources of trouble that are over with the run; the others are told until another one begins."""


class Training:
    """The conduct of one run.

    `record` appends to the journal, `link` gives the link of a VM (None: not there yet), `changed`
    asks for a call of `give`. `store` is the run's place in a bucket (None: it has none), `storage`
    the way to it, `mint` makes the tokens for the chief's VM, `note` takes what is in the way: its
    source and a sentence, or nothing any more. The spec of `run` is that of its `run.json` here.
    `checked` gives the runs that have passed their checks. Without `own` the code of `run` came
    from a VM: then none of it runs here, where nobody has agreed to it, and no place in a bucket
    that it names is opened.
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
        if own:
            reached = run.spec
        else:
            reached = only_own(store, run.spec)
        if reached != run.spec:
            note(
                _TOKEN,
                f"{run.name} was declared elsewhere: its VMs are given no token for places of other clusters",
            )
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
        self._to_tell = run.spec.check and not (run.checked or run.started_at)
        self._since = int(run.declared_at * 1e9)
        self._refusals = RejectedLines(f"The chief of {run.name}", partial(note, _LINES))
        self._known = {
            (event.kind, event.time) for event in read(folder.parent.parent / layout.JOURNAL)
        }
        self._server: str | None = None
        self._begun = asyncio.Event()
        self._given_up: set[str] = set()
        self._over: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._saved = False
        """Whether it ended as it was stopped, with what it saved then."""
        self._wanted = True
        """Whether somebody wants what it leaves: nobody does of a trial that was pruned."""

    def give(
        self, vms: list[VmState], servers: int, port: int = 0, ahead: Sequence[VmState] = ()
    ) -> None:
        """Have the VMs warm up and, once the check has passed, assign those that are ready; called
        at every change.

        `vms` are the parameter servers' and those of the run's own workers; `port` is the number of
        its ports there. On those that come `ahead` a worker is made ready.
        """
        if self._over.done():
            return
        self._begun.set()
        self._expect([*vms, *ahead], warm=not self._checked)
        self.look(vms)
        if self._checked and not self._token_awaited:
            self._assign_all(vms, servers, port, ahead=ahead)

    def stand_by(self, vms: Sequence[VmState], servers: int, port: int) -> None:
        """Have VMs that are rented where the cluster is to be get everything ready, but for the
        values of the model.

        Where the parameter servers go there, the VMs have the work that they will have, but for its
        beginning. Else they import what that takes: a chief that lives would let workers begin.
        """
        new = sum(vm.role == PARAMETER_SERVER and vm.state == "ready" for vm in vms) == servers
        self._expect(vms, warm=not new)
        if new:
            self._assign_all(vms, servers, port, standby=True)

    def unprepared(self, vms: Iterable[VmState]) -> Iterator[str]:
        """Which of them have not everything ready."""
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
        """Give each of the VMs that are ready its part, once all parameter servers are among them."""
        ready = [vm for vm in vms if vm.living and vm.state in ("ready", "leaving")]
        by_slot = {vm.slot: vm for vm in ready if vm.role == PARAMETER_SERVER}
        if len(by_slot) < servers:
            return
        addresses = tuple(
            f"{by_slot[slot].address}:{PARAMETER_SERVER_PORT + 2 * port}" for slot in range(servers)
        )
        chief = f"{by_slot[0].address}:{CHIEF_PORT + 2 * port}"
        if self._spec.prep:
            dispatcher = f"{by_slot[0].address}:{_DISPATCHER_PORT + port}"
        else:
            dispatcher = ""
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

    def look(self, vms: list[VmState]) -> None:
        """Know where the check can be made, also of a run that waits; called at every change."""
        first = (
            vm.name for vm in vms if (vm.role, vm.slot, vm.state) == (PARAMETER_SERVER, 0, "ready")
        )
        self._server = next(first, None)

    async def conduct(self) -> None:
        """Live until the run is over; then its end is in the journal and its results are here.
        Never raises for a run that failed: that is an event too.
        """
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(self._check()),
                tasks.create_task(self._again_and_again(self._follow_chief)),
                tasks.create_task(self._again_and_again(self._follow_metrics)),
                tasks.create_task(self._shipments.keep_shipping()),
                tasks.create_task(self._keep_token()),
            ]
            last = await self._over
            for task in helpers:
                task.cancel()
        for source in _PRESENT:
            self._trouble(source, "")
        if self._chief.known:
            await self._bring_home()
        await thin_metrics(self.folder)
        await self._keep_results(last)
        self._record(last)

    async def save(self) -> None:
        """Have the chief save now, and ship. Raises RemoteError, TrainingError or OSError."""
        await self._shipments.save()

    async def caught_up(self) -> None:
        """Wait until all that a chief wrote that has ended is here: it goes to the next one's VM,
        which goes on behind it. A few seconds at most; what is missing then is lost.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                while True:
                    if await self._has_all_lines():
                        return
                    await asyncio.sleep(_LOOK_SECONDS)

    async def send_on(self, vm: str) -> None:
        """Have on this VM, where its next chief stands by, what was saved last and all that was
        told until now.

        Raises RemoteError or OSError.
        """
        if link := self._link(vm):
            async with asyncio.timeout(
                _CONNECTED_WITHIN
            ):  # the link may be one of a VM that is gone
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
        told = await connection.run(f"wc -c < {layout.run_on_vm(self.name)}/{name} || echo 0")
        return _size(self.folder / name) >= int(told)

    async def ask_chief(self, command: Save | Evaluate) -> None:
        """Have the chief do so now. Raises RemoteError."""
        await self._chief.ask(command)

    @property
    def ending(self) -> bool:
        """The run is over, but for what is still brought home."""
        return self._over.done()

    async def stop(self, state: Callable[[], RunState], *, save: bool = True) -> None:
        """End the run where it stands (what `state` says), with a last checkpoint brought home if
        it can be had.

        Without `save` at once: of a run that nobody wants any more.
        """
        self._wanted = save
        if (
            save and state().phase == "running" and not state().made
        ):  # behind its last checkpoint none is written
            try:
                await self.save()
                self._saved = not self._over.done()
            except (
                RoomError
            ) as error:  # it is saved there, and comes at the end, once there is room
                log.warning("%s: the last checkpoint is not home yet: %s", self.name, error)
            except (RemoteError, TrainingError, OSError) as error:
                self._tell_of_no_last_checkpoint(state(), error)
        run = state()  # with what was just saved
        step = max(run.step, run.checkpoint_step or 0)  # progress is told only now and then
        if run.started_at:
            seconds = now() - run.started_at
        else:
            seconds = 0.0
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

    def _tell_of_no_last_checkpoint(self, run: RunState, error: Exception) -> None:
        log.warning("%s: no last checkpoint: %s", self.name, error)
        if not self._over.done():
            if run.checkpoint_step is None:
                last = "none"
            else:
                last = f"that of step {run.checkpoint_step:,}"
            what = f"{self.name} is stopped at step {run.step:,} without a checkpoint of it ({error}); there is {last}"
            self._trouble(_LAST, what)

    def fail(self, reason: str) -> None:
        """End the run as failed; `reason` is one sentence."""
        self._end(TrainFailed(run=self.name, reason=reason))

    def give_up(self, vm: str, role: str, said: str) -> bool:
        """The process on `vm` keeps ending, `said` being its last words: whether another VM may do
        better.

        Not instead of a parameter server, whose end is that of the run, nor when several workers in
        a row do not train.
        """
        self._given_up.add(vm)
        if role in (PARAMETER_SERVER, DISPATCHER):
            self.fail(
                f"The {'parameter server' if role == PARAMETER_SERVER else role} on {vm} keeps ending: {said}"
            )
        elif len(self._given_up) >= _MOST_GIVEN_UP:
            whose = "Preparation VMs" if role == PREPARATION else "Workers"
            self.fail(f"{whose} keep ending, the last one on {vm}: {said}")
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
            if lacking:  # it goes on with the VMs that have them
                self._trouble(
                    _PACKAGES, f"New VMs of {self.name} have none of its packages: {lacking}"
                )
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
        if self._to_tell:
            counted = counts(self.folder)
            known = {
                name: max(0, int(counted.get(name, 0))) for name in ("parameters", "variable_bytes")
            }
            found: dict[str, Any] = {}
            if not self._spec.train_steps:
                fit = declared_by_fit(self.folder)
                if not fit.steps:
                    self.fail(_STEPS_UNKNOWN)
                    return
                found = asdict(fit)
                self._spec = fit.applied(self._spec)
            self._record(events.TrainChecked(run=self.name, **known, **found))
        self._checked = True
        self._changed()

    async def _gathered(self) -> str:
        """Have its packages here; why not, or nothing."""
        try:
            await gather(self._packages, self.folder / layout.WHEELS, build=self._may_build)
        except TrainingError as error:
            return str(error)
        except OSError as error:
            return f"The packages could not be gathered: {error}"
        return ""

    async def _keep_token(self) -> None:
        """The chief begins with what lies in the bucket: it is given its work once it can be given
        a token, too.
        """
        if self._token:
            await self._token.renew()
            if not self._begun.is_set():  # a run that waits, for hours perhaps
                await self._begun.wait()
                await self._token.renew()
                await self._bring(self._token)
            self._token_awaited = False
            self._changed()
            await self._chief.until_known()
            await self._token.keep()

    async def _bring(self, token: TokenKeeper) -> None:
        """The files of a run that was checked on the VM are there already, with a token of that
        time or with none.
        """
        link = self._server_link()
        try:
            if link and link.answering:
                connection = await link.bring(self.name, self._chiefs_files)
                await connection.put_files(token.files, below=layout.run_on_vm(self.name))
        except (RemoteError, OSError) as error:  # it comes once more when the chief has its work
            log.warning("%s: its token is not on the VM yet: %s", self.name, error)

    async def _again_and_again(self, follow: Callable[[], Awaitable[None]]) -> None:
        """Until it ends by itself, whatever the network or the disk does to it."""
        while True:
            try:
                return await follow()
            except ForeignError as error:  # more of it than is taken from a VM
                self._trouble(_LINES, str(error))
                if follow == self._follow_chief:  # nobody would hear of the end
                    self.fail(str(error))
                return None
            except (RemoteError, OSError) as error:
                log.warning("%s: %s", self.name, error)
                await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _follow_chief(self) -> None:
        await self._chief.until_known()
        await (
            self._chief.connection()
        )  # what is here was brought there, if the chief is on another VM than before
        (self.folder / layout.EVENTS).unlink(missing_ok=True)  # written anew from the first line on
        async for line in self._chief.lines(layout.EVENTS, 0, self._events):
            try:
                event = from_chief(line, self.name, self._since, int(now() * 1e9))
            except ValueError as error:
                self._refusals.add(line, error)
                continue
            with suppress(
                OSError
            ):  # a copy for a new parameter server's VM; the journal has what matters
                jsonl.append_lines(self.folder / layout.EVENTS, line + b"\n")
            if event.kind in ("train.finished", "train.failed"):
                self._end(replace(event, time=await self._when(event)))
                return
            self._note(event)
            if (event.kind, event.time) not in self._known:
                self._known.add((event.kind, event.time))
                self._record(event)

    async def _when(self, event: Event) -> int:
        """When it happened by this machine's clock, in ns: since the end of its run the cluster is
        idle.
        """
        ahead = await self._chief.ahead()
        there = event.time - int(ahead * 1e9)
        return max(self._since, min(there, int(now() * 1e9)))

    def _note(self, event: Event) -> None:
        self._shipments.told(event)
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
        """The last checkpoint and the rest of the metrics, with a limit: the chief's VM may be
        gone. It is waited for where this machine has no room for them: whoever hears that the run
        is over may let its VMs go.
        """
        waited = False
        while True:
            try:
                self._chief.link()  # nothing is waited for where the VM is gone: the next one has only what is here
                async with asyncio.timeout(SHIP_SECONDS):
                    await self._shipments.ship_the_last(saved=self._saved)
                    connection = await self._chief.connection()
                    measured = f"{layout.run_on_vm(self.name)}/{layout.METRICS}"
                    if await connection.exists(measured):  # a run without a step has none
                        await connection.get(
                            measured, self.folder / layout.METRICS, most=MOST_METRICS
                        )
                if waited:
                    self._trouble(_HOME, "")
                return
            except RoomError as error:
                if not self._wanted:
                    return
                waited = True
                self._trouble(_HOME, f"The results of {self.name} wait for room here: {error}")
                await asyncio.sleep(_ROOM_SECONDS)
            except (RemoteError, OSError) as error:
                log.warning("%s: not everything is home: %s", self.name, error)
                self._trouble(
                    _HOME, f"Not all results of {self.name} could be brought home: {error}"
                )
                return

    async def _keep_results(self, last: Event) -> None:
        try:
            async with asyncio.timeout(INTO_BUCKET_SECONDS):
                await self._results.keep(self.folder, last)
        except (CloudError, OSError) as error:
            log.warning("%s: not all results are in the bucket: %s", self.name, error)
            self._trouble(
                _BUCKET, f"Not all results of {self.name} could be brought into the bucket: {error}"
            )

    def _assign(self, vm: str, work: Work) -> None:
        if link := self._link(vm):
            link.assign(work)

    def _server_link(self) -> Link | None:
        """Of the VM where the check can be made."""
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
        "epoch_steps": spec.eval_steps or 0,
        "keep_best": spec.keep_best,
        "stop_when": spec.stop_when,
    }


def _role(vm: VmState) -> Role:
    if vm.role == PARAMETER_SERVER:
        return "ps"
    return "prep" if vm.role == PREPARATION else "worker"
