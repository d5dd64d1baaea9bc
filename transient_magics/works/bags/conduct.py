"""Conduct the bags of a cluster, from the controller.

`decisions.decide` returns what is due, and `Bags` records it or starts the Dask cluster of a bag. A
`_Follower` records what the bag's driver reports, and copies arrays and the surrogate.

A driver runs on a VM with user code, so its reports are not trusted. Each line is checked and must
fit the earlier ones. A file has a size limit, and counts once it is here, has the reported digest
and holds plain numbers alone.
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
"""Time to wait for reports of an ended driver: if it was silent, and if its scheduler closed.

After a normal end, the last report is in flight, possibly over a new connection.
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
        """Times at which Dask clusters were first found over, on the monotonic clock."""
        self._last_reports: dict[str, float] = {}
        """Times of the last reports of drivers, on that clock; infinite while data arrives."""

    @property
    def _dasks(self) -> Dasks:
        return cast("Dasks", self.others["dask"])

    def prepare(self, name: str, spec: BagSpec) -> None:
        """Check that results of a bag can be read here. Raises ClusterError."""
        if not artifacts.can_read():
            raise ClusterError(
                f"A bag needs NumPy, which the controller of {self.directory.name} does not have",
                fix=install_extra("bags"),
            )

    def tick(self, tick: Tick) -> None:
        """Record and start what is due."""
        for name in [bag.name for bag in self.state.active(DeclaredBag)]:
            bag = self.state.of(DeclaredBag)[name]
            if not bag.stop and not self.has_packages(name, bag.spec, tick.tasks):
                continue
            cost = 0.0
            if bag.spec.max_cost is not None:
                cost = charged(self.state, name, tick.at)
            match decide(bag, self.state, cost, tick.at, arriving=self._arriving(bag)):
                case Begin(dask):
                    self._try_to_begin(bag, dask)
                case Stop(reason, state):
                    self.request_end(name, reason=reason, state=state)
                case EndDask(dask, reason):
                    self._dasks.request_end(dask, reason=reason)
                case End(state, reason):
                    self.record_end(name, state=state, reason=reason)
                case None:
                    pass
            self._follow(tick.tasks, self.state.of(DeclaredBag)[name])

    def _arriving(self, bag: DeclaredBag) -> bool:
        """Return whether reports of the bag's last driver, which has ended, may still arrive."""
        dask = self._last_dask(bag)
        if dask is None or not dask.over or self.state.phase == "deleting":
            return False
        vm = self.state.vms.get(dask.vm)
        if vm is None or not vm.living:
            return False
        patience = _SILENT_SECONDS
        if dask.closed and not bag.stop:
            patience = _CLOSED_SECONDS
        at = time.monotonic()
        over_at = self._over.setdefault(dask.name, at)
        last_report_at = self._last_reports.get(dask.name, 0.0)
        return at - max(over_at, last_report_at) < patience

    def _last_dask(self, bag: DeclaredBag) -> DaskState | None:
        if not bag.dasks:
            return None
        return self.state.of(DaskState).get(bag.dasks[-1])

    def _try_to_begin(self, bag: DeclaredBag, name: str) -> None:
        """Start a Dask cluster and report errors, such as a full disk. The next tick retries."""
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
        history = [
            event
            for event in read(self.directory / layout.JOURNAL)
            if isinstance(event, b.BagEvent) and event.bag == bag.name
        ]
        lines = "".join(json.dumps(event.to_dict()) + "\n" for event in history)
        write_atomically(folder / layout.BAG_KNOWN, lines)
        write_atomically(folder / layout.DASK, json.dumps(declared.to_dict()))
        if name not in bag.dasks:
            self.recorder.record(events.BagBegan(bag=bag.name, dask=name))
        self._dasks.declare(name)

    def _follow(self, tasks: Tasks, bag: DeclaredBag) -> None:
        key = f"bag {bag.name}"
        dask = self._last_dask(bag)
        if bag.over or dask is None or not dask.vm:
            tasks.cancel(key)
        else:
            tasks.do(key, lambda: _Follower(self, bag.name, dask.name, dask.vm).conduct())

    # For followers

    def record(self, bag: str, event: b.BagEvent) -> bool:
        """Record an event unless the journal has it; return False if it does not fit the state."""
        present = self.state.of(DeclaredBag)[bag]
        return present.over or event.time <= present.reported_at or self.recorder.record(event)

    def counts(self, bag: str, event: b.BagResult) -> bool:
        """Return whether a result counts for its job; arrays of other results are not copied."""
        try:
            job = fold(self.state.of(DeclaredBag)[bag].state, event).jobs.get(event.job)
        except ValueError:
            return False
        return job is not None and job.result is not None and job.result.arrays == event.arrays

    def fail(self, bag: str, dask: str, reason: str) -> None:
        """Fail a bag, and stop its Dask cluster."""
        self._dasks.request_end(dask, reason=reason)
        self.recorder.record(self.failed(bag, reason))

    @contextmanager
    def receiving(self, dask: str) -> Generator[None]:
        """Note that data arrives from the driver in a Dask cluster during the block."""
        self._last_reports[dask] = math.inf
        try:
            yield
        finally:
            self._last_reports[dask] = time.monotonic()


class _Follower(OnVm):
    """Follows one driver of a bag."""

    def __init__(self, bags: Bags, bag: str, dask: str, vm: str) -> None:
        super().__init__(bag, vm, bags.link, partial(bags.note, bag))
        self._bags = bags
        self._dask = dask
        self._folder_on_vm = layout.work_on_vm("dask", dask)
        self._source = VmFolder(self.connection, self._folder_on_vm, f"{layout.BAGS}/{bag}")
        self._earliest_ns = int(now() * 1e9) - 30 * 86_400 * 10**9
        self._learnt = -1
        """The number of results behind the surrogate that was copied last."""

    async def conduct(self) -> None:
        """Follow the driver. Cancelled when its VM is gone, or the bag is over."""
        try:
            await self.retried(self._follow_events)
        except ForeignError:  # its end would not be read
            reason = "its drivers have reported more than is read from VMs"
            self._bags.fail(self.name, self._dask, reason)

    async def _follow_events(self) -> None:
        path = f"{self._folder_on_vm}/{layout.BAG_EVENTS}"
        await self.follow(path, self._parse, self._handle, self._bags.allowance(self.name))

    def _parse(self, line: bytes) -> b.BagEvent:
        return b.from_driver(line, self.name, self._earliest_ns, int(now() * 1e9))

    async def _handle(self, event: b.BagEvent) -> bool:
        if isinstance(event, b.BagResult) and event.arrays and self._bags.counts(self.name, event):
            returned = artifacts.arrays(event)
            if not (self._bags.directory / returned.files[0]).exists():
                await self._bring(returned)
        elif isinstance(event, b.BagLearnt) and event.results > self._learnt:
            # A surrogate that is replaced at this moment is refused; the next line reports its
            # replacement.
            await self._bring(artifacts.surrogate(self.name, event.results))
            self._learnt = event.results
        with self._bags.receiving(self._dask):
            if not self._bags.record(self.name, event):
                raise RejectedEventError("the event contradicts earlier events")
        return False

    async def _bring(self, artifact: Artifact) -> None:
        """Copy what the driver reported, once this machine's disk has room for it."""
        waited = False
        while True:
            try:
                with self._bags.receiving(self._dask):
                    if not await bring(artifact, self._bags.directory, self._source):
                        self.note(f"Cannot copy the {artifact.what}: the driver does not have them")
                    elif waited:
                        self.note("")
                    return
            except RoomError:
                waited = True
                self.note(f"This machine's disk has no room for results of {self.name}")
                with self._bags.receiving(self._dask):
                    await asyncio.sleep(on_vm.TRY_AGAIN_SECONDS)
            except ForeignError as error:
                self.note(f"Cannot copy the {artifact.what}: {error}")
                return


WORKS = Bags
