"""The bags of a cluster: what `decisions` decides is written down and done, and what a driver tells
comes home.

A driver's lines are foreign: each is checked, and must fit what was told before. Arrays and the
surrogate come as files, bounded; one counts when it is here, with the digest that was told, and
nothing but plain numbers in it.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from ...controller import on_vm
from ...controller.artifacts import Artifact, VmFolder, bring
from ...controller.on_vm import OnVm
from ...controller.record import Recorder
from ...controller.tasks import Tasks
from ...controller.trust import RejectedEventError
from ...controller.vms.link import Link
from ...controller.works import Tick, Works
from ...errors import ClusterError, ForeignError, RoomError, install_extra, reason_of
from ...files import write_atomically
from ...journal import now, read
from ...journal.cost import charged
from ...protocol import layout
from ..dask.conduct import Dasks
from ..dask.spec import DaskSpec
from ..dask.state import DaskState
from . import artifacts, events
from . import events as b
from .decisions import Begin, End, EndDask, Stop, decide
from .fold import fold
from .spec import BagSpec
from .state import DeclaredBag

_SILENT_SECONDS = 5.0
_CLOSED_SECONDS = 60.0
"""Until nothing more is awaited of a driver that has ended; of one that ended by itself, so that
its last word must be on its way, also over another connection.
"""


class Bags(Works[BagSpec]):
    """The bags of a cluster."""

    kind = "bag"
    stopped_because = "it was stopped"
    spec_class = BagSpec
    most_event_bytes = 256 * 2**20

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        link: Callable[[str], Link | None],
        others: Mapping[str, Works[Any]] | None = None,
    ) -> None:
        super().__init__(directory, recorder, link, others)
        self._over: dict[str, float] = {}
        """When a Dask cluster was first seen to be over, on the monotonic clock."""
        self._heard: dict[str, float] = {}
        """When something of its driver came last, on that clock; infinite while it comes."""

    @property
    def _dasks(self) -> Dasks:
        return cast("Dasks", self.others["dask"])

    def prepare(self, name: str, spec: BagSpec) -> None:
        """See that what a bag returns can be read here. Raises ClusterError."""
        if not artifacts.can_read():
            raise ClusterError(
                f"The controller of {self.directory.name} has no NumPy, which reads what a bag returns",
                fix=install_extra("bags"),
            )

    def tick(self, tick: Tick) -> None:
        """Record and start what is due."""
        for name in [bag.name for bag in self.state.active(DeclaredBag)]:
            bag = self.state.of(DeclaredBag)[name]
            if not bag.stop and not self.has_packages(name, bag.spec, tick.tasks):
                continue
            if bag.spec.max_cost is not None:
                cost = charged(self.state, name, tick.at)
            else:
                cost = 0.0
            match decide(bag, self.state, cost, tick.at, arriving=self._arriving(bag)):
                case Begin(dask):
                    self._try_to_begin(bag, dask)
                case Stop(reason, state):
                    self.end(name, reason, state)
                case EndDask(dask, reason):
                    self._dasks.end(dask, reason)
                case End(state, reason):
                    self.ended(name, state, reason)
                case None:
                    pass
            self._follow(tick.tasks, self.state.of(DeclaredBag)[name])

    def _arriving(self, bag: DeclaredBag) -> bool:
        """Whether its last driver has ended, and what it told before may still come from its VM."""
        if bag.dasks:
            dask = self.state.of(DaskState).get(bag.dasks[-1])
        else:
            dask = None
        if dask and dask.over:
            vm = self.state.vms.get(dask.vm)
        else:
            vm = None
        if dask is None or vm is None or not vm.living or self.state.phase == "deleting":
            return False
        if dask.closed and not bag.stop:
            patience = _CLOSED_SECONDS
        else:
            patience = _SILENT_SECONDS
        at = time.monotonic()
        return (
            at - max(self._over.setdefault(dask.name, at), self._heard.get(dask.name, 0.0))
            < patience
        )

    def _try_to_begin(self, bag: DeclaredBag, name: str) -> None:
        """What stands in the way, as a full disk, is told, and tried again at the next look."""
        try:
            self._begin(bag, name)
        except (OSError, ClusterError) as error:
            why = reason_of(error)
            self.note(bag.name, f"{bag.name} cannot begin: {why}")
        else:
            self.note(bag.name, "")

    def _begin(self, bag: DeclaredBag, name: str) -> None:
        spec = self.recorder.spec
        workers = min(bag.spec.workers or spec.worker_count, spec.worker_count)
        declared = DaskSpec(
            name,
            workers,
            threads=1,
            memory_bytes=bag.spec.memory_bytes,
            allowed_failures=0,
            bag=bag.name,
            declared_at=now(),
        )
        folder = self.directory / layout.DASKS / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = [
            each
            for each in read(self.directory / layout.JOURNAL)
            if isinstance(each, b.BagEvent) and each.bag == bag.name
        ]
        lines = "".join(json.dumps(each.to_dict()) + "\n" for each in known)
        write_atomically(folder / layout.BAG_KNOWN, lines)
        write_atomically(folder / layout.DASK, json.dumps(declared.to_dict()))
        if name not in bag.dasks:
            self.recorder.record(events.BagBegan(bag=bag.name, dask=name))
        self._dasks.declare(name)

    def _follow(self, tasks: Tasks, bag: DeclaredBag) -> None:
        key = f"bag {bag.name}"
        if bag.dasks:
            dask = self.state.of(DaskState).get(bag.dasks[-1])
        else:
            dask = None
        if bag.over or dask is None or not dask.vm:
            tasks.cancel(key)
        else:
            tasks.do(key, lambda: _Follower(self, bag.name, dask.name, dask.vm).conduct())

    # What a follower takes of it

    def take(self, bag: str, event: b.BagEvent) -> bool:
        """Have it in the journal, unless that has it, from a controller before. False where it
        makes no sense.
        """
        known = self.state.of(DeclaredBag)[bag]
        return known.over or event.time <= known.heard or self.recorder.record(event)

    def counts(self, bag: str, event: b.BagResult) -> bool:
        """Whether it is, or would be, the result of its job: of others no arrays are brought."""
        try:
            job = fold(self.state.of(DeclaredBag)[bag].state, event).jobs.get(event.job)
        except ValueError:
            return False
        return job is not None and job.result is not None and job.result.arrays == event.arrays

    def fail(self, bag: str, dask: str, reason: str) -> None:
        """End it, and its Dask cluster."""
        self._dasks.end(dask, reason)
        self.recorder.record(self.failed(bag, reason))

    @contextmanager
    def hearing(self, dask: str) -> Generator[None]:
        """Something comes from the driver in the Dask cluster."""
        self._heard[dask] = math.inf
        try:
            yield
        finally:
            self._heard[dask] = time.monotonic()


class _Follower(OnVm):
    """One driver, for as long as it is the bag's."""

    def __init__(self, bags: Bags, bag: str, dask: str, vm: str) -> None:
        super().__init__(bag, vm, bags.link, partial(bags.note, bag))
        self._bags = bags
        self._dask = dask
        self._there = layout.dask_on_vm(dask)
        self._source = VmFolder(self.connection, self._there, f"{layout.BAGS}/{bag}")
        self._since = int(now() * 1e9) - 30 * 86_400 * 10**9
        self._learnt = -1
        """The number of results from which the surrogate was made that was brought last."""

    async def conduct(self) -> None:
        """Follow it. Cancelled when its VM is gone, or the bag is over."""
        try:
            await self.retried(self._follow_events)
        except ForeignError:  # no line of its end would be read
            self._bags.fail(
                self.name, self._dask, "its drivers have told more than is taken from VMs"
            )

    async def _follow_events(self) -> None:
        path = f"{self._there}/{layout.BAG_EVENTS}"
        await self.follow(path, self._event, self._take, self._bags.allowance(self.name))

    def _event(self, line: bytes) -> b.BagEvent:
        return b.from_driver(line, self.name, self._since, int(now() * 1e9))

    async def _take(self, event: b.BagEvent) -> bool:
        if isinstance(event, b.BagResult) and event.arrays and self._bags.counts(self.name, event):
            returned = artifacts.arrays(event)
            if not (self._bags.directory / returned.files[0]).exists():
                await self._bring(returned)
        elif isinstance(event, b.BagLearnt) and event.results > self._learnt:
            # A surrogate that is being replaced now is refused: the next line tells of the one that
            # replaces it.
            await self._bring(artifacts.surrogate(self.name, event.results))
            self._learnt = event.results
        with self._bags.hearing(self._dask):
            if not self._bags.take(self.name, event):
                raise RejectedEventError("it does not follow on what was told before")
        return False

    async def _bring(self, artifact: Artifact) -> None:
        """Bring what the driver reported, once the disk here has room for it."""
        waited = False
        while True:
            try:
                with self._bags.hearing(self._dask):
                    if not await bring(artifact, self._bags.directory, self._source):
                        self.note(
                            f"The {artifact.what} did not come: its driver does not have them"
                        )
                    elif waited:
                        self.note("")
                    return
            except RoomError:
                waited = True
                self.note(
                    f"There is no room for what {self.name} returns on the disk of this machine"
                )
                with self._bags.hearing(self._dask):
                    await asyncio.sleep(on_vm.TRY_AGAIN_SECONDS)
            except ForeignError as error:
                self.note(f"The {artifact.what} did not come: {error}")
                return


WORKS = Bags
