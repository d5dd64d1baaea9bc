"""An evaluation beside the chief."""

from __future__ import annotations

from ...files.checkpoints import Checkpoints
from ...folder import RunFolder
from ...programs.running import answer
from ...role import log
from .events import EvaluationDone

_LONGEST = 900.0
"""Seconds; what takes longer has failed, and is not told for a part of the split."""


async def evaluate(folder: RunFolder, step: int) -> EvaluationDone:
    """Evaluate the checkpoint of `step`; whatever goes wrong is the reason in the answer."""
    wanted = ("--run", str(folder.path), "--step", str(step))
    log_file = folder.logs / "evaluate.log"
    with Checkpoints(folder.checkpoints).held(step):  # the next ones may be written faster than a process starts
        said = await answer("evaluate", *wanted, log=log_file, limit=_LONGEST, name="metrics")
    if reason := said.get("error", ""):
        log(f"evaluation of step {step}: {reason}")
        return EvaluationDone(step, reason=reason)
    told = {name: said[name] for name in ("batches", "examples", "complete") if name in said}
    return EvaluationDone(step, said["metrics"], undefined=tuple(said.get("undefined", ())), **told)
