"""A cluster's life as a journal, event by event, and stand-ins that let a panel follow it without a controller."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from transient_magics.client.folders import Identity
from transient_magics.journal import ClusterState, Event, Journal, events, follow, kept, metrics, replay
from transient_magics.protocol.vm_events import (
    TrainCheckpoint,
    TrainEvaluated,
    TrainFinished,
    TrainProgress,
    TrainStarted,
    WorkerJoined,
    WorkerLeft,
)
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup

ICAC = "ICAC'19 prices (2019)"
TRAIN = {"model": "resnet", "problem": "image_digits", "hparams_set": "resnet_digits", "train_steps": 600}


def declaration(name: str = "k80x4", count: int = 4, **more: Any) -> ClusterSpec:
    return ClusterSpec(
        name=name,
        groups=(WorkerGroup("k80", count),),
        zones=("us-west1-b",),
        prices={
            "k80": PriceLine("n1-standard-4", 0.256, 0.723, ICAC),
            "parameter-server": PriceLine("n1-custom-4-16384", 0.143, 0.143, ICAC),
        },
        **{"declared_at": time.time(), "max_workers": 2 * count, **more},
    )


def requested(vm: str, slot: int, replaces: str | None = None) -> Event:
    server = vm.startswith("ps")
    return events.VmRequested(
        vm=vm, role="ps" if server else "worker", slot=slot, zone="us-west1-b", accelerator="" if server else "k80",
        machine_type="n1-custom-4-16384" if server else "n1-standard-4",
        provisioning_model="standard" if server else "spot",
        hourly=0.143 if server else 0.256, on_demand_hourly=0.143 if server else 0.723, replaces=replaces,
    )  # fmt: skip


def progress(step: int, active: int) -> Event:
    loss = 2.3 * math.exp(-step / 180) + 0.05 + 0.04 * math.sin(step)
    return TrainProgress(
        run="run-1", step=step, loss=loss, steps_per_second=1.6 * active + 0.2 * math.sin(step), active=active
    )


def life(spec: ClusterSpec, steps: int = 600) -> Iterator[tuple[str, list[Event]]]:
    """The chapters of a cluster's life: (name of the chapter, its events)."""
    count = spec.worker_count
    workers = [f"worker-{index}" for index in range(count)]
    yield (
        "declared",
        [
            events.ClusterDeclared(spec=spec.to_dict()),
            events.ControllerStarted(pid=1),
            requested("ps-0", 0),
            *(requested(vm, slot) for slot, vm in enumerate(workers)),
        ],
    )
    yield "booting", [events.VmRunning(vm=vm, address=f"10.128.0.{i + 2}") for i, vm in enumerate(["ps-0", *workers])]
    yield (
        "ready",
        [
            *(events.VmReady(vm=vm) for vm in ["ps-0", *workers]),
            events.ClusterReady(workers=count, seconds=6.2),
        ],
    )
    yield (
        "run",
        [
            events.WorkDeclared(of="run", work="run-1", spec={**TRAIN, "train_steps": steps}),
            events.ClusterLeased(ports={"run-1": 0}, workers={str(slot): "run-1" for slot in range(count)}),
            TrainStarted(run="run-1", step=0),
            *(
                WorkerJoined(run="run-1", worker=vm, number=number, active=number + 1)
                for number, vm in enumerate(workers)
            ),
        ],
    )
    third = steps // 3
    for step in range(0, third, 10):
        yield "training", [progress(step, count)]
    last = workers[-1]
    yield (
        "notice",
        [
            TrainCheckpoint(run="run-1", step=third, path=f"checkpoints/model.ckpt-{third}"),
            events.VmPreemptionNotice(vm=last),
        ],
    )
    for step in range(third, third + third // 4, 10):
        yield "noticed", [progress(step, count - 1)]
    yield (
        "revoked",
        [
            WorkerLeft(run="run-1", worker=last, number=count - 1, active=count - 1, reason="revoked"),
            events.VmRevoked(vm=last, signal="notice"),
            requested(f"worker-{count}", count - 1, last),
            events.WorkerReplaced(worker=last, by=f"worker-{count}"),
        ],
    )
    for step in range(third + third // 4, 2 * third, 10):
        yield "short", [progress(step, count - 1)]
    yield (
        "replaced",
        [
            events.VmRunning(vm=f"worker-{count}", address="10.128.0.99"),
            events.VmReady(vm=f"worker-{count}"),
            WorkerJoined(run="run-1", worker=f"worker-{count}", number=count, active=count),
        ],
    )
    for step in range(2 * third, steps, 10):
        yield "again", [progress(step, count)]
    yield (
        "finished",
        [
            TrainCheckpoint(run="run-1", step=steps, path=f"checkpoints/model.ckpt-{steps}"),
            TrainEvaluated(run="run-1", step=steps, metrics={"accuracy": 0.9472, "loss": 0.2113}),
            TrainFinished(run="run-1", step=steps, loss=0.061, seconds=95.0),
        ],
    )
    yield "deleting", [events.ClusterDeleting(reason="asked by the user")]
    yield (
        "deleted",
        [
            *(
                events.VmDeleted(vm=vm, reason="the cluster is deleted")
                for vm in ["ps-0", *workers[:-1], f"worker-{count}"]
            ),
            events.ClusterDeleted(),
        ],
    )


def state_at(chapter: str, spec: ClusterSpec | None = None, *, began: float) -> ClusterState:
    """The state at the end of a chapter of a life that began at `began`, a batch of events every two seconds."""
    moment, history = began, []
    for name, batch in life(spec or declaration()):
        for event in batch:
            history.append(
                events.from_dict(event.kind, {**event.to_dict(), "time": int(moment * 1e9), "seq": len(history) + 1})
            )
        moment += 2.0
        if name == chapter:
            break
    return replay(history)


class StoryCluster:
    """A cluster that exists in its journal only. What it is asked to do is written down in `asked`."""

    def __init__(self, path: Path, name: str = "k80x4") -> None:
        self.path, self.name = path, name
        self.asked: list[tuple[Any, ...]] = []

    @property
    def state(self) -> ClusterState:
        return kept(self.path).read()

    @property
    def identity(self) -> Identity:
        return Identity(self.name, "")

    @property
    def directory(self) -> Path:
        return self.path.parent

    def revoke(self, worker: str, seconds: float = 0.0) -> None:
        self.asked.append(("revoke", worker))

    def resize(self, spec: str = "") -> None:
        self.asked.append(("resize", spec))

    def delete(self, timeout: float | None = 300.0) -> None:
        self.asked.append(("delete",))

    def run(self, name: str | None = None, /, **options: Any) -> Any:
        return self

    def find(self, name: str) -> Any:
        return self

    def stop(self) -> None:
        self.asked.append(("stop",))

    def save(self) -> None:
        self.asked.append(("save",))

    def evaluate(self, now: bool = False) -> dict[str, float]:
        self.asked.append(("evaluate", now))
        return {}

    def logs(self, worker: str, lines: int = 200) -> str:
        return f"12:00:00 {worker} built its graph in 4.2 s\n12:00:01 first step\n"


class StoryFeed:
    """A follower of one journal: a thread with its own loop, as the client's."""

    def __init__(self, path: Path) -> None:
        self._path, self._loop = path, asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def subscribe(
        self, cluster: Identity | str, callback: Callable[[ClusterState, list[Event]], None]
    ) -> Callable[[], None]:
        async def run() -> None:
            state = ClusterState()
            async for batch in follow(self._path):
                state = replay(batch, state)
                callback(state, batch)

        return self._going_on(run)

    def rows(self, path: Path, callback: Callable[[list[dict[str, Any]]], None]) -> Callable[[], None]:
        async def run() -> None:
            async for rows in metrics.follow(path):
                callback(rows)

        return self._going_on(run)

    def _going_on(self, run: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        """Have it run on the thread; what is returned ends it, and nothing else."""
        tasks: list[asyncio.Task[None]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(run()))
            tasks[0].add_done_callback(_tell_why)

        self.call(start)
        return lambda: self.call(lambda: [task.cancel() for task in tasks])

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def every(self, seconds: float, function: Callable[[], Any]) -> Callable[[], None]:
        ended = threading.Event()

        def again() -> None:
            if not ended.is_set():
                function()
                self._loop.call_later(seconds, again)

        self.call(lambda: self._loop.call_later(seconds, again))
        return ended.set

    def at_end(self, function: Callable[[], Any]) -> Callable[[], None]:
        return lambda: None  # nobody waits for this thread when the program ends


def _tell_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        traceback.print_exception(error)


def tell(path: Path, until: str = "deleted", *, pace: float = 0.0, steps: int = 600, after: str | None = None) -> None:
    """Write a life into a journal, chapter by chapter up to `until`; `after`: only what comes behind that chapter."""
    writing = after is None
    ended = False
    with Journal(path) as journal:
        for name, batch in life(declaration(), steps):
            if ended and name != until:
                return
            if writing:
                journal.extend(batch)
                time.sleep(pace)
            ended = ended or name == until
            if name == after:
                writing = True
