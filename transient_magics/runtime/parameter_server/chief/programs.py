"""Programs that a chief runs beside the training: evaluations, graphs for later workers, copies to
and from buckets.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from ....errors import TrainingError
from ....protocol import jsonl, layout
from ....protocol.agent_commands import Fork, Program
from ....protocol.backoff import backoff
from ....protocol.events import Event
from ....protocol.objective import Objective
from ....protocol.vm_events import TrainBest, TrainEvaluated, TrainShipped, TrainUnshipped
from ...files.checkpoints import Checkpoints, path_of
from ...files.data_files import described
from ...folder import RunFolder
from ...role import RUNTIME, decode, log
from ...training import reproducibility
from ...training.usercode import sentence
from .events import EvaluationDone

_LONGEST = 900.0
_PASSES = 3
"""Seconds, and how often the time of the split is added: what takes longer has failed. It is read
to see whether it is too long, counted, and then a part of it read.
"""
_PART = ("of", "endless", "drawn", "among")
"""What an event says of the part of the split."""
_QUEUE = ".evaluations"
_LOOK_SECONDS = 0.2
"""Between two looks whether another run's evaluation is over."""

_AFTER = 15.0
"""Seconds of training before it is written: a run that is over by then has no use for it, nor has
its start.
"""
_WORTH_SECONDS = 60.0
"""Of training that are left: so shortly before its end few workers join a run, and those build
their graphs.
"""
_IDLE_SECONDS = 60.0
"""What writing may take on cores that have nothing else to do; a model of today takes eight."""
_MOST_SECONDS = 900.0

_TRIES = 5
_FIRST_PAUSE = 2.0
_MOST_COPY_SECONDS = 3600.0
_LAST_SECONDS = 180.0
_BRIEFLY_SECONDS = 60.0
_CLOCK_SECONDS = 5.0


async def evaluate(
    folder: RunFolder, step: int, *, awaited: bool = False, seconds: float = 60.0
) -> EvaluationDone:
    """Evaluate the checkpoint of `step`; whatever goes wrong is the reason in the answer.

    Steps come first on the VM's cores, unless the evaluation is `awaited`. `seconds`: what the
    whole split may take.
    """
    wanted = ["--run", str(folder.path), "--step", str(step), "--seconds", f"{seconds:.0f}"]
    wanted += ["--before", json.dumps(_part_before(folder))]
    wanted += ["--awaited"] if awaited else []
    log_file = folder.logs / "evaluate.log"
    longest = _LONGEST + _PASSES * seconds
    with Checkpoints(folder.checkpoints).locked(
        step
    ):  # the next ones may be written faster than a process starts
        try:
            async with _turn(folder):
                said = await answer(
                    "evaluate", *wanted, log=log_file, limit=longest, name="metrics", beside=folder
                )
        except OSError as error:  # a full disk
            return EvaluationDone(step, reason=sentence(error))
    if reason := said.get("error", ""):
        log(f"evaluation of step {step}: {reason}")
        return EvaluationDone(step, reason=reason)
    told = {
        name: said[name] for name in ("batches", "examples", "complete", *_PART) if name in said
    }
    undefined = tuple(said.get("undefined", ()))
    program = reproducibility.parse_fingerprint(said.get("program", ""))
    return EvaluationDone(step, said["metrics"], undefined=undefined, program=program, **told)


def _part_before(folder: RunFolder) -> dict[str, Any]:
    """Which part of the dev split the run's latest evaluation was of; nothing where there was none."""
    evaluated = [
        event for event in jsonl.read(folder.events) if event.get("kind") == TrainEvaluated.kind
    ]
    if not evaluated:
        return {}
    told = {name: evaluated[-1][name] for name in _PART if name in evaluated[-1]}
    return {"complete": evaluated[-1].get("complete", True), **told}


@asynccontextmanager
async def _turn(folder: RunFolder) -> AsyncIterator[None]:
    """Until the end nobody else evaluates on this VM: each evaluation holds a model in memory, and
    takes the cores.

    Who asked first comes first. A place in the queue is a file that its owner holds a lock on, so
    that nobody waits for a process that is no more. Raises OSError.
    """
    queue = folder.path.parent / _QUEUE  # of all runs on this VM
    queue.mkdir(exist_ok=True)
    place = queue / f"{time.monotonic_ns():020d}-{os.getpid()}"
    lock = os.open(
        young := place.with_name(f".{place.name}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        young.rename(place)  # nobody sees it without its lock
        while any(_is_held(each) for each in queue.glob("[0-9]*") if each < place):  # noqa: ASYNC110 - processes let go
            await asyncio.sleep(_LOOK_SECONDS)
        yield
    finally:
        place.unlink(missing_ok=True)
        os.close(lock)


def _is_held(place: Path) -> bool:
    """Whether its owner lives; a place that nobody holds is taken out of the queue."""
    try:
        lock = os.open(place, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        place.unlink(missing_ok=True)
        return False
    finally:
        os.close(lock)


# Has workers' graphs written into files, for those that join later (programs/shared_graph.py).
#
# That happens once a run has trained for a while, in a process of the lowest priority, at which it
# takes no time from anybody; where nobody leaves it any, another tries at a low one. There is one
# file for machines with a GPU and one for those without: models differ in them.


class SharedGraphs:
    """The chief's side: has graphs written, one for each kind of machine, and lists those that are
    there.

    `left` tells for how many seconds the run will train on.
    """

    def __init__(self, folder: RunFolder, servers: int, left: Callable[[], float]) -> None:
        self._folder = folder
        self._servers = servers
        self._left = left
        self._begun: set[str] = set()

    def files(self) -> list[dict[str, Any]]:
        """Name, size and sum of each."""
        return [
            described(path, self._folder.graphs)
            for path in sorted(self._folder.graphs.glob(f"*-{self._servers}.graph"))
        ]

    async def make(self, gpu: bool) -> None:
        """Have the graph for such machines written, unless that was begun already. Its failure is
        only logged.
        """
        path = self._folder.graph_file(gpu, self._servers)
        if path.name in self._begun or path.exists():
            return
        self._begun.add(path.name)
        await asyncio.sleep(_AFTER)
        if self._left() < _WORTH_SECONDS:
            return
        given = [
            "--run",
            str(self._folder.path),
            "--servers",
            str(self._servers),
            *(["--gpu"] if gpu else []),
        ]
        run = partial(
            ended, "shared_graph", *given, log=self._folder.logs / "graph.log", beside=self._folder
        )
        if not await run("--idle", limit=_IDLE_SECONDS) and not await run(limit=_MOST_SECONDS):
            print(
                f"the graph took more than {_MOST_SECONDS:.0f} s to write",
                file=sys.stderr,
                flush=True,
            )


# The chief's messenger to the run's bucket: has checkpoints shipped beside the training, and
# restored before it.
#
# What is done is done by processes of `shipping.py`, one at a time. Checkpoints that come while one
# is under way are not queued: the next to be shipped is the newest. What became of each is told as
# an event, `train.shipped` or `train.unshipped`. The VM's token for the bucket ends where nobody
# renews it: what could not be shipped is tried again with the next one.


class Shipper:
    """Ships the checkpoints of the run in `folder`; `report` takes events."""

    def __init__(self, run: str, folder: RunFolder, report: Callable[[Event], None]) -> None:
        self._run = run
        self._folder = folder
        self._report = report
        self._due = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._shipped = ""
        self._best = ""
        self.ending = False
        """The run is being stopped: what is shipped now takes no other one's place, which its
        result may name.
        """

    def due(self) -> None:
        """There is a new checkpoint."""
        self._settled.clear()
        self._due.set()

    async def keep_shipping(self) -> None:
        """Ship whatever is due, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            token = self._token()
            if not await self._ship():
                await self._due_or_other_token(token)
            if not self._due.is_set():
                self._settled.set()

    async def settled(self) -> None:
        """Wait until the newest checkpoint is in the bucket, or was refused, or three minutes have
        passed.
        """
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self._settled.wait()
        except TimeoutError:
            print(
                f"the last checkpoint was not shipped within {_LAST_SECONDS:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    async def restore(self) -> None:
        """Have the bucket's newest good checkpoint in the run's folder, if none as new is there.

        Where the bucket does not answer the run goes on from what is here, and that after a minute
        where nothing newer is known to have been shipped. Raises TrainingError if nothing is here.
        """
        here = Checkpoints(self._folder.checkpoints).steps()
        if not here or here[0] < _shipped(self._folder):
            return await self._restore()
        try:
            async with asyncio.timeout(_BRIEFLY_SECONDS):
                return await self._restore()
        except TimeoutError:
            said = f"the bucket has not answered within {_BRIEFLY_SECONDS:.0f} s: the run goes on from step {here[0]}"
            print(said, file=sys.stderr, flush=True)

    async def _restore(self) -> None:
        restored: dict[str, Any] = {}
        for attempt in range(_TRIES):
            restored = await self._program("restore")
            for refused in restored.get("refused", ()):
                print(f"not restored: {refused}", file=sys.stderr, flush=True)
            if "error" not in restored:
                return
            print(f"not restored: {restored['error']}", file=sys.stderr, flush=True)
            if attempt < _TRIES - 1:
                await asyncio.sleep(backoff(attempt + 1, _FIRST_PAUSE))
        if not Checkpoints(self._folder.checkpoints).steps():
            raise TrainingError(restored["error"])

    async def _due_or_other_token(self, before: object) -> None:
        while not self._due.is_set():
            if self._token() != before:
                self._due.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOCK_SECONDS):
                    await self._due.wait()

    def _token(self) -> object:
        """What changes with every token that is brought."""
        try:
            found = self._folder.bucket_token.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    async def _ship(self) -> bool:
        for attempt in range(_TRIES):
            shipped = await self._program("ship", *(["--beside"] if self.ending else []))
            if "error" not in shipped:
                best = shipped.pop("best", None)
                if shipped.get("step") is not None and shipped["path"] != self._shipped:
                    self._shipped = shipped["path"]
                    self._report(TrainShipped(run=self._run, **shipped))
                if best and best["path"] != self._best:
                    self._best = best["path"]
                    metric = Objective.parse(best["objective"]).metric
                    where = {"path": path_of(best["step"]), "shipped": best["path"]}
                    self._report(
                        TrainBest(
                            run=self._run,
                            step=best["step"],
                            metric=metric,
                            value=best["value"],
                            **where,
                        )
                    )
                return True
            print(f"not shipped: {shipped['error']}", file=sys.stderr, flush=True)
            if attempt == 0:
                self._report(TrainUnshipped(run=self._run, reason=str(shipped["error"])))
                if not self._due.is_set():
                    self._settled.set()  # nobody waits for the other attempts: the controller brings it home meanwhile
            await asyncio.sleep(backoff(attempt + 1, _FIRST_PAUSE))
        return False

    async def _program(self, do: str, *more: str) -> dict[str, Any]:
        self._folder.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = self._folder.logs / "shipping.log"
        return await answer(
            "shipping",
            do,
            "--run",
            str(self._folder.path),
            *more,
            log=log,
            limit=_MOST_COPY_SECONDS,
        )


def _shipped(folder: RunFolder) -> int:
    """The newest step that is known to have been shipped; -1 if there is none."""
    steps = [-1]
    with contextlib.suppress(OSError):
        for event in jsonl.read(folder.events):
            if event.get("kind") == TrainShipped.kind and isinstance(
                step := event.get("step"), int
            ):
                steps.append(step)
    return max(steps)


# One of our programs beside the chief, in a process of its own: what it answers, or why there is no answer.
#
# It may fail or die without harm to training, and its memory goes when it ends.


async def answer(
    module: str,
    *arguments: str,
    log: Path,
    limit: float,
    name: str = "",
    beside: RunFolder | None = None,
) -> dict[str, Any]:
    """Run `module` of this package; the JSON object on its last line, which has a value `name` (if
    one is given).

    Whatever goes wrong is the answer's `error`. The process ends with the caller, and after `limit`
    seconds; what it writes to stderr goes into `log`. Where it is forked `beside` a run it has
    TensorFlow imported.
    """
    code: int | None = None
    try:
        async with asyncio.timeout(limit):
            if beside:
                output = await answer_of_fork(beside, module, arguments)
            else:
                output = None
            if output is None:
                output, code = await _spawned(module, arguments, log)
    except TimeoutError:
        return {"error": f"it took more than {limit / 60:.0f} min"}
    except OSError as error:
        return {"error": sentence(error)}
    try:
        said = decode(output.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": _end(code)}
    if not name or said.keys() & {name, "error"}:
        return said
    return {"error": _end(code)}


async def ended(module: str, *arguments: str, log: Path, limit: float, beside: RunFolder) -> bool:
    """Run `module` as above; whether it ended in time, with whatever result. Raises OSError where
    it cannot begin.
    """
    try:
        async with asyncio.timeout(limit):
            if not await run_forked(beside, module, arguments):
                await _spawned(module, arguments, log)
    except TimeoutError:
        return False
    return True


async def _spawned(module: str, arguments: Sequence[str], log: Path) -> tuple[bytes, int | None]:
    """What it says and its exit code."""
    command = [sys.executable, "-m", f"{RUNTIME}.programs.{module}", *arguments]
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output, process.returncode


def _end(code: int | None) -> str:
    if code is None:
        return (
            "its process ended without an answer; the parameter server's VM may be short of memory"
        )
    if code == -signal.SIGKILL:
        return "its process was killed; the parameter server's VM may be short of memory"
    return f"its process ended {f'by signal {-code}' if code < 0 else f'with code {code}'} and without an answer"


# One of our programs beside a run, forked by its VM's agent: TensorFlow, which takes seconds to
# import, is there.
#
# The caller asks the agent and watches the process that it is told of, whatever becomes of the
# agent then. Where there is no agent, or it has no fork server for models of this kind, the program
# is started plainly instead.


async def answer_of_fork(folder: RunFolder, program: str, arguments: Sequence[str]) -> bytes | None:
    """What it answers, once it has ended; None where it could not be forked. It ends if this is
    cancelled.
    """
    place = folder.logs / f"{program}.answer"
    place.unlink(missing_ok=True)
    if not await run_forked(folder, program, (*arguments, "--answer", str(place))):
        return None
    if place.exists():
        return place.read_bytes()
    return b""


async def run_forked(folder: RunFolder, program: str, arguments: Sequence[str]) -> bool:
    """Wait until it has ended; False where it could not be forked. It ends if this is cancelled."""
    asked = Fork(
        run=folder.path.name,
        program=cast("Program", program),
        arguments=(*arguments,),
        caller=os.getpid(),
    )
    pid = await _forked(folder, asked)
    if pid is None:
        return False
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    return True


async def _forked(folder: RunFolder, asked: Fork) -> int | None:
    """The process that the agent tells of."""
    agent = folder.path.parent.parent / layout.AGENT_SOCKET
    try:
        reader, writer = await asyncio.open_unix_connection(agent)
    except OSError:
        return None
    try:
        writer.write(asked.encoded)
        said = decode(await reader.readline())
    except (OSError, ValueError):
        return None
    finally:
        writer.close()
    pid = said.get("pid")
    return pid if isinstance(pid, int) else None
