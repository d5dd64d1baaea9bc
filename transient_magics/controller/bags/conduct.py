"""The bags of a cluster: what `decisions` decides is written down and done, and what a driver tells comes home.

A driver's lines are foreign: each is checked, and must fit what was told before. Arrays and the surrogate come as
files, bounded; one counts when it is here, with the digest that was told, and nothing but plain numbers in it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import ClusterError, ForeignError, RemoteError, TrainingError, install_extra
from ...files import write_atomically
from ...journal import ClusterState, now, read
from ...journal.bags import events
from ...journal.bags.fold import fold
from ...journal.bags.state import DeclaredBag
from ...journal.cost import charged
from ...journal.declared import waiting
from ...protocol import checks, layout
from ...protocol.bag import events as b
from ...protocol.bag.spec import BagSpec
from ...protocol.dask.spec import DaskSpec
from ...remote import Allowance, Connection, follow_across, room
from ..dask.conduct import Dasks
from ..foreign import Refusals
from ..record import Recorder
from ..runs.packages import gather
from ..tasks import Tasks
from ..vms.link import Link
from .arrivals import MOST_SURROGATE, can_read, take_arrays, take_surrogate
from .decisions import Begin, End, EndDask, Say, decide

log = logging.getLogger(__name__)

_TRY_AGAIN_SECONDS, _LINK_SECONDS = 1.0, 2.0
_SILENT_SECONDS, _CLOSED_SECONDS = 5.0, 60.0
"""Until nothing more is awaited of a driver that has ended; of one that ended by itself, so that its last word must be
on its way, also over another connection."""
_MOST_EVENTS = 256 * 2**20
"""Bytes that are taken of all its drivers."""


class Bags:
    """The bags on the cluster in `directory`, whose Dask clusters are `dasks`; `link` gives the link of a VM."""

    def __init__(self, directory: Path, recorder: Recorder, dasks: Dasks, link: Callable[[str], Link | None]) -> None:
        self._directory, self._recorder, self._dasks, self._link = directory, recorder, dasks, link
        self._gathered: set[str] = set()
        self._allowances: dict[str, Allowance] = {}
        self._over: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        """When a Dask cluster was first seen to be over, and something of its driver came last, on the monotonic clock;
        for ever while it comes."""

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    def declare(self, name: str) -> None:
        """Have the bag whose declaration is in the cluster's folder. Raises ClusterError."""
        state = self._state
        if name in state.bags:
            return
        state.refuse_taken("bag", name)
        if not can_read():
            raise ClusterError(
                f"The controller of {self._directory.name} has no NumPy, which reads what a bag returns",
                fix=install_extra("bags"),
            )
        self._recorder.record(events.BagDeclared(bag=name, spec=self._declared(name).to_dict()))

    def take_back(self) -> None:
        """After a time in which a VM wrote the journal: end those that it tells otherwise than this machine knows."""
        for bag in self._state.active_bags:
            try:
                known = self._declared(bag.name) == bag.spec
            except ClusterError as error:
                log.warning("%s", error)
                known = False
            if not known:
                ended = events.BagEnded(bag=bag.name, state="failed", reason="this machine has not declared it so")
                self._recorder.record(ended)

    async def stop(self, name: str, reason: str = "") -> None:
        """Begin no further job of the bag. Does nothing if it ends already."""
        bag = self._state.bags[name]
        if not bag.over and not bag.ending:
            self._recorder.record(events.BagEnding(bag=name, reason=reason or "it was stopped"))

    def declare_waiting(self) -> None:
        """Declare those whose command reached no controller. One that cannot be read is told of and holds up nobody."""
        for name in waiting(self._directory, self._state, "bag"):
            try:
                self.declare(name)
            except ClusterError as error:
                self._recorder.note(f"bag {name}", str(error))

    def look(self, tasks: Tasks, at: float) -> None:
        """Write down and do what is due."""
        for name in [bag.name for bag in self._state.active_bags]:
            bag = self._state.bags[name]
            if bag.spec.pip and name not in self._gathered and not bag.ending:
                tasks.do(f"packages of {name}", lambda name=name: self._gather(name))
                continue
            cost = charged(self._state, name, at) if bag.spec.max_cost is not None else 0.0
            match decide(bag, self._state, cost, at, arriving=self._arriving(bag)):
                case Begin(dask):
                    self._try_to_begin(bag, dask)
                case Say(reason, limit):
                    self._recorder.record(events.BagEnding(bag=name, reason=reason, limit=limit))
                case EndDask(dask, reason):
                    self._dasks.end(dask, reason)
                case End(how, reason):
                    self._recorder.record(events.BagEnded(bag=name, state=how, reason=reason))
                    self._recorder.note(f"bag {name}", "")
                case None:
                    pass
            self._follow(tasks, self._state.bags[name])

    def _arriving(self, bag: DeclaredBag) -> bool:
        """Whether its last driver has ended, and what it told before may still come from its VM."""
        dask = self._state.dasks.get(bag.dasks[-1]) if bag.dasks else None
        vm = self._state.vms.get(dask.vm) if dask and dask.over else None
        if dask is None or vm is None or not vm.living or self._state.phase == "deleting":
            return False
        patience = _CLOSED_SECONDS if dask.closed and not bag.ending else _SILENT_SECONDS
        at = time.monotonic()
        return at - max(self._over.setdefault(dask.name, at), self._heard.get(dask.name, 0.0)) < patience

    async def _gather(self, name: str) -> None:
        spec, cluster = self._state.bags[name].spec, self._recorder.spec
        try:
            await gather(spec.pip, self.folder(name) / layout.WHEELS, build=spec.pip_build, purpose=cluster.purpose)
        except (TrainingError, OSError) as error:
            self._recorder.record(events.BagEnded(bag=name, state="failed", reason=str(error)))
        self._gathered.add(name)

    def _try_to_begin(self, bag: DeclaredBag, name: str) -> None:
        """What stands in the way, as a full disk, is told, and tried again at the next look."""
        try:
            self._begin(bag, name)
        except (OSError, ClusterError) as error:
            why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            self._recorder.note(f"bag {bag.name}", f"{bag.name} cannot begin: {why}")
        else:
            self._recorder.note(f"bag {bag.name}", "")

    def _begin(self, bag: DeclaredBag, name: str) -> None:
        spec = self._recorder.spec
        workers = min(bag.spec.workers or spec.worker_count, spec.worker_count)
        declared = DaskSpec(
            name, workers, threads=1, memory_bytes=bag.spec.memory_bytes, allowed_failures=0, bag=bag.name,
            declared_at=now(),
        )  # fmt: skip
        folder = self._directory / layout.DASKS / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = [each for each in read(self._directory / layout.JOURNAL)
                 if isinstance(each, b.BagEvent) and each.bag == bag.name]  # fmt: skip
        lines = "".join(json.dumps(each.to_dict()) + "\n" for each in known)
        write_atomically(folder / layout.BAG_KNOWN, lines)
        write_atomically(folder / layout.DASK, json.dumps(declared.to_dict()))
        if name not in bag.dasks:
            self._recorder.record(events.BagBegan(bag=bag.name, dask=name))
        self._dasks.declare(name)

    def _follow(self, tasks: Tasks, bag: DeclaredBag) -> None:
        key = f"bag {bag.name}"
        dask = self._state.dasks.get(bag.dasks[-1]) if bag.dasks else None
        if bag.over or dask is None or not dask.vm:
            tasks.cancel(key)
        else:
            tasks.do(key, lambda: _Follower(self, bag.name, dask.name, dask.vm).conduct())

    def _declared(self, name: str) -> BagSpec:
        """What this machine's user declared. Raises ClusterError."""
        path = self.folder(name) / layout.BAG
        try:
            return BagSpec.from_dict({**checks.parsed_object(path.read_bytes()), "name": name})
        except (OSError, ValueError) as error:
            raise ClusterError(f"The declaration of {name} cannot be read: {error}", where=str(path)) from error

    # What a follower takes of it

    def folder(self, name: str) -> Path:
        """The bag's, on this machine."""
        return self._directory / layout.BAGS / name

    def take(self, bag: str, event: b.BagEvent) -> bool:
        """Have it in the journal, unless that has it, from a controller before. False where it makes no sense."""
        known = self._state.bags[bag]
        return known.over or event.time <= known.heard or self._recorder.record(event)

    def counts(self, bag: str, event: b.BagResult) -> bool:
        """Whether it is, or would be, the result of its job: of others no arrays are brought."""
        try:
            job = fold(self._state.bags[bag].state, event).jobs.get(event.job)
        except ValueError:
            return False
        return job is not None and job.result is not None and job.result.arrays == event.arrays

    def allowance(self, bag: str) -> Allowance:
        """How much is taken of what its drivers tell, over all who follow them."""
        return self._allowances.setdefault(bag, Allowance(_MOST_EVENTS))

    def fail(self, bag: str, dask: str, reason: str) -> None:
        """End it, and its Dask cluster."""
        self._dasks.end(dask, reason)
        self._recorder.record(events.BagEnded(bag=bag, state="failed", reason=reason))

    @contextmanager
    def hearing(self, dask: str) -> Generator[None]:
        """Something comes from the driver in the Dask cluster."""
        self._heard[dask] = math.inf
        try:
            yield
        finally:
            self._heard[dask] = time.monotonic()

    def link(self, vm: str) -> Link | None:
        """The link of a VM."""
        return self._link(vm)

    def note(self, name: str, what: str) -> None:
        """Say what is in the way, or nothing any more."""
        self._recorder.note(f"bag {name}", what)


class _Follower:
    """One driver, for as long as it is the bag's."""

    def __init__(self, bags: Bags, bag: str, dask: str, vm: str) -> None:
        self._bags, self._bag, self._dask, self._vm = bags, bag, dask, vm
        self._there = layout.dask_on_vm(dask)
        self._since = int(now() * 1e9) - 30 * 86_400 * 10**9
        self._learnt = -1
        """From so many results is the surrogate that was brought last."""
        self._heard = 0
        self._refusals = Refusals(f"{vm}, about {bag}", lambda what: bags.note(bag, what))

    async def conduct(self) -> None:
        """Follow it. Cancelled when its VM is gone, or the bag is over."""
        while True:
            try:
                return await self._follow()
            except ForeignError:  # nobody would hear of its end
                return self._bags.fail(self._bag, self._dask, "its drivers have told more than is taken from VMs")
            except (RemoteError, TrainingError, OSError) as error:
                log.warning("%s on %s: %s", self._bag, self._vm, error)
                await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _follow(self) -> None:
        path = f"{self._there}/{layout.BAG_EVENTS}"
        allowance = self._bags.allowance(self._bag)
        async for offset, line in follow_across(self._connection, path, self._heard, allowance=allowance):
            await self._hear(line)
            self._heard = offset

    async def _hear(self, line: bytes) -> None:
        try:
            event = b.from_driver(line, self._bag, self._since, int(now() * 1e9))
        except ValueError as error:
            self._refusals.add(line, error)
            return
        if isinstance(event, b.BagResult) and event.arrays and self._bags.counts(self._bag, event):
            await self._arrays(event)
        elif isinstance(event, b.BagLearnt) and event.results > self._learnt:
            await self._surrogate()
            self._learnt = event.results
        with self._bags.hearing(self._dask):
            if not self._bags.take(self._bag, event):
                self._refusals.add(line, ValueError("it does not follow on what was told before"))

    async def _arrays(self, event: b.BagResult) -> None:
        """Bring what a job returned beside its numbers."""
        target = self._bags.folder(self._bag) / layout.RESULTS / event.arrays
        if target.exists():
            return
        await self._room(self._bags.folder(self._bag))
        target.parent.mkdir(exist_ok=True, mode=0o700)
        fresh = target.with_name(f".{target.name}.part")
        connection = await self._connection()
        try:
            with self._bags.hearing(self._dask):
                await connection.get(f"{self._there}/{layout.RESULTS}/{event.arrays}", fresh, most=b.MOST_ARRAY_BYTES)
                await asyncio.to_thread(take_arrays, fresh, target, event.digest)
        except (ForeignError, ValueError) as error:
            self._bags.note(self._bag, f"The arrays {target.name} of {self._bag} were not taken: {error}")

    async def _surrogate(self) -> None:
        """Bring the newest surrogate; one that is being replaced meanwhile comes with the next word of it."""
        folder, found = self._bags.folder(self._bag), dict[str, bytes]()
        await self._room(folder)
        connection = await self._connection()
        try:
            for name in (layout.SURROGATE_ARRAYS, layout.SURROGATE):
                fresh = folder / f".{name}.part"
                with self._bags.hearing(self._dask):
                    await connection.get(f"{self._there}/{name}", fresh, most=MOST_SURROGATE)
                found[name] = fresh.read_bytes()
                fresh.unlink()
            await asyncio.to_thread(take_surrogate, folder, found[layout.SURROGATE], found[layout.SURROGATE_ARRAYS])
        except (ForeignError, ValueError) as error:
            self._bags.note(self._bag, f"The surrogate of {self._bag} was not taken: {error}")

    async def _room(self, folder: Path) -> None:
        """Wait until the disk here has room for a file of it."""
        most, said = max(b.MOST_ARRAY_BYTES, MOST_SURROGATE), ""
        while room(folder) < most:
            said = f"There is no room for what {self._bag} returns on the disk of this machine"
            self._bags.note(self._bag, said)
            with self._bags.hearing(self._dask):
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
        if said:
            self._bags.note(self._bag, "")

    async def _connection(self) -> Connection:
        while True:
            if link := self._bags.link(self._vm):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LINK_SECONDS):
                        return await link.connection()
            else:
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
