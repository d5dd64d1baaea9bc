"""Programs that a chief runs beside training: evaluations, shared graphs, copies to the bucket.

Each is a process of its own, so it may fail without harm to training, and its memory is free when
it ends. The agent of the VM forks it with TensorFlow imported, which otherwise takes seconds. If
there is no agent, or no fork server for the model, it is started as a plain program.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from ....errors import TrainingError
from ....protocol import checks, jsonl, layout
from ....protocol.agent_commands import Fork, Program
from ....protocol.backoff import backoff
from ....protocol.events import Event
from ....protocol.objective import Objective
from ....protocol.vm_events import TrainBest, TrainEvaluated, TrainShipped, TrainUnshipped
from ...files.checkpoints import Checkpoints, path_of
from ...files.data_files import described
from ...folder import RunFolder
from ...phases import Phase
from ...role import RUNTIME, decode, log
from ...training import reproducibility
from ...training.usercode import sentence
from .events import EvaluationDone

_LONGEST = 900.0
PASSES = 3
"""Time limit of an evaluation: these seconds, and this many times the seconds of the split.

The split may be read to see that it takes too long, then to count it, and then in part.
"""
_PART = ("of", "endless", "drawn", "among")
"""Fields of an event about the part of the split that was evaluated."""
_QUEUE = ".evaluations"
_POLL_SECONDS = 0.2
"""Pause between two checks whether the evaluation of another run has ended."""

_GRAPH_AFTER = 15.0
"""Seconds of training before a graph is written: shorter runs do not need it."""
_WORTH_SECONDS = 60.0
"""Least seconds of training left that make it worthwhile: few workers join near the end."""
_IDLE_SECONDS = 60.0
"""Time limit for writing a graph on idle cores only; models of today take eight seconds."""
_MOST_SECONDS = 900.0

_TRIES = 5
_FIRST_PAUSE = 2.0
_COPY_SECONDS = 3600.0
"""Time limit of one copy to or from the bucket."""
_LAST_SECONDS = 180.0
"""Time that the end of a run waits for the last copy."""
_RESTORE_SECONDS = 60.0
"""Time limit for restoring from the bucket, if a checkpoint is on this VM."""
_TOKEN_SECONDS = 5.0
"""Pause between two checks for a new token."""


async def evaluate(
    folder: RunFolder, step: int, *, awaited: bool = False, seconds: float = 60.0
) -> EvaluationDone:
    """Evaluate the checkpoint of `step`; any error is the reason in the result.

    Parameters
    ----------
    folder
        Folder of the run.
    step
        Step of the checkpoint.
    awaited
        Whether training waits for it. Otherwise training has precedence on the VM's cores.
    seconds
        Time that the whole split may take.
    """
    arguments = ["--run", str(folder.path), "--step", str(step), "--seconds", f"{seconds:.0f}"]
    arguments += ["--before", json.dumps(part_before(folder))]
    if awaited:
        arguments.append("--awaited")
    log_file = folder.logs / "evaluate.log"
    limit = _LONGEST + PASSES * seconds
    # The next checkpoints may be written faster than a process starts, and this one be dropped.
    with Checkpoints(folder.checkpoints).locked(step):
        try:
            async with _turn(folder):
                result = await answer(
                    "evaluate",
                    *arguments,
                    log=log_file,
                    limit=limit,
                    name="metrics",
                    beside=folder,
                )
        except OSError as error:  # a full disk
            return EvaluationDone(step, reason=sentence(error))
    return evaluation_done(step, result)


def evaluation_done(step: int, result: Mapping[str, Any]) -> EvaluationDone:
    """Return the event of an evaluation from the answer of `programs/evaluate.py`."""
    if reason := result.get("error", ""):
        log(f"evaluation of step {step}: {reason}")
        return EvaluationDone(step, reason=reason)
    names = ("batches", "examples", "complete", *_PART)
    size = {name: result[name] for name in names if name in result}
    undefined = tuple(result.get("undefined", ()))
    program = reproducibility.parse_fingerprint(result.get("program", ""))
    metrics = result.get("metrics", {})
    return EvaluationDone(step, metrics, undefined=undefined, program=program, **size)


async def find_phase(folder: RunFolder, step: int) -> Phase | None:
    """Return the phase that follows the checkpoint of `step`; None if the training is over.

    Raises TrainingError, with the cell's error or after several attempts.
    """
    arguments = ["--run", str(folder.path), "--step", str(step)]
    log_file = folder.logs / "next_phase.log"
    run = partial(answer, "next_phase", *arguments, log=log_file, limit=_LONGEST, beside=folder)
    result: dict[str, Any] = {}
    for attempt in range(_TRIES):
        result = await run()
        if "refused" in result:
            raise TrainingError(str(result["refused"]))
        if "phase" in result:
            if result["phase"] is None:
                return None
            return checks.built(Phase, result["phase"])
        log(f"the next phase after step {step}: {result.get('error')}")
        await asyncio.sleep(backoff(attempt + 1, _FIRST_PAUSE))
    raise TrainingError(f"the phase after step {step:,} was not found: {result.get('error')}")


def part_before(folder: RunFolder) -> dict[str, Any]:
    """Return the part of the dev split that the last evaluation had; nothing before the first."""
    latest: Mapping[str, Any] | None = None
    for event in jsonl.read(folder.events):
        if event.get("kind") == TrainEvaluated.kind:
            latest = event
    if latest is None:
        return {}
    part = {name: latest[name] for name in _PART if name in latest}
    return {"complete": latest.get("complete", True), **part}


@asynccontextmanager
async def _turn(folder: RunFolder) -> AsyncIterator[None]:
    """Wait until no other run on this VM evaluates, and keep others waiting inside the block.

    Each evaluation has a model in memory, and uses the cores. Evaluations take turns in the order
    of their requests. A place in the queue is a file that its process locks, so a process that is
    gone blocks no other. Raises OSError.
    """
    queue = folder.path.parent / _QUEUE  # of all runs on this VM
    queue.mkdir(exist_ok=True)
    place = queue / f"{time.monotonic_ns():020d}-{os.getpid()}"
    unlocked = place.with_name(f".{place.name}")
    lock = os.open(unlocked, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unlocked.rename(place)  # others see it only with its lock
        while _is_behind(place, queue):  # noqa: ASYNC110 - other processes release the locks
            await asyncio.sleep(_POLL_SECONDS)
        yield
    finally:
        place.unlink(missing_ok=True)
        os.close(lock)


def _is_behind(place: Path, queue: Path) -> bool:
    """Return whether a living process has an earlier place in the queue."""
    return any(_is_locked(other) for other in queue.glob("[0-9]*") if other < place)


def _is_locked(place: Path) -> bool:
    """Return whether the owner of a place lives; remove the place if not."""
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


class SharedGraphs:
    """Workers' graphs in files, for workers that join later (programs/shared_graph.py).

    They are written once a run has trained for a while, by a process of the lowest priority, which
    takes no time from others. If it gets no time at all, another process tries with a low priority.
    There is one file for VMs with a GPU and one for VMs without, because models may differ.

    Parameters
    ----------
    folder
        Folder of the run.
    servers
        Number of parameter servers.
    left
        Returns the predicted seconds until the end of training.
    """

    def __init__(self, folder: RunFolder, servers: int, left: Callable[[], float]) -> None:
        self._folder = folder
        self._servers = servers
        self._left = left
        self._started: set[str] = set()

    def files(self) -> list[dict[str, Any]]:
        """Return name, size and checksum of each file."""
        return [
            described(path, self._folder.graphs)
            for path in sorted(self._folder.graphs.glob(f"*-{self._servers}.graph"))
        ]

    async def make(self, gpu: bool) -> None:
        """Write the graph for VMs with or without a GPU, once. Failures are only logged."""
        path = self._folder.graph_file(gpu, self._servers)
        if path.name in self._started or path.exists():
            return
        self._started.add(path.name)
        await asyncio.sleep(_GRAPH_AFTER)
        if self._left() < _WORTH_SECONDS:
            return
        arguments = ["--run", str(self._folder.path), "--servers", str(self._servers)]
        if gpu:
            arguments.append("--gpu")
        log_file = self._folder.logs / "graph.log"
        run = partial(ended, "shared_graph", *arguments, log=log_file, beside=self._folder)
        if not await run("--idle", limit=_IDLE_SECONDS) and not await run(limit=_MOST_SECONDS):
            _print(f"the graph took more than {_MOST_SECONDS:.0f} s to write")


class Shipper:
    """Copies the run's checkpoints to its bucket while it trains, and restores them before.

    Processes of `shipping.py` do the work, one at a time. Checkpoints that are written while one is
    copied are not queued: the newest is copied next. The result is an event, `train.shipped` or
    `train.unshipped`. The VM's token for the bucket expires unless the controller renews it. Then a
    copy fails, and is tried again with the next checkpoint or token.

    Parameters
    ----------
    run
        Name of the run.
    folder
        Its folder.
    report
        Called with events.
    """

    def __init__(self, run: str, folder: RunFolder, report: Callable[[Event], None]) -> None:
        self._run = run
        self._folder = folder
        self._report = report
        self._due = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._shipped = ""
        """Path of the last checkpoint that was copied."""
        self._best = ""
        """Path of the last best checkpoint that was copied."""
        self.ending = False
        """Whether the run is being stopped: then the copy keeps those that its result may name."""

    def due(self) -> None:
        """Request a copy of the newest checkpoint."""
        self._settled.clear()
        self._due.set()

    async def keep_shipping(self) -> None:
        """Copy checkpoints as requested, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            token = self._token()
            if not await self._ship():
                await self._wait_for_new_token(token)
            if not self._due.is_set():
                self._settled.set()

    async def settled(self) -> None:
        """Wait until the newest checkpoint is in the bucket or refused, at most three minutes."""
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self._settled.wait()
        except TimeoutError:
            _print(f"the last checkpoint was not shipped within {_LAST_SECONDS:.0f} s")

    async def restore(self) -> None:
        """Copy the bucket's newest good checkpoint to this VM, unless one as new is here.

        If the bucket does not answer, the run continues from the checkpoint on this VM: after a
        minute if the bucket has nothing newer by the run's events. Raises TrainingError if no
        checkpoint is here.
        """
        here = Checkpoints(self._folder.checkpoints).steps()
        if not here or here[0] < _last_shipped(self._folder):
            return await self._restore()
        try:
            async with asyncio.timeout(_RESTORE_SECONDS):
                return await self._restore()
        except TimeoutError:
            _print(
                f"the bucket has not answered within {_RESTORE_SECONDS:.0f} s: "
                f"the run continues from step {here[0]}"
            )

    async def _restore(self) -> None:
        restored: dict[str, Any] = {}
        for attempt in range(_TRIES):
            restored = await self._program("restore")
            for refused in restored.get("refused", ()):
                _print(f"not restored: {refused}")
            if "error" not in restored:
                return
            _print(f"not restored: {restored['error']}")
            if attempt < _TRIES - 1:
                await asyncio.sleep(backoff(attempt + 1, _FIRST_PAUSE))
        if not Checkpoints(self._folder.checkpoints).steps():
            raise TrainingError(restored["error"])

    async def _wait_for_new_token(self, before: object) -> None:
        """Wait for a new checkpoint or another token than `before`."""
        while not self._due.is_set():
            if self._token() != before:
                self._due.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(_TOKEN_SECONDS):
                    await self._due.wait()

    def _token(self) -> object:
        """Return a value that changes with each new token."""
        try:
            status = self._folder.bucket_token.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    async def _ship(self) -> bool:
        """Copy the newest checkpoint; return False if all tries fail."""
        for attempt in range(_TRIES):
            beside = ["--beside"] if self.ending else []
            shipped = await self._program("ship", *beside)
            if "error" not in shipped:
                self._report_shipped(shipped)
                return True
            _print(f"not shipped: {shipped['error']}")
            if attempt == 0:
                self._report(TrainUnshipped(run=self._run, reason=str(shipped["error"])))
                if not self._due.is_set():
                    # The end of the run need not wait for the other tries: the controller copies
                    # the checkpoint from this VM.
                    self._settled.set()
            await asyncio.sleep(backoff(attempt + 1, _FIRST_PAUSE))
        return False

    def _report_shipped(self, shipped: dict[str, Any]) -> None:
        """Report what has been copied and was not reported before."""
        best = shipped.pop("best", None)
        if shipped.get("step") is not None and shipped["path"] != self._shipped:
            self._shipped = shipped["path"]
            self._report(TrainShipped(run=self._run, **shipped))
        if best and best["path"] != self._best:
            self._best = best["path"]
            self._report(
                TrainBest(
                    run=self._run,
                    step=best["step"],
                    metric=Objective.parse(best["objective"]).metric,
                    value=best["value"],
                    path=path_of(best["step"]),
                    shipped=best["path"],
                )
            )

    async def _program(self, action: str, *options: str) -> dict[str, Any]:
        self._folder.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        log_file = self._folder.logs / "shipping.log"
        arguments = [action, "--run", str(self._folder.path), *options]
        return await answer("shipping", *arguments, log=log_file, limit=_COPY_SECONDS)


def _last_shipped(folder: RunFolder) -> int:
    """Return the newest step that the run's events report as shipped; -1 if there is none."""
    newest = -1
    with suppress(OSError):
        for event in jsonl.read(folder.events):
            step = event.get("step")
            if event.get("kind") == TrainShipped.kind and isinstance(step, int):
                newest = max(newest, step)
    return newest


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- processes -----------------------------------------------------------------------------------
async def answer(
    module: str,
    *arguments: str,
    log: Path,
    limit: float,
    name: str = "",
    beside: RunFolder | None = None,
) -> dict[str, Any]:
    """Run a program, and return the JSON object on the last line of its output.

    The program ends with the caller.

    Parameters
    ----------
    module, arguments
        Module of `runtime.programs`, and its arguments.
    log
        File for its stderr.
    limit
        Time limit in seconds.
    name
        Value that the answer must have.
    beside
        Folder of the run beside which it may be forked, with TensorFlow imported.

    Returns
    -------
    dict
        The answer; any failure is its `error`.
    """
    code: int | None = None
    try:
        async with asyncio.timeout(limit):
            output = None
            if beside:
                output = await answer_of_fork(beside, module, arguments)
            if output is None:
                output, code = await _run_program(module, arguments, log)
    except TimeoutError:
        return {"error": f"it took more than {limit / 60:.0f} min"}
    except OSError as error:
        return {"error": sentence(error)}
    try:
        result = decode(output.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": _describe_end(code)}
    if name and not result.keys() & {name, "error"}:
        return {"error": _describe_end(code)}
    return result


async def ended(module: str, *arguments: str, log: Path, limit: float, beside: RunFolder) -> bool:
    """Run a program like `answer`; return whether it ended in time, with any result.

    Raises OSError if it cannot be started.
    """
    try:
        async with asyncio.timeout(limit):
            if not await run_forked(beside, module, arguments):
                await _run_program(module, arguments, log)
    except TimeoutError:
        return False
    return True


async def _run_program(
    module: str, arguments: Sequence[str], log: Path
) -> tuple[bytes, int | None]:
    """Start a program; return its output and exit code."""
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


def _describe_end(code: int | None) -> str:
    """Return how a process ended that gave no answer, a clause."""
    memory = "the parameter server's VM may be short of memory"
    if code is None:
        return f"its process ended without an answer; {memory}"
    if code == -signal.SIGKILL:
        return f"its process was killed; {memory}"
    how = f"by signal {-code}" if code < 0 else f"with code {code}"
    return f"its process ended {how} and without an answer"


async def answer_of_fork(folder: RunFolder, program: str, arguments: Sequence[str]) -> bytes | None:
    """Fork a program, and return its output once it has ended; None if it could not be forked.

    It is killed if this is cancelled.
    """
    path = folder.logs / f"{program}.answer"
    path.unlink(missing_ok=True)
    if not await run_forked(folder, program, (*arguments, "--answer", str(path))):
        return None
    if path.exists():
        return path.read_bytes()
    return b""


async def run_forked(folder: RunFolder, program: str, arguments: Sequence[str]) -> bool:
    """Fork a program, and wait until it has ended; return False if it could not be forked.

    The agent forks it, and this process watches it, whatever happens to the agent. It is killed if
    this is cancelled.
    """
    request = Fork(
        run=folder.path.name,
        program=cast("Program", program),
        arguments=(*arguments,),
        caller=os.getpid(),
    )
    pid = await _fork(folder, request)
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


async def _fork(folder: RunFolder, request: Fork) -> int | None:
    """Send the request to the agent; return the pid of the process, None if there is none."""
    agent = folder.path.parent.parent / layout.AGENT_SOCKET
    try:
        reader, writer = await asyncio.open_unix_connection(agent)
    except OSError:
        return None
    try:
        writer.write(request.encoded)
        forked = decode(await reader.readline())
    except (OSError, ValueError):
        return None
    finally:
        writer.close()
    pid = forked.get("pid")
    return pid if isinstance(pid, int) else None
