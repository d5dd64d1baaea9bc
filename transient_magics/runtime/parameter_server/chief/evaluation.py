"""An evaluation beside the chief; those of several runs on one VM come one at a time."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...files.checkpoints import Checkpoints
from ...folder import RunFolder
from ...programs.running import answer
from ...role import log
from .events import EvaluationDone

_LONGEST = 900.0
"""Seconds; what takes longer has failed, and is not told for a part of the split."""
_LOOK_SECONDS = 0.2
"""Between two looks whether another run's evaluation is over."""


async def evaluate(folder: RunFolder, step: int, *, awaited: bool = False) -> EvaluationDone:
    """Evaluate the checkpoint of `step`; whatever goes wrong is the reason in the answer.

    Steps come first on the VM's cores, unless the evaluation is `awaited`.
    """
    wanted = ("--run", str(folder.path), "--step", str(step), *(("--awaited",) if awaited else ()))
    log_file = folder.logs / "evaluate.log"
    with Checkpoints(folder.checkpoints).held(step):  # the next ones may be written faster than a process starts
        async with _turn(folder):
            said = await answer("evaluate", *wanted, log=log_file, limit=_LONGEST, name="metrics", beside=folder)
    if reason := said.get("error", ""):
        log(f"evaluation of step {step}: {reason}")
        return EvaluationDone(step, reason=reason)
    told = {name: said[name] for name in ("batches", "examples", "complete") if name in said}
    return EvaluationDone(step, said["metrics"], undefined=tuple(said.get("undefined", ())), **told)


@asynccontextmanager
async def _turn(folder: RunFolder) -> AsyncIterator[None]:
    """Until the end nobody else evaluates on this VM: each evaluation holds a model in memory, and takes the cores."""
    lock = os.open(folder.path.parent, os.O_RDONLY | os.O_CLOEXEC)  # of all runs on this VM
    try:
        while not _taken(lock):  # noqa: ASYNC110 - another process lets go
            await asyncio.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
