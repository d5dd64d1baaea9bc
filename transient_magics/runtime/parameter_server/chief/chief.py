"""The chief: the socket, the files and the clock around its state machine.

It runs in ps/0's process. Its asyncio loop answers workers on the run's port from the first second
on, while a single thread imports TensorFlow, makes the records, builds the graph and later saves;
the state machine decides, this module carries out. It lives and dies with the variables it keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from ....files import write_atomically
from ....protocol import chief_messages as messages
from ....protocol import jsonl
from ....protocol.agent_commands import Assignment
from ....protocol.events import Event
from ....protocol.measures.objective import Best, Objective
from ....protocol.messages import encode
from ....protocol.run import RunSpec
from ....protocol.vm_events import (
    TrainBest,
    TrainFailed,
    TrainFinished,
    TrainProgress,
    TrainStarted,
    told,
)
from ...files import blocks, data_files
from ...files.checkpoints import Checkpoints, forget_deliveries, path_of, received_checkpoint
from ...folder import Lines, RunFolder
from ...role import DONE, LONGEST_LINE, Stopwatch, host_and_port, log, token_fits
from ...training import reproducibility
from ...training.usercode import reason
from .. import records, variables
from ..records import Records, copy_before
from ..server_load import Load, most_memory, own_load
from ..variables import Keeper, NotFiniteError, Rounds
from . import events as events
from .programs import SharedGraphs, Shipper, evaluate
from .progress import Judge
from .stall_turns import Turns
from .state import ChiefState, Phase
from .workers import Roster

_TICK = 0.25
_LOOK_SECONDS = 1.0
"""Between two looks at the global step, each of which costs the parameter server some milliseconds
(2 % at four a second); at once when a worker has reported the step at which something is due.
"""
_WEIGHTS_SECONDS = 30.0
"""Between two looks whether all variables are finite, which read all of them. A loss that is not
has one follow too.
"""
_LAST_WORDS = 1.0
_EVALUATION_SECONDS = 60.0
_EVALUATION_SHARE = 0.1
"""What an evaluation may take, and which part of the run's time, before it takes a part of the
split.
"""
_STANDBY_SECONDS = 0.1
"""Between two looks whether the run is handed over."""
_NUMBERS_APART = 100
"""Between the workers of two chiefs of one run, of which the one before still gives numbers out."""


class Chief:
    """One run's chief; `run` returns the exit code of ps/0."""

    def __init__(
        self, folder: RunFolder, spec: RunSpec, assignment: Assignment, asked: float | None = None
    ) -> None:
        """`asked`: when this process was wanted, seconds since 1970."""
        self._folder = folder
        self._spec = spec
        self._assignment = assignment
        self._stopwatch = Stopwatch(asked or time.time(), "variables")
        self._keeper = Keeper(folder, spec, assignment)
        self._kept = self._read_kept()
        events_before = list(jsonl.read(folder.events))
        roster = Roster.after(events_before)
        judge = Judge(spec, events_before)
        if folder.standby.exists():
            self._kept.setdefault("next_number", max(roster.joined, default=0) + _NUMBERS_APART)
            roster = Roster()  # they train elsewhere
        self._state = ChiefState(
            spec, self._kept, time.monotonic(), roster, judge, Turns(spec, events_before)
        )
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._lines = Lines(folder.events)
        if spec.store:
            self._shipper = Shipper(spec.name, folder, self._tell)
        else:
            self._shipper = None
        self._farewell: Event | None = None
        self._connections = 0
        self._reported = 0
        self._at_mark = asyncio.Event()
        """The last step that a worker told, and whether one was told lately at which something is
        due.
        """
        self._doubted = False
        """Whether a loss was no number since the last look at the variables."""
        self._nobody = asyncio.Event()
        self._nobody.set()
        self._records = Records(folder, spec, self._keeper)
        self._data: asyncio.Future[list[dict[str, Any]]] = (
            asyncio.get_running_loop().create_future()
        )
        """The files of the data, once they are made."""
        self._finished: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._thread = ThreadPoolExecutor(1, "chief")
        self._tasks: set[asyncio.Task[None]] = set()
        self._rounds: Rounds | None = None
        self._graphs = SharedGraphs(folder, len(assignment.ps), lambda: self._state.seconds_left)

    async def run(self) -> int:
        """Serve until the run has ended."""
        if "finished" in self._kept:
            return DONE  # killed between the last event and its exit
        forget_deliveries(self._folder.path)
        # Workers ask for them first, and build what is not there.
        await asyncio.to_thread(
            copy_before, self._folder, self._spec, "graphs", self._folder.graphs
        )
        host, port = host_and_port(self._assignment.chief)
        server = await asyncio.start_server(self._talk, host, port, limit=LONGEST_LINE)
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

    def ask_for_save(self) -> None:
        """Save now (a signal, or the agent's socket)."""
        self._happened(events.SaveAsked())

    def ask_to_evaluate(self) -> None:
        """Save and evaluate now (a signal)."""
        self._happened(events.EvaluationAsked())

    def ask_to_stop(self) -> None:
        """End the run now, with a checkpoint."""
        if self._shipper:
            self._shipper.ending = True
        self._happened(events.StopAsked())

    # --- the life of a run -------------------------------------------------------------------------------------------
    async def _prepare(self) -> None:
        """From an empty process to living variables; whatever goes wrong here ends the run with its
        reason.
        """
        try:
            self._stopwatch.lap("process")
            await asyncio.gather(self._serve_and_define(), self._restore())
            if self._spec.data_folder is None:
                files = await self._on_thread(self._records.make)
                if self._records.index.blocks:
                    self._happened(events.Indexed(self._records.index))
                self._data.set_result(files)
            else:
                await self._on_thread(self._records.insist)
            if self._spec.problem:
                await self._on_thread(self._records.keep_vocabularies)
            self._stopwatch.lap("data")
            await self._on_thread(self._keeper.build)
            self._happened(events.Built(await self._on_thread(self._keeper.fingerprint)))
            self._stopwatch.lap("graph")
            await self._until_wanted()
            step = await self._on_thread(self._keeper.prepare)
            self._stopwatch.lap("values")
            log(str(self._stopwatch))
        except Exception as error:  # noqa: BLE001 - user code and TensorFlow raise anything; it becomes train.failed
            _trace(error)
            self._happened(events.Failed(reason(error, self._spec.line_offset)))
            return
        if "started" not in self._kept:
            self._kept["started"] = time.time()
            self._keep()
        if self._shipper:
            self._shipper.due()  # a checkpoint may be here that was not shipped before this process ended
        if self._spec.mode == "sync":
            loop = asyncio.get_running_loop()
            self._rounds = Rounds(
                self._keeper,
                self._spec,
                lambda error: loop.call_soon_threadsafe(self._rounds_failed, error),
            )
            self._rounds.start()
        self._happened(events.Prepared(step, self._keeper.batch, self._best_here()))
        await self._on_thread(self._keeper.keep_graph)

    async def _until_wanted(self) -> None:
        """Where the run is to move here: wait until it is handed over, and go on behind what was
        told of it.
        """
        standby = self._folder.standby
        if not standby.exists():
            return
        self._folder.prepared.touch()
        while standby.exists():  # noqa: ASYNC110 (the agent removes it: no event comes from there)
            await asyncio.sleep(_STANDBY_SECONDS)
        told_before = list(jsonl.read(self._folder.events))
        roster = Roster.after(told_before)
        judge = Judge(self._spec, told_before)
        self._state.succeed(roster, judge, Turns(self._spec, told_before), time.monotonic())
        await self._restore()
        self._stopwatch.lap("standby")

    async def _serve_and_define(self) -> None:
        """Workers whose server this was reach it again, and open their sessions, while the code is
        run.
        """
        await self._on_thread(self._keeper.serve)
        self._stopwatch.lap("server")
        await self._on_thread(self._keeper.define)
        self._stopwatch.lap("code")

    async def _restore(self) -> None:
        """Have the newest checkpoint here.

        A run that has begun on this machine has it: nobody waits for a bucket then, unless it turns
        out to be broken.
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
        self._happened(events.Failed(reason(error, self._spec.line_offset)))

    async def _watch(self) -> None:
        """Look at the clock and the global step."""
        trouble = 0
        looked = 0.0
        examined = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK):
                    await self._at_mark.wait()
            self._at_mark.clear()
            self._lines.flush()
            due = (
                self._reported >= self._state.next_mark
                or time.monotonic() - looked >= _LOOK_SECONDS
            )
            if due and self._state.phase is Phase.TRAINING:
                looked = time.monotonic()
                try:
                    step = await self._on_thread(self._keeper.step)
                    if self._doubted or looked - examined >= _WEIGHTS_SECONDS:
                        self._doubted = False
                        examined = looked
                        await self._on_thread(self._keeper.insist_finite)
                except NotFiniteError as error:
                    self._fail(error)
                    continue
                except Exception as error:  # noqa: BLE001 - the same
                    trouble += 1
                    _trace(error)
                    if trouble >= 3:
                        self._happened(events.Failed(reason(error, self._spec.line_offset)))
                    continue
                trouble = 0
                self._happened(events.StepSeen(step))
            self._happened(events.ServerLoad(self._assignment.name, own_load(self._spec.threads)))
            self._happened(events.Tick())

    async def _save(self) -> None:
        try:
            saved = await self._on_thread(self._keeper.save)
        except NotFiniteError as error:
            self._fail(error)
            return
        except Exception as error:  # noqa: BLE001 - a full disk, a lost parameter server: training goes on without
            _trace(error)
            self._happened(events.SaveFailed(reason(error, self._spec.line_offset)))
            return
        if self._shipper:
            self._shipper.due()
        self._happened(events.SaveDone(**asdict(saved)))

    async def _evaluate(self, step: int) -> None:
        with Checkpoints(self._folder.checkpoints).locked(
            step
        ):  # until it is known whether it is the best
            how = {"awaited": self._state.is_awaited, "seconds": self._evaluation_seconds(step)}
            self._happened(await evaluate(self._folder, step, **how))

    def _evaluation_seconds(self, step: int) -> float:
        """What an evaluation of the whole split may take: a minute, or a tenth of what the run
        takes in all.
        """
        trained = time.time() - self._kept.get("started", time.time())
        return max(
            _EVALUATION_SECONDS,
            _EVALUATION_SHARE * trained * max(1.0, self._spec.train_steps / max(step, 1)),
        )

    # --- carrying out ------------------------------------------------------------------------------------------------
    def _happened(self, event: Any) -> None:
        for instruction in self._state.handle(event, time.monotonic()):
            self._carry_out(instruction)
        if self._rounds is not None:
            self._rounds.live = self._state.live(time.monotonic())

    def _carry_out(self, instruction: events.Instruction) -> None:
        match instruction:
            case events.Emit(TrainFinished() as event):
                self._kept["finished"] = event.step
                seconds = round(max(0.0, time.time() - self._kept.get("started", time.time())), 3)
                self._farewell = replace(event, seconds=seconds)
            case events.Emit(TrainStarted() as event):
                self._tell(replace(event, parameters=self._keeper.parameters))
            case events.Emit(TrainProgress() as event):
                self._tell(replace(event, server_bytes=most_memory()))
            case events.Emit(TrainFailed() as event):
                self._farewell = event
            case events.Emit(event):
                self._tell(event)
            case events.Record(line):
                with contextlib.suppress(OSError):  # a full disk costs metrics, not training
                    jsonl.append(self._folder.metrics, line)
            case events.Tell(connection, message):
                writer = self._writers.get(connection)
                if writer is not None and not writer.is_closing():
                    writer.write(message.encoded)
            case events.Save():
                self._spawn(self._save())
            case events.Evaluate(step):
                self._spawn(self._evaluate(step))
            case events.KeepBest(best, seen):
                self._keep_best(best, seen)
            case events.Persist():
                self._keep()
            case events.Release(number):
                self._spawn(self._release(number))
            case events.Finish(code):
                self._spawn(self._finish(code))

    def _best_here(self) -> Best | None:
        """The best of the checkpoints that are here; one by another objective, of a run before,
        does not stay.
        """
        checkpoints = Checkpoints(self._folder.checkpoints)
        best = checkpoints.best()
        if best and best.objective != str(self._spec.objective):
            checkpoints.keep_best(None)
            return None
        return best

    def _keep_best(self, best: Best, seen: str) -> None:
        try:
            Checkpoints(self._folder.checkpoints).keep_best(best)
        except OSError as error:  # a full disk: nothing is promised that does not hold
            log(f"the checkpoint of step {best.step}, the best so far, cannot be kept: {error}")
            return
        metric = Objective.parse(best.objective).metric
        told_of = {"run": self._spec.name, "step": best.step, "metric": metric, "value": best.value}
        self._tell(TrainBest(**told_of, path=path_of(best.step), seen=seen))
        if self._shipper:
            self._shipper.due()

    async def _release(self, number: int) -> None:
        """Not on the chief's thread: a parameter server that does not answer must not hold up a
        checkpoint.
        """
        for server in self._assignment.ps:
            try:
                await asyncio.to_thread(variables.release, server, number)
            except ConnectionError as error:
                log(str(error))
            else:
                log(f"what {server} kept of worker number {number} is released")

    def _tell(self, event: Event) -> None:
        self._lines.write(event.kind, told(event))

    async def _finish(self, code: int) -> None:
        """The last word comes after the last checkpoint is where it will stay."""
        if self._shipper:
            await self._shipper.settled()
        if self._farewell:
            self._tell(self._farewell)
        while (
            self._lines.waiting
        ):  # whoever pays for the VMs must hear the end: a full disk is waited for
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
        more = {key: self._kept[key] for key in ("started", "finished") if key in self._kept}
        try:
            write_atomically(self._folder.chief, json.dumps({**self._state.to_dict(), **more}))
        except (
            OSError
        ) as error:  # a full disk: training goes on, this process still knows every number
            print(f"the chief's state cannot be written: {error}", file=sys.stderr, flush=True)

    # --- talking to workers ------------------------------------------------------------------------------------------
    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a worker for as long as it trains, one that copies the records, or a
        server with one word.
        """
        self._connections += 1
        connection = self._connections
        self._writers[connection] = writer
        self._nobody.clear()
        try:
            line = await asyncio.wait_for(reader.readline(), 10)
            first = messages.read_first(line)
            if not token_fits(first.token, self._spec.token):
                writer.write(encode({"ok": False, "error": "wrong token"}))
                return
            match first:
                case messages.Checkpoint():
                    await self._take_checkpoint(first, reader, writer)
                case messages.Files():
                    await self._serve_files(first, reader, writer)
                case messages.Grant():
                    writer.write(encode(records.granted(self._folder.records_token)))
                case messages.Load():
                    load = Load(first.cpu_seconds, first.clock, first.cores)
                    self._happened(events.ServerLoad(first.name, load))
                case messages.Join():
                    await self._listen(connection, first, reader)
        except (OSError, ValueError, TimeoutError):
            pass  # a connection that breaks or talks nonsense is closed; the state machine hears of it below
        finally:
            del self._writers[connection]
            if not self._writers:
                self._nobody.set()
            self._happened(events.Disconnected(connection))
            writer.close()

    async def _listen(
        self, connection: int, message: messages.FromWorker, reader: asyncio.StreamReader
    ) -> None:
        while True:
            self._heard(connection, message)
            line = await reader.readline()
            if not line:
                return
            message = messages.read_from_worker(line)

    def _heard(self, connection: int, message: messages.FromWorker) -> None:
        match message:
            case messages.Join():
                self._happened(
                    events.Joined(connection, message.name, message.accelerator, message.number)
                )
            case messages.Stepping():
                program = reproducibility.parse_fingerprint(message.program)
                self._happened(
                    events.Stepping(
                        connection, message.loss, message.samples, message.speed, program
                    )
                )
                if not self._spec.stalls:  # who measures them knows its graph from building it
                    self._spawn(self._graphs.make(message.gpu))
            case messages.Reading():
                self._happened(events.Reading(connection, message.note))
            case messages.Took():
                self._happened(events.Measured(connection, message))
            case messages.Exhausted():
                self._happened(events.Exhausted(connection, message.fits))
            case messages.Metrics():
                self._reported = max(self._reported, message.step)
                self._doubted |= (
                    bool(message.line.get("steps")) and message.line.get("loss") is None
                )
                if self._reported >= self._state.next_mark:
                    self._at_mark.set()
                self._happened(events.Heard(connection, message.line))
            case messages.Unsaved():
                if (saver := self._state.saver) and saver.connection == connection:
                    self._happened(events.SaveFailed(f"{saver.name}: {message.reason}"))
            case messages.Noticed():
                self._happened(events.Noticed(connection))
            case messages.Leaving():
                self._happened(events.Leaving(connection, message.reason))
            case messages.Trouble():
                self._happened(events.Trouble(connection, message.reason, message.fatal))
            case messages.Lease():
                self._happened(events.Leasing(connection, message))
            case messages.Alive():
                self._happened(events.Heard(connection))

    async def _take_checkpoint(
        self, told: messages.Checkpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A worker brings the checkpoint that it was asked for; one that has lost that duty comes
        too late.
        """
        async with received_checkpoint(reader, told, self._folder.path) as paths:
            saver = self._state.saver
            if saver is None or saver.number != told.number:
                writer.write(encode({"ok": False, "error": "another worker saves by now"}))
                return
            try:
                saved = await self._on_thread(
                    lambda: self._keeper.take(told.step, told.seconds, paths)
                )
            except NotFiniteError as error:
                writer.write(encode({"ok": False, "error": str(error)}))
                self._fail(error)
                return
        if self._shipper:
            self._shipper.due()
        writer.write(encode({"ok": True}))
        self._happened(events.SaveDone(**asdict(saved), worker=saver.name))

    async def _serve_files(
        self, asked: messages.Files, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if asked.what == "graphs":
            directory = self._folder.graphs
            files = self._graphs.files()
        else:
            directory = self._folder.data
            files = await asyncio.shield(self._data)
        index = self._records.index
        if asked.what == "blocks":
            await records.serve_blocks(directory, index, reader, writer)
            return
        streamed = index.files if asked.what == "records" else ()
        elsewhere = self._records.elsewhere if asked.what == "records" else ()
        if streamed or elsewhere:  # of the other splits workers read nothing
            files = [file for file in files if not blocks.is_shard(file["name"])]
        answer = {"files": files, "streamed": list(streamed), "elsewhere": list(elsewhere)}
        writer.write(encode({"ok": True, **answer}))
        while line := await reader.readline():
            await data_files.serve(directory, files, messages.read_fetch(line).name, writer)

    # --- small things ------------------------------------------------------------------------------------------------
    async def _on_thread(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush(self) -> None:
        """Give the workers a moment to read the last message and say goodbye."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                for writer in list(self._writers.values()):
                    with contextlib.suppress(OSError):
                        await writer.drain()
                await self._nobody.wait()


def _trace(error: BaseException) -> None:
    """The whole traceback belongs into the role's log; the event carries one sentence."""
    import traceback

    traceback.print_exception(error)
    sys.stderr.flush()
