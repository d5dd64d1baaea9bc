"""An evaluation beside the chief; those of several runs on one VM come one at a time."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ....protocol import jsonl
from ....protocol.vm_events import TrainEvaluated
from ...files.checkpoints import Checkpoints
from ...folder import RunFolder
from ...programs.running import answer
from ...role import log
from ...training import fingerprint
from ...training.usercode import sentence
from .events import EvaluationDone

_LONGEST, _PASSES = 900.0, 3
"""Seconds, and how often the time of the split is added: what takes longer has failed. It is read to see whether it is
too long, counted, and then a part of it read."""
_PART = ("of", "endless", "drawn", "among")
"""What an event says of the part of the split."""
_QUEUE = ".evaluations"
_LOOK_SECONDS = 0.2
"""Between two looks whether another run's evaluation is over."""


async def evaluate(folder: RunFolder, step: int, *, awaited: bool = False, seconds: float = 60.0) -> EvaluationDone:
    """Evaluate the checkpoint of `step`; whatever goes wrong is the reason in the answer.

    Steps come first on the VM's cores, unless the evaluation is `awaited`. `seconds`: what the whole split may take.
    """
    wanted = ["--run", str(folder.path), "--step", str(step), "--seconds", f"{seconds:.0f}"]
    wanted += ["--before", json.dumps(_part_before(folder))]
    wanted += ["--awaited"] if awaited else []
    log_file, longest = folder.logs / "evaluate.log", _LONGEST + _PASSES * seconds
    with Checkpoints(folder.checkpoints).held(step):  # the next ones may be written faster than a process starts
        try:
            async with _turn(folder):
                said = await answer("evaluate", *wanted, log=log_file, limit=longest, name="metrics", beside=folder)
        except OSError as error:  # a full disk
            return EvaluationDone(step, reason=sentence(error))
    if reason := said.get("error", ""):
        log(f"evaluation of step {step}: {reason}")
        return EvaluationDone(step, reason=reason)
    told = {name: said[name] for name in ("batches", "examples", "complete", *_PART) if name in said}
    undefined, program = tuple(said.get("undefined", ())), fingerprint.parse(said.get("program", ""))
    return EvaluationDone(step, said["metrics"], undefined=undefined, program=program, **told)


def _part_before(folder: RunFolder) -> dict[str, Any]:
    """Which part of the dev split the run's latest evaluation was of; nothing where there was none."""
    evaluated = [event for event in jsonl.read(folder.events) if event.get("kind") == TrainEvaluated.kind]
    if not evaluated:
        return {}
    told = {name: evaluated[-1][name] for name in _PART if name in evaluated[-1]}
    return {"complete": evaluated[-1].get("complete", True), **told}


@asynccontextmanager
async def _turn(folder: RunFolder) -> AsyncIterator[None]:
    """Until the end nobody else evaluates on this VM: each evaluation holds a model in memory, and takes the cores.

    Who asked first comes first. A place in the queue is a file that its owner holds a lock on, so that nobody waits for
    a process that is no more. Raises OSError.
    """
    queue = folder.path.parent / _QUEUE  # of all runs on this VM
    queue.mkdir(exist_ok=True)
    place = queue / f"{time.monotonic_ns():020d}-{os.getpid()}"
    lock = os.open(young := place.with_name(f".{place.name}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
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
