"""An evaluation beside the chief: in a process of its own, which may fail or die without harm to training."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from .chief_events import EvaluationDone
from .folder import RunFolder
from .protocol import decode
from .role import log
from .usercode import sentence

_LONGEST = 900.0


async def evaluate(folder: RunFolder, step: int) -> EvaluationDone:
    """Evaluate the checkpoint of `step`; whatever goes wrong is the reason in the answer.

    The process has a graph of its own, and its memory goes when it ends.
    """
    command = [sys.executable, "-m", f"{__package__}.evaluate", "--run", str(folder.path), "--step", str(step)]
    answer: dict[str, Any]
    try:
        with (folder.logs / "evaluate.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=output)
            answer = await _answer(process)
    except OSError as error:
        answer = {"error": sentence(error)}
    if reason := answer.get("error", ""):
        log(f"evaluation of step {step}: {reason}")
    return EvaluationDone(step, answer.get("metrics", {}), reason)


async def _answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """What the process says at its end; it ends with the caller, and after a quarter of an hour."""
    output = b""
    try:
        async with asyncio.timeout(_LONGEST):
            output, _ = await process.communicate()
    except TimeoutError:
        return {"error": f"it took more than {_LONGEST / 60:.0f} min"}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        answer = decode(output.splitlines()[-1])
    except (IndexError, ValueError):
        answer = {}
    return answer if answer.keys() & {"metrics", "error"} else {"error": _end(process.returncode or 0)}


def _end(code: int) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed; the parameter server's VM may be short of memory"
    return f"its process ended {f'by signal {-code}' if code < 0 else f'with code {code}'} and without an answer"
