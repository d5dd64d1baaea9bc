"""The chief's process: sockets, files, TensorFlow and the clock around the decisions of state.py.

It runs in the process of ps/0. Its asyncio loop answers workers on the run's port from the first
second on. One other thread imports TensorFlow, makes the records, builds the graph, and later
saves. `Chief._handle` passes each event to `ChiefState.handle` and carries its instructions out.
The chief ends with the variables that its process holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from ....errors import TrainingError
from ....files import write_atomically
from ....protocol import chief_messages as messages
from ....protocol import jsonl
from ....protocol.agent_commands import Assignment
from ....protocol.events import Event
from ....protocol.messages import encode
from ....protocol.objective import Best, Objective
from ....protocol.run import RunSpec
from ....protocol.vm_events import (
    TrainBest,
    TrainEpoch,
    TrainFailed,
    TrainFinished,
    TrainProgress,
    TrainStarted,
    line_fields,
)
from ...files import blocks, data_files
from ...files.checkpoints import Checkpoints, forget_deliveries, path_of, received_checkpoint
from ...folder import Lines, RunFolder
from ...phases import Phase, Phases, phase_files
from ...role import AGAIN, DONE, LONGEST_LINE, Stopwatch, host_and_port, log, token_fits
from ...training import reproducibility
from ...training.usercode import reason
from .. import records, variables
from ..records import Records, copy_from_predecessor
from ..server_load import Load, most_memory, own_load
from ..variables import Keeper, NotFiniteError, Rounds
from . import events as events
from .calls import Callbacks
from .epochs import Epochs
from .programs import SharedGraphs, Shipper, evaluate, find_phase
from .progress import Judge
from .stall_turns import Turns
from .state import ChiefState
from .state import Phase as ChiefPhase
from .workers import Roster

_TICK = 0.25
_STEP_SECONDS = 1.0
"""Pause between two readings of the global step.

Each costs the parameter server some milliseconds (2 % at four a second). When a worker reports the
step at which something is due, the step is read immediately.
"""
_WEIGHTS_SECONDS = 30.0
"""Pause between two checks that all variables are finite, which read all of them.

A loss that is not finite is followed by a check too.
"""
_FAREWELL_SECONDS = 1.0
_EVALUATION_SECONDS = 60.0
_EVALUATION_SHARE = 0.1
"""Time for an evaluation of the whole split: the larger of seconds and share of the run."""
_PHASE_SECONDS = 1.0
"""Pause between two attempts to store that a phase begins."""
_STANDBY_SECONDS = 0.1
"""Pause between two checks whether the run is handed over."""
_NUMBERS_APART = 100
"""Distance between the workers' numbers of two chiefs, while the first still gives numbers out."""


class Chief:
    """The chief of one run; `run` returns the exit code of ps/0.

    Parameters
    ----------
    folder, spec, assignment
        Folder and declaration of the run, and the assignment of ps/0.
    requested_at
        When this process was requested, in seconds since 1970.
    """

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        assignment: Assignment,
        requested_at: float | None = None,
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._assignment = assignment
        self._stopwatch = Stopwatch(requested_at or time.time(), "variables")
        self._keeper = Keeper(folder, spec, assignment)
        self._phases = Phases(folder)
        self._kept = self._read_kept()
        self._state = self._first_state(list(jsonl.read(folder.events)))
        self._lines = Lines(folder.events)
        self._farewell: Event | None = None
        """Last event of the run, which is reported once everything else is done."""
        self._shipper: Shipper | None = None
        if spec.store:
            self._shipper = Shipper(spec.name, folder, self._report)
        self._callbacks: Callbacks | None = None
        if spec.ends_epochs:
            self._callbacks = Callbacks(folder, assignment.chief, required=spec.callbacks)
        # Connections:
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._connections = 0
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        # Progress, as workers report it:
        self._reported_step = 0
        self._at_mark = asyncio.Event()
        """Set when a worker reports a step at which something is due."""
        self._check_weights = False
        """Whether a loss was not finite since the last check of the variables."""
        # Data, the thread for TensorFlow, and tasks:
        self._records = Records(folder, spec, self._keeper)
        loop = asyncio.get_running_loop()
        self._data: asyncio.Future[list[dict[str, Any]]] = loop.create_future()
        """Files of the data, once they are made."""
        self._finished: asyncio.Future[int] = loop.create_future()
        self._thread = ThreadPoolExecutor(1, "chief")
        self._tasks: set[asyncio.Task[None]] = set()
        self._rounds: Rounds | None = None
        self._graphs = SharedGraphs(folder, len(assignment.ps), lambda: self._state.seconds_left)

    def _first_state(self, run_events: list[dict[str, Any]]) -> ChiefState:
        """Return the state that follows from the events and the file of an earlier chief."""
        roster = Roster.after(run_events)
        if self._folder.standby.exists():
            # The run still trains elsewhere, under numbers that are given out there.
            most = max(roster.joined, default=0)
            self._kept.setdefault("next_number", most + _NUMBERS_APART)
            roster = Roster()
        of_phase = _of_phase(run_events, self._spec)
        judge = Judge(self._spec, of_phase)
        turns = Turns(self._spec, run_events)
        kept: Mapping[str, Any] = {}
        if self._kept.get("phase", 0) == self._spec.phase_begin:
            kept = self._kept
        epochs = Epochs(self._spec, of_phase, kept)
        return ChiefState(self._spec, self._kept, time.monotonic(), roster, judge, turns, epochs)

    async def run(self) -> int:
        """Serve until the run has ended; return the exit code."""
        if "finished" in self._kept:
            return DONE  # an earlier chief was killed between the last event and its exit
        forget_deliveries(self._folder.path)
        # Workers copy these first, and build what is missing.
        await asyncio.to_thread(
            copy_from_predecessor, self._folder, self._spec, "graphs", self._folder.graphs
        )
        host, port = host_and_port(self._assignment.chief)
        server = await asyncio.start_server(self._serve_connection, host, port, limit=LONGEST_LINE)
        self._spawn(self._prepare())
        self._spawn(self._watch())
        if self._shipper:
            self._spawn(self._shipper.keep_shipping())
        try:
            code = await self._finished
            await asyncio.sleep(0)
            await self._flush()
        finally:
            for task in self._tasks:
                task.cancel()
            server.close()
        return code

    def save_now(self) -> None:
        """Save now."""
        self._handle(events.SaveRequested())

    def evaluate_now(self) -> None:
        """Save and evaluate now."""
        self._handle(events.EvaluationRequested())

    def stop_now(self) -> None:
        """End the run now, with a checkpoint."""
        if self._shipper:
            self._shipper.ending = True
        self._handle(events.StopRequested())

    # --- the run ----------------------------------------------------------------------------------
    async def _prepare(self) -> None:
        """Get from an empty process to variables with values; any error here ends the run."""
        try:
            self._stopwatch.lap("process")
            callbacks: asyncio.Task[messages.Called] | None = None
            standby = self._folder.standby.exists()
            if self._callbacks and self._spec.callbacks and not standby:
                callbacks = asyncio.create_task(self._callbacks.begin())
            await asyncio.gather(self._serve_and_define(), self._restore())
            await self._prepare_data()
            self._stopwatch.lap("data")
            await self._on_thread(self._keeper.build)
            self._handle(events.Built(await self._on_thread(self._keeper.fingerprint)))
            self._stopwatch.lap("graph")
            await self._wait_for_hand_over()
            step = await self._on_thread(self._keeper.prepare)
            self._stopwatch.lap("values")
            log(str(self._stopwatch))
        except Exception as error:  # noqa: BLE001 - user code and TensorFlow raise anything
            _trace(error)
            self._fail(error)
            return
        if "started" not in self._kept:
            self._kept["started"] = time.time()
            self._keep()
        if self._shipper:
            # An earlier process may have ended before it shipped a checkpoint.
            self._shipper.due()
        if self._spec.mode == "sync":
            self._start_rounds()
        best = self._best_checkpoint()
        numbers = self._keeper.training_numbers
        self._handle(events.Prepared(step, self._keeper.batch, best, numbers))
        if self._callbacks and self._spec.callbacks:
            called = await (callbacks or self._callbacks.begin())
            self._handle(events.CallbacksReady(called))
        elif self._callbacks:
            self._spawn(self._callbacks.begin())
        await self._on_thread(self._keeper.keep_graph)

    async def _prepare_data(self) -> None:
        """Make or copy the records, and publish their files to workers."""
        if self._spec.data_folder is None:
            files = await self._on_thread(self._records.make)
            if self._records.index.blocks:
                self._handle(events.Indexed(self._records.index))
            self._data.set_result(files)
        else:
            await self._on_thread(self._records.check)
        if self._spec.problem:
            await self._on_thread(self._records.keep_vocabularies)

    def _start_rounds(self) -> None:
        """Start the thread that ends the rounds of synchronous steps."""
        loop = asyncio.get_running_loop()

        def failed(error: BaseException) -> None:
            loop.call_soon_threadsafe(self._rounds_failed, error)

        self._rounds = Rounds(self._keeper, self._spec, failed)
        self._rounds.start()

    async def _wait_for_hand_over(self) -> None:
        """Wait until a run that moves to this VM is handed over, and continue from its events."""
        standby = self._folder.standby
        if not standby.exists():
            return
        self._folder.prepared.touch()
        while standby.exists():  # noqa: ASYNC110 (the agent removes it: no event comes from there)
            await asyncio.sleep(_STANDBY_SECONDS)
        run_events = list(jsonl.read(self._folder.events))
        roster = Roster.after(run_events)
        of_phase = _of_phase(run_events, self._spec)
        judge = Judge(self._spec, of_phase)
        turns = Turns(self._spec, run_events)
        epochs = Epochs(self._spec, of_phase)
        self._state.succeed(roster, judge, turns, epochs, time.monotonic())
        await self._restore()
        self._stopwatch.lap("standby")

    async def _serve_and_define(self) -> None:
        """Start the server, then run the user's code.

        Workers of an earlier process connect and open their sessions while the code runs.
        """
        await self._on_thread(self._keeper.serve)
        self._stopwatch.lap("server")
        await self._on_thread(self._keeper.define)
        self._stopwatch.lap("code")

    async def _restore(self) -> None:
        """Copy the newest checkpoint from the bucket.

        A run that has started on this VM has it, and does not wait for the bucket, unless its
        checkpoint turns out to be damaged.
        """
        if not self._shipper:
            return
        restore = self._shipper.restore
        loop = asyncio.get_running_loop()
        self._keeper.mend = lambda: asyncio.run_coroutine_threadsafe(restore(), loop).result()
        if "started" not in self._kept or not Checkpoints(self._folder.checkpoints).steps():
            await restore()

    def _rounds_failed(self, error: BaseException) -> None:
        _trace(error)
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._handle(events.Failed(reason(error, self._spec.line_offset)))

    async def _watch(self) -> None:
        """Send the state the clock, the load, and the global step where it is due."""
        failures = 0
        step_read_at = 0.0
        weights_checked_at = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK):
                    await self._at_mark.wait()
            self._at_mark.clear()
            self._lines.flush()
            now = time.monotonic()
            due = (
                self._reported_step >= self._state.next_mark or now - step_read_at >= _STEP_SECONDS
            )
            if due and self._state.phase is ChiefPhase.TRAINING:
                step_read_at = now
                try:
                    step = await self._on_thread(self._keeper.step)
                    if self._check_weights or now - weights_checked_at >= _WEIGHTS_SECONDS:
                        self._check_weights = False
                        weights_checked_at = now
                        await self._on_thread(self._keeper.check_finite)
                except NotFiniteError as error:
                    self._fail(error)
                    continue
                except Exception as error:  # noqa: BLE001 - TensorFlow raises anything
                    failures += 1
                    _trace(error)
                    if failures >= 3:
                        self._fail(error)
                    continue
                failures = 0
                self._handle(events.StepSeen(step))
            self._handle(events.ServerLoad(self._assignment.name, own_load(self._spec.threads)))
            self._handle(events.Tick())

    async def _save(self) -> None:
        try:
            saved = await self._on_thread(self._keeper.save)
        except NotFiniteError as error:
            self._fail(error)
            return
        except Exception as error:  # noqa: BLE001 - a full disk, a lost parameter server
            # Training continues, and the next save tries again.
            _trace(error)
            self._handle(events.SaveFailed(reason(error, self._spec.line_offset)))
            return
        if self._shipper:
            self._shipper.due()
        self._handle(events.SaveDone(**asdict(saved)))

    async def _evaluate(self, request: events.Evaluate) -> None:
        step = request.step
        # The checkpoint is kept until it is known whether it is the best.
        with Checkpoints(self._folder.checkpoints).locked(step):
            seconds = self._evaluation_seconds(step)
            awaited = self._state.is_awaited
            if self._callbacks:
                done = await self._callbacks.end_epoch(request, seconds, awaited=awaited)
            else:
                done = await evaluate(self._folder, step, awaited=awaited, seconds=seconds)
            self._handle(done)

    async def _find_phase(self, step: int) -> None:
        """Execute the cell behind the phase that ended with the checkpoint of `step`."""
        with Checkpoints(self._folder.checkpoints).locked(step):
            try:
                phase = await find_phase(self._folder, step)
            except (TrainingError, ValueError, OSError) as error:
                self._handle(events.Failed(str(error)))
            else:
                self._handle(events.PhaseFound(phase))

    async def _begin_phase(self, phase: Phase) -> None:
        """Store the phase, also once a full disk has room, and end this process for it."""
        while True:
            try:
                await asyncio.to_thread(self._phases.begin, phase)
                break
            except OSError as error:
                log(f"phase {len(self._phases.later()) + 2} cannot begin yet: {error}")
                await asyncio.sleep(_PHASE_SECONDS)
        if self._shipper:
            self._shipper.due()
        for writer in list(self._writers.values()):
            writer.close()  # of workers that wait for the next phase
        await self._finish(AGAIN)

    def _evaluation_seconds(self, step: int) -> float:
        """Return the time that an evaluation of the whole split may take.

        That is a minute, or a tenth of the whole run as predicted at `step` if that is longer.
        """
        trained = time.time() - self._kept.get("started", time.time())
        whole_run = trained * max(1.0, self._spec.train_steps / max(step, 1))
        return max(_EVALUATION_SECONDS, _EVALUATION_SHARE * whole_run)

    # --- carrying out -----------------------------------------------------------------------------
    def _handle(self, event: Any) -> None:
        """Send an event to the state, and carry out what it returns."""
        for instruction in self._state.handle(event, time.monotonic()):
            self._carry_out(instruction)
        if self._rounds is not None:
            self._rounds.live = self._state.live(time.monotonic())
            self._rounds.limit = self._state.limit
            self._rounds.rate = self._state.rate

    def _carry_out(self, instruction: events.Instruction) -> None:
        match instruction:
            case events.Emit(TrainFinished() as event):
                self._kept["finished"] = event.step
                seconds = max(0.0, time.time() - self._kept.get("started", time.time()))
                self._farewell = replace(event, seconds=round(seconds, 3))
            case events.Emit(TrainStarted() as event):
                parameters = self._keeper.parameters
                self._report(replace(event, parameters=parameters, **self._phase_fields()))
            case events.Emit(TrainProgress() as event):
                self._report(replace(event, server_bytes=most_memory()))
            case events.Emit(TrainFailed() as event):
                self._farewell = event
            case events.Emit(event):
                self._report(event)
            case events.Record(line):
                with contextlib.suppress(
                    OSError
                ):  # a full disk loses metrics, and training continues
                    jsonl.append(self._folder.metrics, line)
            case events.Send(connection, message):
                writer = self._writers.get(connection)
                if writer is not None and not writer.is_closing():
                    writer.write(message.encoded)
            case events.Save():
                self._spawn(self._save())
            case events.Evaluate():
                self._spawn(self._evaluate(instruction))
            case events.EpochOver():
                self._report_epoch(instruction)
            case events.FindPhase(step):
                self._spawn(self._find_phase(step))
            case events.BeginPhase(phase):
                self._spawn(self._begin_phase(phase))
            case events.KeepBest(best, seen):
                self._keep_best(best, seen)
            case events.Persist():
                self._keep()
            case events.Release(number):
                self._spawn(self._release(number))
            case events.Finish(code):
                self._spawn(self._finish(code))

    def _phase_fields(self) -> dict[str, int]:
        """Return the number of the present phase and the run's steps, if it may have several."""
        later = self._phases.later()
        if later:
            return {"phase": len(later) + 1, "steps": max(later[-1].total, self._spec.train_steps)}
        if self._spec.phase_steps:
            return {"phase": 1}
        return {}

    def _best_checkpoint(self) -> Best | None:
        """Return the best checkpoint on this VM.

        A best checkpoint by another objective, of an earlier run, is not kept.
        """
        checkpoints = Checkpoints(self._folder.checkpoints)
        best = checkpoints.best()
        if best and best.objective != str(self._spec.objective):
            checkpoints.keep_best(None)
            return None
        return best

    def _report_epoch(self, over: events.EpochOver) -> None:
        ended = over.ended
        called = over.called or messages.Called()
        logs = called.logs
        if over.called is None:
            logs = {
                **self._keeper.training_results(ended.sums),
                **{f"val_{name}": value for name, value in over.metrics.items()},
            }
        self._report(
            TrainEpoch(
                run=self._spec.name,
                epoch=ended.number,
                step=ended.step,
                logs=logs,
                rate=called.rate,
                stop=called.stop,
                output=called.output,
            )
        )

    def _keep_best(self, best: Best, seen: str) -> None:
        try:
            Checkpoints(self._folder.checkpoints).keep_best(best)
        except OSError as error:
            # A full disk. No event says that the checkpoint is kept, because it may not be.
            log(f"the checkpoint of step {best.step}, the best so far, cannot be kept: {error}")
            return
        metric = Objective.parse(best.objective).metric
        self._report(
            TrainBest(
                run=self._spec.name,
                step=best.step,
                metric=metric,
                value=best.value,
                path=path_of(best.step),
                seen=seen,
            )
        )
        if self._shipper:
            self._shipper.due()

    async def _release(self, number: int) -> None:
        """Release what the parameter servers keep for worker `number`.

        Not on the chief's thread: a server that does not answer must not delay a checkpoint.
        """
        for server in self._assignment.ps:
            try:
                await asyncio.to_thread(variables.release, server, number)
            except ConnectionError as error:
                log(str(error))
            else:
                log(f"{server} released its data of worker number {number}")

    def _report(self, event: Event) -> None:
        self._lines.write(event.kind, line_fields(event))

    async def _finish(self, code: int) -> None:
        """End the process, after the last checkpoint is shipped and the last event written."""
        if self._shipper:
            await self._shipper.settled()
        if self._farewell:
            self._report(self._farewell)
        # Without the last event the VMs would not be deleted, so wait while the disk is full.
        while self._lines.waiting:
            await asyncio.sleep(_TICK)
            self._lines.flush()
        self._keep()
        if not self._finished.done():
            self._finished.set_result(code)

    def _read_kept(self) -> dict[str, Any]:
        try:
            return json.loads(self._folder.chief.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}

    def _keep(self) -> None:
        """Write what a restarted chief needs."""
        times = {key: self._kept[key] for key in ("started", "finished") if key in self._kept}
        try:
            write_atomically(self._folder.chief, json.dumps({**self._state.to_dict(), **times}))
        except OSError as error:
            # A full disk. Training continues: this process still has all numbers in memory.
            print(f"the chief's state cannot be written: {error}", file=sys.stderr, flush=True)

    # --- connections ------------------------------------------------------------------------------
    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection, which begins with the run's token.

        It is of a worker while it trains, of a process that copies files or brings a checkpoint, or
        of a parameter server with one report.
        """
        self._connections += 1
        connection = self._connections
        self._writers[connection] = writer
        self._all_closed.clear()
        try:
            line = await asyncio.wait_for(reader.readline(), 10)
            first = messages.read_first(line)
            if not token_fits(first.token, self._spec.token):
                writer.write(encode({"ok": False, "error": "wrong token"}))
                return
            match first:
                case messages.Checkpoint():
                    await self._receive_checkpoint(first, reader, writer)
                case messages.Files():
                    await self._serve_files(first, reader, writer)
                case messages.Grant():
                    writer.write(encode(records.granted(self._folder.records_token)))
                case messages.Load():
                    load = Load(first.cpu_seconds, first.clock, first.cores)
                    self._handle(events.ServerLoad(first.name, load))
                case messages.Join():
                    await self._serve_worker(connection, first, reader)
                case messages.Calls():
                    if self._callbacks:
                        await self._callbacks.serve(reader, writer)
        except (OSError, ValueError, TimeoutError):
            pass  # a broken connection or invalid message ends the connection, reported below
        finally:
            del self._writers[connection]
            if not self._writers:
                self._all_closed.set()
            self._handle(events.Disconnected(connection))
            writer.close()

    async def _serve_worker(
        self, connection: int, message: messages.FromWorker, reader: asyncio.StreamReader
    ) -> None:
        while True:
            self._receive(connection, message)
            line = await reader.readline()
            if not line:
                return
            message = messages.read_from_worker(line)

    def _receive(self, connection: int, message: messages.FromWorker) -> None:
        match message:
            case messages.Join():
                name = message.name
                joined = events.Joined(connection, name, message.accelerator, message.number)
                self._handle(joined)
            case messages.Stepping():
                program = reproducibility.parse_fingerprint(message.program)
                loss = message.loss
                stepping = events.Stepping(
                    connection, loss, message.samples, message.speed, program
                )
                self._handle(stepping)
                if not self._spec.stalls:  # each worker that measures stalls builds its graph
                    self._spawn(self._graphs.make(message.gpu))
            case messages.Reading():
                self._handle(events.Reading(connection, message.note))
            case messages.Took():
                self._handle(events.MeasureTaken(connection, message))
            case messages.Exhausted():
                self._handle(events.Exhausted(connection, message.fits))
            case messages.Metrics():
                self._reported_step = max(self._reported_step, message.step)
                if message.line.get("steps") and message.line.get("loss") is None:
                    self._check_weights = True
                if self._reported_step >= self._state.next_mark:
                    self._at_mark.set()
                self._handle(events.Heartbeat(connection, message.line))
            case messages.Unsaved():
                saver = self._state.saver
                if saver and saver.connection == connection:
                    self._handle(events.SaveFailed(f"{saver.name}: {message.reason}"))
            case messages.Noticed():
                self._handle(events.Noticed(connection))
            case messages.Leaving():
                self._handle(events.Leaving(connection, message.reason))
            case messages.Trouble():
                self._handle(events.Trouble(connection, message.reason, message.fatal))
            case messages.Lease():
                self._handle(events.Leasing(connection, message))
            case messages.Alive():
                self._handle(events.Heartbeat(connection))

    async def _receive_checkpoint(
        self,
        request: messages.Checkpoint,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Receive the requested checkpoint, unless another worker saves by now."""
        async with received_checkpoint(reader, request, self._folder.path) as paths:
            saver = self._state.saver
            if saver is None or saver.number != request.number:
                writer.write(encode({"ok": False, "error": "another worker saves by now"}))
                return
            take = partial(self._keeper.take, request.step, request.seconds, paths)
            try:
                saved = await self._on_thread(take)
            except NotFiniteError as error:
                writer.write(encode({"ok": False, "error": str(error)}))
                self._fail(error)
                return
        if self._shipper:
            self._shipper.due()
        writer.write(encode({"ok": True}))
        self._handle(events.SaveDone(**asdict(saved), worker=saver.name))

    async def _serve_files(
        self, request: messages.Files, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send the list of graphs, files or blocks, and then those that the other side names."""
        if request.what == "graphs":
            directory = self._folder.graphs
            files = self._graphs.files()
        elif request.what == "phases":
            directory = self._folder.checkpoints
            paths = phase_files(directory)
            files = [
                await asyncio.to_thread(data_files.described, path, directory) for path in paths
            ]
        else:
            directory = self._folder.data
            files = await asyncio.shield(self._data)
        index = self._records.index
        if request.what == "blocks":
            await records.serve_blocks(directory, index, reader, writer)
            return
        streamed: Sequence[str] = ()
        elsewhere: Sequence[str] = ()
        if request.what == "records":
            streamed = index.files
            elsewhere = self._records.elsewhere
        if streamed or elsewhere:
            # Workers read no other splits.
            files = [file for file in files if not blocks.is_shard(file["name"])]
        answer = {"files": files, "streamed": list(streamed), "elsewhere": list(elsewhere)}
        writer.write(encode({"ok": True, **answer}))
        while line := await reader.readline():
            await data_files.serve(directory, files, messages.read_fetch(line).name, writer)

    # --- small things -----------------------------------------------------------------------------
    async def _on_thread(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush(self) -> None:
        """Give the workers a moment to read the last message and leave."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                for writer in list(self._writers.values()):
                    with contextlib.suppress(OSError):
                        await writer.drain()
                await self._all_closed.wait()


def _of_phase(run_events: Sequence[Mapping[str, Any]], spec: RunSpec) -> list[Mapping[str, Any]]:
    """Return the events of steps after those of earlier phases of the training."""
    begin = spec.phase_begin
    if not begin:
        return list(run_events)
    return [
        event
        for event in run_events
        if int(event.get("step", 0)) > begin
        or (event["kind"] == TrainStarted.kind and event["step"] == begin)
    ]


def _trace(error: BaseException) -> None:
    """Write the whole traceback to the role's log; the event has one sentence of it."""
    traceback.print_exception(error)
    sys.stderr.flush()
