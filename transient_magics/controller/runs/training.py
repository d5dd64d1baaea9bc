"""One run, from its declaration to its results at home.

The chief on ps-0 owns the training; this side only gives it machines: has the user's code checked, pushes the run's
folder, assigns the parameter servers and then the workers, copies what the chief writes down into the journal and the
run's metrics, and brings every checkpoint home as it is written. Where the run has a place in a bucket, the
chief ships checkpoints there itself, and only what it could not ship comes here. All of it can be done again from the
journal after a restart: events that are in the journal already are recognised by their kind and time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...cloud import BoundedToken, CloudStorage, Reach
from ...errors import CloudError, ConnectionLostError, ForeignError, RemoteError, TrainingError
from ...files import write_atomically
from ...journal import Event, RunState, VmState, events, metrics, now, read
from ...protocol import layout
from ...protocol.agent_commands import Assignment, Evaluate, Save
from ...protocol.vm_events import from_chief
from ...remote import MOST_FILES, Connection, follow_across, room
from ...runtime.files.checkpoints import BEST
from ...runtime.files.vocabularies import MOST_BYTES, PREFIX
from ...spec import CONTROLLER, PARAMETER_SERVER, WORKER
from ...spec.boot_times import has_gpu
from ..foreign import Refusals
from ..place import here
from ..vms.link import Link, Work
from .alike import alike, content
from .bucket_token import TokenKeeper, reaches
from .checking import check, check_there, counts, possible_here
from .packages import gather
from .results import Results, thin_metrics

log = logging.getLogger(__name__)

PARAMETER_SERVER_PORT, CHIEF_PORT = 2222, 2221
"""Of the first run; each further one at the same time has those that lie two, four, ... higher."""
_LAST_SAVE_SECONDS = 120.0
"""A checkpoint of gigabytes, on a disk that is busy with another one."""
_SHIP_SECONDS = 120.0
_INTO_BUCKET_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 1.0
_CLOCK_SECONDS, _CLOCK_ERROR = 5.0, 5.0
"""For the question what time it is on a VM, and by how much that may be wrong."""
_TRY_AGAIN_SECONDS = 2.0
_NOT_BUILT = (
    "--pip-build would run the packages' own code beside the controller, which has a VM for itself: build wheels on "
    "your machine (pip wheel) and name those with --pip"
)
_MOST_GIVEN_UP = 3
"""So many VMs on which the worker kept ending, without a step of anybody, and it is the run's fault."""
_MOST_EVENTS, MOST_METRICS = 64 * 2**20, 4 * 2**30
"""Bytes of a run that are taken from its chief; of metrics a worker writes some 17 MB a day."""
_MOST_GROWTH = 2**20
"""Bytes by which the list of checkpoints may grow while it is fetched."""
_LINES, _CHECKPOINTS, _LAST, _HOME, _BUCKET = "chief", "checkpoints", "last checkpoint", "results", "results in bucket"
_PRESENT = (_LINES, _CHECKPOINTS)
"""Sources of trouble that are over with the run; the others are told until another one begins."""
_LISTED = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254} [0-9]{1,15}")
_CHECKPOINT = re.compile(r"model\.ckpt-(\d{1,15})\.index")
_POINTERS = ("checkpoint", BEST)
"""Small files that name checkpoints: they change and keep their size."""
_PART = re.compile(r"model\.ckpt-(\d{1,15})\..+")


class Training:
    """The conduct of one run.

    `record` appends to the journal, `link` gives the link of a VM (None: not there yet), `changed` asks for a call of
    `give`. `store` is the run's place in a bucket (None: it has none), `storage` the way to it, `mint` makes the tokens
    for the chief's VM, `note` takes what is in the way: its source and a sentence, or nothing any more. The spec of
    `run` is that of its `run.json` here. `checked` gives the runs that have passed their checks. Without `own`
    the code of `run` came from a VM: then none of it runs here, where nobody has agreed to it.
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
        mint: Callable[[Sequence[Reach]], Awaitable[BoundedToken]] | None = None,
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
        self._results = Results(store, storage)
        self._token: TokenKeeper | None = None
        if mint and (places := reaches(store, run.spec)):
            there = layout.run_on_vm(self.name)
            self._token = TokenKeeper(there, partial(mint, places), self._chief_connection, note)
        self._token_awaited = self._token is not None
        self._by_hand = not self._results.store
        self._saved_step, self._shipped_step = -1, -1
        self._spec, self._others = run.spec, checked
        self._packages = run.spec.pip
        self._may_build = run.spec.pip_build
        self._model = run.spec.model
        self._to_build = run.spec.check
        self._checked = bool(run.started_at) or run.checked or not own
        self._to_tell = run.spec.check and not (run.checked or run.started_at)
        self._since = int(run.declared_at * 1e9)
        self._refusals = Refusals(f"The chief of {run.name}", partial(note, _LINES))
        self._known = {(event.kind, event.time) for event in read(folder.parent.parent / layout.JOURNAL)}
        self._server: str | None = None
        self._chief: str | None = None
        self._begun, self._chief_known = asyncio.Event(), asyncio.Event()
        self._to_ship = asyncio.Event()
        self._shipping = asyncio.Lock()
        self._saved, self._unsaved = asyncio.Event(), ""
        self._shipped = asyncio.Event()
        self._given_up: set[str] = set()
        self._over: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    def give(self, vms: list[VmState], servers: int, port: int = 0) -> None:
        """Have the VMs warm up and, once the check has passed, assign those that are ready; called at every change.

        `vms` are the parameter servers' and those of the run's own workers; `port` is the number of its ports there.
        """
        if self._over.done():
            return
        self._begun.set()
        for vm in vms:
            if vm.role != CONTROLLER and (link := self._link(vm.name)):
                role = "ps" if vm.role == PARAMETER_SERVER else "worker"
                link.expect(self.name, role, own=not self._model, warm=not self._checked)
        self.look(vms)
        if not self._checked or self._token_awaited:
            return
        ready = [vm for vm in vms if vm.living and vm.state in ("ready", "leaving")]
        by_slot = {vm.slot: vm for vm in ready if vm.role == PARAMETER_SERVER}
        if len(by_slot) < servers:
            return
        addresses = tuple(f"{by_slot[slot].address}:{PARAMETER_SERVER_PORT + 2 * port}" for slot in range(servers))
        chief = f"{by_slot[0].address}:{CHIEF_PORT + 2 * port}"
        for slot, vm in by_slot.items():
            given = Assignment(self.name, "ps", vm.name, vm.address, addresses, chief, slot)
            self._assign(vm.name, Work(given, partial(self._files, with_results=slot == 0)))
        self._chief = by_slot[0].name
        self._chief_known.set()
        for vm in ready:
            if vm.role == WORKER and vm.state == "ready":
                gpu = vm.accelerator if has_gpu(vm.accelerator) else ""
                given = Assignment(self.name, "worker", vm.name, vm.address, addresses, chief, gpu=gpu)
                self._assign(vm.name, Work(given, partial(self._files, with_results=False)))

    def look(self, vms: list[VmState]) -> None:
        """Know where the check can be made, also of a run that waits; called at every change."""
        first = (vm.name for vm in vms if (vm.role, vm.slot, vm.state) == (PARAMETER_SERVER, 0, "ready"))
        self._server = next(first, None)

    async def conduct(self) -> None:
        """Live until the run is over; then its end is in the journal and its results are here. Never raises for a run
        that failed: that is an event too."""
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(self._check()),
                tasks.create_task(self._again_and_again(self._follow_chief)),
                tasks.create_task(self._again_and_again(self._follow_metrics)),
                tasks.create_task(self._ship_always()),
                tasks.create_task(self._keep_token()),
            ]
            last = await self._over
            for task in helpers:
                task.cancel()
        for source in _PRESENT:
            self._trouble(source, "")
        if self._chief:
            await self._bring_home()
        await thin_metrics(self.folder)
        await self._keep_results(last)
        self._record(last)

    async def save(self) -> None:
        """Have the chief save now, and ship. Raises RemoteError, TrainingError or OSError."""
        self._saved.clear()
        self._unsaved = ""
        await self.ask_chief(Save(run=self.name))
        try:
            async with asyncio.timeout(_LAST_SAVE_SECONDS):
                await self._saved.wait()
        except TimeoutError:
            raise TrainingError(f"none was written within {_LAST_SAVE_SECONDS:.0f} s") from None
        if self._unsaved:
            raise TrainingError(self._unsaved)
        if not await self._in_bucket():
            await self._ship()

    async def ask_chief(self, command: Save | Evaluate) -> None:
        """Have the chief do so now. Raises RemoteError."""
        await self._chief_link().ask(command)

    @property
    def ending(self) -> bool:
        """The run is over, but for what is still brought home."""
        return self._over.done()

    async def stop(self, state: Callable[[], RunState], *, save: bool = True) -> None:
        """End the run where it stands (what `state` says), with a last checkpoint brought home if it can be had.

        Without `save` at once: of a run that nobody wants any more.
        """
        if save and state().phase == "running":
            try:
                await self.save()
            except (RemoteError, TrainingError, OSError) as error:
                self._tell_of_no_last_checkpoint(state(), error)
        run = state()  # with what was just saved
        step = max(run.step, run.checkpoint_step or 0)  # progress is told only now and then
        seconds = now() - run.started_at if run.started_at else 0.0
        self._end(
            events.TrainFinished(
                run=self.name, step=step, loss=run.loss, seconds=seconds, checkpoint=run.checkpoint, stopped=True
            )
        )

    def _tell_of_no_last_checkpoint(self, run: RunState, error: Exception) -> None:
        log.warning("%s: no last checkpoint: %s", self.name, error)
        if not self._over.done():
            last = "none" if run.checkpoint_step is None else f"that of step {run.checkpoint_step:,}"
            what = f"{self.name} is stopped at step {run.step:,} without a checkpoint of it ({error}); there is {last}"
            self._trouble(_LAST, what)

    def fail(self, reason: str) -> None:
        """End the run as failed; `reason` is one sentence."""
        self._end(events.TrainFailed(run=self.name, reason=reason))

    def give_up(self, vm: str, role: str, said: str) -> bool:
        """The process on `vm` keeps ending, `said` being its last words: whether another VM may do better.

        Not instead of a parameter server, whose end is that of the run, nor when several workers in a row do not train.
        """
        self._given_up.add(vm)
        if role == PARAMETER_SERVER:
            self.fail(f"The parameter server on {vm} keeps ending: {said}")
        elif len(self._given_up) >= _MOST_GIVEN_UP:
            self.fail(f"Workers keep ending, the last one on {vm}: {said}")
        return not self._over.done()

    def _end(self, event: Event) -> None:
        if not self._over.done():
            self._over.set_result(event)
        self._saved.set()  # nobody saves any more

    async def _check(self) -> None:
        if not self._checked:
            if self._packages and self._may_build and here() and not (self.folder / layout.WHEELS).exists():
                self.fail(_NOT_BUILT)
                return
            try:
                await gather(self._packages, self.folder / layout.WHEELS, build=self._may_build)
            except TrainingError as error:
                self.fail(str(error))
                return
            except OSError as error:
                self.fail(f"The packages could not be gathered: {error}")
                return
            to_build = self._to_build and not await asyncio.to_thread(self._found_alike, tuple(self._others()))
            if to_build and (reason := await self._reason_against()):
                self.fail(reason)
                return
        if self._to_tell:
            counted = counts(self.folder)
            known = {name: max(0, int(counted.get(name, 0))) for name in ("parameters", "variable_bytes")}
            self._record(events.TrainChecked(run=self.name, **known))
        self._checked = True
        self._changed()

    async def _keep_token(self) -> None:
        """The chief begins with what lies in the bucket: it is given its work once it can be given a token, too."""
        if self._token:
            await self._token.renew()
            if not self._begun.is_set():  # a run that waits, for hours perhaps
                await self._begun.wait()
                await self._token.renew()
                await self._bring(self._token)
            self._token_awaited = False
            self._changed()
            await self._chief_known.wait()
            await self._token.keep()

    async def _bring(self, token: TokenKeeper) -> None:
        """The files of a run that was checked on the VM are there already, with a token of that time or with none."""
        link = self._link(self._server) if self._server else None
        try:
            if link and link.answering:
                connection = await link.bring(self.name, partial(self._files, with_results=True))
                await connection.put_files(token.files, below=layout.run_on_vm(self.name))
        except (RemoteError, OSError) as error:  # it comes once more when the chief has its work
            log.warning("%s: its token is not on the VM yet: %s", self.name, error)

    def _found_alike(self, others: Sequence[RunState]) -> bool:
        """Whether one of these others was checked for the same; what was counted of its model holds here too."""
        for other in reversed(others):
            if other.name == self.name or not alike(other.spec, self._spec):
                continue
            there = self.folder.with_name(other.name)
            try:
                if content(there) != content(self.folder):
                    continue
                if (counted := there / layout.MODEL).exists():
                    write_atomically(self.folder / layout.MODEL, counted.read_bytes())
            except OSError as error:
                log.warning("%s: whether %s was checked for the same is not known: %s", self.name, other.name, error)
                continue
            log.info("%s: what the check of %s has found holds for it", self.name, other.name)
            return True
        return False

    async def _reason_against(self) -> str:
        if not possible_here():
            return await self._reason_there()
        try:
            return await check(self.folder)
        except OSError as error:  # as for want of memory: that says nothing about the run
            log.warning("%s: not checked: %s", self.name, error)
            return ""

    async def _reason_there(self) -> str:
        """What the first parameter server's VM finds, or one that takes its place meanwhile."""
        while True:
            link = self._link(self._server) if self._server else None
            try:
                if link and link.answering:
                    return await check_there(link, self.folder, partial(self._files, with_results=True))
            except (RemoteError, OSError) as error:
                log.warning("%s: not checked yet: %s", self.name, error)
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

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
        await self._chief_known.wait()
        await self._chief_connection()  # what is here was brought there, if the chief is on another VM than before
        (self.folder / layout.EVENTS).unlink(missing_ok=True)  # written anew from the first line on
        async for line in self._lines(layout.EVENTS, 0, _MOST_EVENTS):
            try:
                event = from_chief(line, self.name, self._since, int(now() * 1e9))
            except ValueError as error:
                self._refusals.add(line, error)
                continue
            with suppress(OSError):  # a copy for a new parameter server's VM; the journal has what matters
                metrics.append(self.folder / layout.EVENTS, line + b"\n")
            if event.kind in ("train.finished", "train.failed"):
                self._end(replace(event, time=await self._when(event)))
                return
            self._note(event)
            if (event.kind, event.time) not in self._known:
                self._known.add((event.kind, event.time))
                self._record(event)

    async def _when(self, event: Event) -> int:
        """When it happened by this machine's clock, in ns: since the end of its run the cluster is idle."""
        ahead = 0.0  # the clock of the VM, in seconds
        try:
            async with asyncio.timeout(_CLOCK_SECONDS):
                ahead = float(await (await self._chief_connection()).run("date +%s.%N")) - now()
        except (RemoteError, OSError, ValueError) as error:
            log.warning("%s: what time it is on its chief's VM is not known: %s", self.name, error)
        there = event.time if abs(ahead) < _CLOCK_ERROR or not math.isfinite(ahead) else event.time - int(ahead * 1e9)
        return max(self._since, min(there, int(now() * 1e9)))

    def _note(self, event: Event) -> None:
        match event:
            case events.TrainCheckpoint():
                self._saved_step, self._unsaved = event.step, ""
                if event.asked:
                    self._saved.set()
                self._to_ship.set()
            case events.TrainBest():
                self._to_ship.set()
            case events.TrainUnsaved():
                self._unsaved = event.reason
                self._saved.set()
            case events.TrainShipped():
                self._shipped_step, self._by_hand = event.step, False
                self._shipped.set()
            case events.TrainUnshipped():
                self._by_hand = True
                self._shipped.set()
                self._to_ship.set()
            case events.TrainProgress() if event.steps_per_second > 0:
                self._given_up.clear()
            case events.TrainEvaluated():
                self._results.metrics = dict(event.metrics)
            case _:
                pass

    async def _in_bucket(self) -> bool:
        """Whether the checkpoint that was saved last is in the bucket; waits while it is on its way there."""
        try:
            async with asyncio.timeout(_INTO_BUCKET_SECONDS):
                while not self._by_hand and self._shipped_step < self._saved_step:
                    self._shipped.clear()
                    await self._shipped.wait()
        except TimeoutError:
            return False
        return not self._by_hand

    async def _follow_metrics(self) -> None:
        path = self.folder / layout.METRICS
        offset = path.stat().st_size if path.exists() else 0
        async for line in self._lines(layout.METRICS, offset, MOST_METRICS):
            try:
                metrics.append(path, line + b"\n")
            except OSError as error:
                log.warning("%s: metrics are lost: %s", self.name, error)

    async def _lines(self, name: str, offset: int, most: int) -> AsyncIterator[bytes]:
        await self._chief_known.wait()
        path = f"{layout.run_on_vm(self.name)}/{name}"
        async for _, line in follow_across(self._chief_connection, path, offset, most=most):
            yield line

    async def _chief_connection(self) -> Connection:
        """The connection to the chief's VM, waiting until that, or a VM that takes its place meanwhile, has the run."""
        while True:
            link = self._link(self._chief) if self._chief else None
            if link is None:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                continue
            try:
                async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                    return await link.connection(self.name)
            except TimeoutError:
                continue  # the link may be one of a VM that is gone

    async def _ship_always(self) -> None:
        while True:
            await self._to_ship.wait()
            self._to_ship.clear()
            if not self._by_hand:
                continue
            try:
                await self._ship()
                self._trouble(_CHECKPOINTS, "")
            except (RemoteError, OSError) as error:
                log.warning("%s: a checkpoint is not home yet: %s", self.name, error)
                if isinstance(error, ForeignError):  # not for want of a connection, which comes back
                    self._trouble(_CHECKPOINTS, f"Checkpoints of {self.name} do not come home: {error}")
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
                self._to_ship.set()

    async def _ship(self) -> None:
        """Make the local folder of checkpoints the same as the chief's, as far as those are whole.

        A checkpoint is here if all of its files are, of the same sizes; else all of it comes anew: a part of it may be
        of another life of the parameter server, which made the same step once more. Nothing is dropped here while there
        is none as new on the chief's VM, and nothing comes where not all of it has room. Raises RemoteError or OSError,
        also when no VM holds the run within two minutes.
        """
        async with asyncio.timeout(_SHIP_SECONDS):
            connection = await self._chief_connection()
        async with self._shipping:
            there, here = f"{layout.run_on_vm(self.name)}/{layout.CHECKPOINTS}", self.folder / layout.CHECKPOINTS
            here.mkdir(exist_ok=True, mode=0o700)
            listed = await connection.run(f"mkdir -p {there} && find {there} -maxdepth 1 -type f -printf '%f %s\\n'")
            listing = [line.split() for line in listed.splitlines() if _safe(line)]
            found = ((name, int(size)) for name, size in listing)
            sizes = _whole({name: size for name, size in found if not name.startswith(PREFIX) or size <= MOST_BYTES})
            other = {
                _unit(name)
                for name, size in sizes.items()
                if name in _POINTERS or not (path := here / name).exists() or path.stat().st_size != size
            }
            new = [name for name in sizes if _unit(name) in other]
            self._look_for_room(sizes, new, here)
            for name in sorted(new, key=lambda name: (name in _POINTERS, name.endswith(".index"))):
                await connection.get(f"{there}/{name}", here / name, most=max(sizes[name], _MOST_GROWTH))
            if _newest(sizes) < _newest(path.name for path in here.iterdir()):
                return
            for path in here.iterdir():
                if path.name not in sizes:
                    path.unlink()

    def _look_for_room(self, sizes: Mapping[str, int], new: Sequence[str], here: Path) -> None:
        if len({*sizes, *(path.name for path in here.iterdir())}) > MOST_FILES:
            raise ForeignError(f"there are more than {MOST_FILES:,} files")
        if (size := sum(sizes[name] for name in new)) > room(here):
            what = f"this machine's disk has no room for {-(-size // 2**20):,} MiB more"
            raise ForeignError(what, where=str(here), fix="Free some of it.")

    async def _bring_home(self) -> None:
        """The last checkpoint and the rest of the metrics, with a limit: the chief's VM may be gone."""
        try:
            self._chief_link()  # nothing is waited for where the VM is gone: the next one has only what is here
            async with asyncio.timeout(_SHIP_SECONDS):
                if self._by_hand or self._shipped_step < self._saved_step:
                    await self._ship()
                connection = await self._chief_connection()
                measured = f"{layout.run_on_vm(self.name)}/{layout.METRICS}"
                if await connection.exists(measured):  # a run without a step has none
                    await connection.get(measured, self.folder / layout.METRICS, most=MOST_METRICS)
        except (RemoteError, OSError) as error:
            log.warning("%s: not everything is home: %s", self.name, error)
            self._trouble(_HOME, f"Not all results of {self.name} could be brought home: {error}")

    async def _keep_results(self, last: Event) -> None:
        try:
            async with asyncio.timeout(_INTO_BUCKET_SECONDS):
                await self._results.keep(self.folder, last)
        except (CloudError, OSError) as error:
            log.warning("%s: not all results are in the bucket: %s", self.name, error)
            self._trouble(_BUCKET, f"Not all results of {self.name} could be brought into the bucket: {error}")

    def _chief_link(self) -> Link:
        link = self._link(self._chief) if self._chief else None
        if link is None:
            raise ConnectionLostError("The parameter server's VM is not there")
        return link

    def _assign(self, vm: str, work: Work) -> None:
        if link := self._link(vm):
            link.assign(work)

    def _files(self, *, with_results: bool) -> Mapping[str, bytes | Path]:
        files: dict[str, bytes | Path] = {layout.RUN: self.folder / layout.RUN, layout.CELL: self.folder / layout.CELL}
        folders = [layout.INCLUDE, layout.WHEELS, *([layout.CHECKPOINTS] if with_results else [])]
        found = [path for folder in folders for path in (self.folder / folder).rglob("*") if _is_plain(path)]
        if with_results:  # on a VM that takes a lost one's place everything goes on behind what is here
            found += [path for name in (layout.EVENTS, layout.METRICS) if _is_plain(path := self.folder / name)]
        files.update({str(path.relative_to(self.folder)): path for path in found})
        if with_results and self._token:
            files.update(self._token.files)
        return files


def _is_plain(path: Path) -> bool:
    """Whether there is a regular file. What links point to was never meant to be sent."""
    return path.is_file() and not path.is_symlink()


def _safe(line: str) -> bool:
    """A VM's word about a file of its own: a plain name and a size, nothing that leads out of the folder."""
    return _LISTED.fullmatch(line) is not None and ".tmp" not in line


def _unit(name: str) -> str:
    """What comes home in one piece: a checkpoint (its step), or a file of another kind (its name)."""
    return found[1] if (found := _PART.fullmatch(name)) else name


def _whole(sizes: Mapping[str, int]) -> dict[str, int]:
    """The files without those of checkpoints that are being written just now, which have no index yet."""
    steps = {found[1] for name in sizes if (found := _CHECKPOINT.fullmatch(name))}
    return {name: size for name, size in sizes.items() if not _PART.fullmatch(name) or _unit(name) in steps}


def _newest(names: Iterable[str]) -> int:
    """The step of the newest checkpoint among files of these names, -1 if there is none."""
    return max((int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))), default=-1)
