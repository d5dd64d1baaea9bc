"""The driver of a bag, which carries out the decisions of `Core`.

Jobs are tasks of the Dask cluster whose scheduler runs in this process. Each task is bound to the
VM that was chosen for it. A lost job starts again as another task, from its last checkpoint.

The driver appends each event to a file before the event takes effect. After a restart, the driver
reads the events of its predecessors.
"""

# pyright: basic
# (Dask's own annotations are incomplete.)

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client, Future
from distributed.core import Status
from distributed.scheduler import KilledWorker

from ....errors import PlanError
from ....files import write_atomically
from ....protocol import checks, jsonl, layout
from ....protocol.events import from_values
from ....protocol.outputs import MOST_ARRAY_BYTES, MOST_PRINTED
from ....protocol.vm_events import line_fields
from ....runtime.folder import Lines
from ...dask.on_vm import bag_task, scheduler
from ...dask.on_vm.task import DaskTask, security
from .. import events as b
from ..fold import fold
from ..policy.placement import Free
from ..spec import BagSpec
from ..state import BagState
from ..storage import pack_surrogate, read_arrays
from ..surrogate.active_learning import Proposal, expected_seconds, judge, propose
from ..surrogate.model import LEAST_RESULTS, Surrogate, learn
from .decisions import Core, Lifetimes, age_hours, batch, end

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
GRACE_SECONDS = 45.0
"""Time in which a missing worker may still be reported as crashed.

Its successor reports the crash. The VM's agent starts the successor after ten seconds at most, and
imports are slow on a busy machine.
"""
REPLACED_SECONDS = 60.0
"""Time after which a VM that was given up, but is still running, receives jobs again.

Such a VM is not replaced, because the cluster ends soon.
"""
_ABORT_SECONDS = 3.0
_DEAF_SECONDS = 10.0
"""Time from a job's timeout until the process of an unresponsive job is ended."""
_SAVED = "saved"


class BagScheduler(scheduler.VmScheduler):
    """A scheduler that receives checkpoints and remembers workers that left after a notice."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.departed: set[str] = set()
        self.printed: dict[str, str] = {}
        """Last output of jobs whose workers crashed, by worker."""
        self.on_saved: Any = None
        self.handlers["transient_saved"] = self.saved
        self.handlers["transient_printed"] = self.note_output

    async def leave(self, worker: str, *given: Any, **options: Any) -> None:
        """Remove a worker as its base class does, and record that its VM was preempted."""
        await super().leave(worker, *given, **options)
        self.departed.add(worker)

    async def note_output(self, worker: str, output: str) -> None:
        """Store the last output of a job whose worker crashed.

        The next worker of the same VM sends it.
        """
        self.printed[worker] = str(output)

    async def saved(self, job: int, attempt: int, done: float, seconds: float, data: bytes) -> None:
        """Pass on a checkpoint that a worker sent for its job."""
        if self.on_saved is not None:
            await asyncio.to_thread(
                self.on_saved, int(job), int(attempt), float(done), float(seconds), bytes(data)
            )


@dataclass
class _Attempt:
    """A running attempt; `gone` is when its worker disappeared (0: it is connected)."""

    job: int
    attempt: int
    worker: str
    future: Future
    began: float
    done: float
    gone: float = 0.0


class Driver:
    """The driver of one bag, in the `folder` of its Dask cluster on this VM."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spec = BagSpec.from_dict(checks.parsed_object((folder / layout.BAG).read_bytes()))
        self._source = (folder / layout.CELL).read_text(encoding="utf-8")
        self._lifetimes = Lifetimes.from_dict(
            checks.parsed_object((folder / layout.LIFETIMES).read_bytes())
        )
        self._core = Core(self._lifetimes)
        self._lines = Lines(folder / layout.BAG_EVENTS)
        self.state = BagState(self._spec)
        self._attempts: dict[int, _Attempt] = {}
        self._idle: dict[str, float] = {}
        self._began = time.time()
        self._given_up: dict[str, float] = {}
        """When VMs were given up, by VM."""
        self._ended_workers: set[str] = set()
        """Workers whose processes were ended because a job exceeded its timeout."""
        self._surrogate: Surrogate | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._saves: asyncio.Queue[b.BagSaved] = asyncio.Queue()
        (folder / _SAVED).mkdir(exist_ok=True, mode=0o700)
        (folder / layout.RESULTS).mkdir(exist_ok=True, mode=0o700)
        for name in (layout.BAG_KNOWN, layout.BAG_EVENTS):
            self._read(folder / name)
        for job in self.state.running:
            self._tell(
                b.BagLost(
                    bag=self._spec.name,
                    job=job.number,
                    attempt=job.attempt,
                    why="lost",
                    reason="its driver began again",
                )
            )

    def _read(self, path: Path) -> None:
        for values in jsonl.read(path):
            try:
                event = from_values(values)
                if isinstance(event, b.BagEvent):
                    self.state = fold(self.state, event)
            except ValueError as error:
                log.warning("%s: %s", path.name, error)

    def _tell(self, event: b.BagEvent) -> None:
        self.state = fold(self.state, event)
        self._lines.write(event.kind, line_fields(event))

    def saved(self, job: int, attempt: int, done: float, seconds: float, data: bytes) -> None:
        """Keep a checkpoint of a job. Threads call it."""
        running = self.state.jobs.get(job)
        if (
            running is None
            or running.phase != "running"
            or running.attempt != attempt
            or len(data) > MOST_ARRAY_BYTES
        ):
            return
        write_atomically(self._folder / _SAVED / f"{job}.npz", data)
        event = b.BagSaved(
            bag=self._spec.name,
            job=job,
            attempt=attempt,
            done=max(done, 0.0),
            seconds=max(seconds, 0.0),
        )
        if self._loop:
            self._loop.call_soon_threadsafe(self._saves.put_nowait, event)

    async def until(self, here: Any, over: asyncio.Event) -> str:
        """Compute the bag with the scheduler `here` and return why it ended."""
        self._loop = asyncio.get_running_loop()
        here.on_saved = self.saved
        options: dict[str, Any] = {
            "asynchronous": True,
            "security": security(self._folder),
            "set_as_default": False,
        }
        async with Client(here.address, **options) as client:
            while not over.is_set() and not self.state.over:
                await self._tick(here, client)
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await over.wait()
                except TimeoutError:
                    continue
        if self.state.over:
            return "its bag is over"
        return "it was requested to end"

    async def _tick(self, here: BagScheduler, client: Client) -> None:
        self._lines.flush()
        while not self._saves.empty():
            self._tell(self._saves.get_nowait())
        now = time.monotonic()
        for attempt in list(self._attempts.values()):
            await self._follow(attempt, here, client, now)
        if not end(self.state) and (many := batch(self.state, len(here.workers))):
            await self._propose(many)
        if stopped := end(self.state):
            await self._stop(stopped)
            return
        moves = self._core.moves(self.state, self._free(here, now))
        for vm in moves.given_up:
            if self.state.may_give_up:
                self._tell(b.BagGaveUp(bag=self._spec.name, vm=vm, age=self._age(here, vm)))
        for start in moves.starts:
            self._begin(start.job, start.vm, start.saves, here, client)

    async def _stop(self, stopped: b.BagStopped) -> None:
        if self.state.learnt:
            results = self.state.learnt[-1].results
        else:
            results = 0
        if self._spec.surrogate != "none" and len(self.state.results) > results:
            await self._learn()
        self._tell(stopped)

    def _free(self, here: BagScheduler, now: float) -> list[Free]:
        busy = {attempt.worker for attempt in self._attempts.values()} | self._ended_workers
        there = [
            ws
            for ws in here.workers.values()
            if ws.status == Status.running and ws.address not in busy
        ]
        for vm in self.state.given_up:
            self._given_up.setdefault(vm, now)
        there = [
            ws
            for ws in there
            if now - self._given_up.get(str(ws.name), -math.inf) > REPLACED_SECONDS
        ]
        self._idle = {str(ws.name): self._idle.get(str(ws.name), now) for ws in there}
        scale = self._lifetimes.hours_per_second
        return [
            Free(
                str(ws.name),
                age_hours(here.born.get(str(ws.name), 0.0), time.time(), self._lifetimes),
                (now - self._idle[str(ws.name)]) * scale,
                here.born.get(str(ws.name), 0.0) > self._began,
            )
            for ws in there
        ]

    def _begin(
        self, job: int, vm: str, saves: tuple[float, ...], here: BagScheduler, client: Client
    ) -> None:
        """Start a job on `vm`, or start it again from its checkpoint.

        `saves` are the seconds of computing after which the job is due to save.
        """
        before = self.state.jobs[job]
        spec = self._spec
        worker = next((ws.address for ws in here.workers.values() if str(ws.name) == vm), None)
        if worker is None:
            # The worker has just left. The next tick assigns the job again.
            return
        kept = self._folder / _SAVED / f"{job}.npz"
        if kept.exists():
            saved = kept.read_bytes()
        else:
            saved = b""
        # Without its file, for example on another VM, a checkpoint cannot be continued.
        done = before.done if saved else 0.0
        attempt = before.attempt + 1
        self._tell(
            b.BagStarted(
                bag=spec.name, job=job, attempt=attempt, vm=vm, age=self._age(here, vm), done=done
            )
        )
        limit = spec.timeout_seconds
        if limit is None:
            most = 0.0  # no limit
        else:
            # `_follow` ends a job at its timeout. If its process does not answer, the VM's agent
            # ends the process later.
            most = max(limit - done, 0.0) + _DEAF_SECONDS
        future = client.submit(
            bag_task.compute,
            self._source,
            dict(before.point),
            seed=spec.job_seed(job),
            job=job,
            attempt=attempt,
            done=done,
            state=saved,
            saves=saves,
            most=most,
            # Each attempt is a new task: Dask returns the result of an earlier task with this key.
            key=f"{spec.name}-{job}-{attempt}",
            workers=[worker],
            allow_other_workers=False,
            pure=False,
        )
        self._attempts[job] = _Attempt(job, attempt, worker, future, time.monotonic(), done)

    def _age(self, here: BagScheduler, vm: str) -> float:
        return (
            age_hours(here.born.get(vm, 0.0), time.time(), self._lifetimes)
            / self._lifetimes.hours_per_second
        )

    async def _follow(
        self, attempt: _Attempt, here: BagScheduler, client: Client, now: float
    ) -> None:
        limit = self._spec.timeout_seconds
        if attempt.future.done():
            await self._ended(attempt, here)
        elif attempt.worker not in here.workers:
            attempt.gone = attempt.gone or now
            if attempt.worker in here.departed:
                self._lost(attempt, "revoked", "")
            elif now - attempt.gone > GRACE_SECONDS:
                self._lost(
                    attempt,
                    "lost",
                    "its worker was lost without a preemption notice or a report from its VM",
                )
        elif limit is not None and attempt.done + now - attempt.began > limit:
            self._ended_workers.add(attempt.worker)
            output = ""
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(_ABORT_SECONDS):
                    output = (await client.run(bag_task.abort, workers=[attempt.worker])).get(
                        attempt.worker, ""
                    )
            self._lost(attempt, "timeout", f"it took longer than {limit:g} s", output)

    async def _ended(self, attempt: _Attempt, here: BagScheduler) -> None:
        try:
            found = await attempt.future
        except KilledWorker as error:
            notes = " ".join(getattr(error, "__notes__", []))
            output = here.printed.pop(attempt.worker, "")
            self._lost(attempt, "memory" if "memory" in notes else "crashed", notes, output)
        except asyncio.CancelledError:
            self._lost(attempt, "lost", "its task was cancelled")
        except Exception as error:  # noqa: BLE001 - any error of Dask or its pickles is reported
            self._lost(attempt, "crashed", f"{type(error).__name__}: {error}")
        else:
            await self._resulted(attempt, found)

    async def _resulted(self, attempt: _Attempt, found: Mapping[str, Any]) -> None:
        if "fault" in found:
            self._lost(
                attempt,
                "invalid" if found["fault"] == "invalid" else "raised",
                str(found.get("reason")),
                str(found.get("printed") or ""),
            )
            return
        packed = found["arrays"]
        name = f"{attempt.job}.npz"
        try:
            if packed:
                read_arrays(packed)
                write_atomically(self._folder / layout.RESULTS / name, packed)
            result = checks.built(
                b.BagResult,
                {
                    "bag": self._spec.name,
                    "job": attempt.job,
                    "attempt": attempt.attempt,
                    "returned": found["returned"],
                    "seconds": found["seconds"],
                    "arrays": name if packed else "",
                    "bytes": len(packed),
                    "digest": hashlib.sha256(packed).hexdigest() if packed else "",
                    "printed": str(found.get("printed") or "")[-MOST_PRINTED:],
                },
            )
            fold(self.state, result)
        except ValueError as error:
            self._lost(attempt, "invalid", str(error), str(found.get("printed") or ""))
            return
        self._tell(result)
        (self._folder / _SAVED / f"{attempt.job}.npz").unlink(missing_ok=True)
        self._attempts.pop(attempt.job).future.release()

    def _lost(self, attempt: _Attempt, why: Any, reason: str, output: str = "") -> None:
        self._attempts.pop(attempt.job, None)
        attempt.future.release()
        self._tell(
            b.BagLost(
                bag=self._spec.name,
                job=attempt.job,
                attempt=attempt.attempt,
                why=why,
                reason=reason[:2000],
                printed=output[-MOST_PRINTED:],
            )
        )

    async def _propose(self, many: int) -> None:
        state = self.state
        if self._spec.surrogate != "none" and len(state.results) >= LEAST_RESULTS:
            await self._learn()
            if end(self.state):
                return
        chosen = await asyncio.to_thread(self._points, many)
        turn = 1 + max((job.batch for job in state.jobs.values()), default=-1)
        for proposal in chosen:
            self._tell(
                b.BagProposed(
                    bag=self._spec.name,
                    job=len(self.state.jobs),
                    point=proposal.point,
                    batch=turn,
                    filling=proposal.filling,
                    predicted=proposal.predicted,
                )
            )

    def _points(self, many: int) -> list[Proposal]:
        state = self.state
        spec = self._spec
        seconds = [
            (state.jobs[number].point, found.seconds)
            for number in state.results
            if (found := state.jobs[number].result)
        ]
        dollars = None
        if self._surrogate is not None and len(seconds) >= LEAST_RESULTS:
            dollars = expected_seconds(spec.space, seconds, spec.seed)
        if state.outputs:
            tolerances = spec.tolerances(state.outputs)
        else:
            tolerances = None
        # Nothing is learnt where jobs fail permanently, so such points would be proposed again.
        failed = [job for job in state.jobs.values() if job.phase == "failed"]
        return propose(
            spec.space,
            self._surrogate,
            many,
            first=len(state.jobs),
            seed=spec.seed,
            in_flight=[job.point for job in (*state.running, *state.waiting, *failed)],
            tolerances=tolerances,
            dollars=dollars,
        )

    async def _learn(self) -> None:
        """Judge new results, then learn from all results so far."""
        state = self.state
        spec = self._spec
        if state.learnt:
            before = state.learnt[-1].results
        else:
            before = 0
        fresh = [state.jobs[number] for number in state.results[before:]]
        results = [
            (state.jobs[number].point, found.returned)
            for number in state.results
            if (found := state.jobs[number].result)
        ]
        try:
            kind = "ensemble" if spec.surrogate == "ensemble" else None
            self._surrogate = made = await asyncio.to_thread(
                learn, spec.space, results, kind, spec.seed
            )
            largest = await asyncio.to_thread(made.largest)
        except PlanError as error:
            log.warning("%s: %s", spec.name, error)
            return
        header, arrays = pack_surrogate(made)
        write_atomically(self._folder / layout.SURROGATE_ARRAYS, arrays)
        write_atomically(self._folder / layout.SURROGATE, header)
        judged = judge(
            [job.predicted for job in fresh], [job.result.returned for job in fresh if job.result]
        )
        self._tell(
            b.BagLearnt(
                bag=spec.name,
                batch=max(job.batch for job in state.jobs.values()),
                results=len(results),
                model=made.kind,
                judged=judged.judged,
                coverage=judged.coverage,
                residual=judged.residual,
                largest=largest,
            )
        )


async def serve(folder: Path, task: DaskTask) -> None:
    """Run the scheduler and the driver of the bag in the folder until its end or SIGTERM."""
    driver = await asyncio.to_thread(Driver, folder)
    await scheduler.serve(folder, task, BagScheduler, driver.until)
