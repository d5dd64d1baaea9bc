"""One of our programs beside the chief, in a process of its own: what it answers, or why there is no answer.

It may fail or die without harm to training, and its memory goes when it ends.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..folder import RunFolder
from ..protocol import decode
from ..training.usercode import sentence
from . import forked


async def answer(
    module: str, *arguments: str, log: Path, limit: float, name: str = "", beside: RunFolder | None = None
) -> dict[str, Any]:
    """Run `module` of this package; the JSON object on its last line, which has a value `name` (if one is given).

    Whatever goes wrong is the answer's `error`. The process ends with the caller, and after `limit` seconds; what it
    writes to stderr goes into `log`. Where it is forked `beside` a run it has TensorFlow imported (forked.py).
    """
    code: int | None = None
    try:
        async with asyncio.timeout(limit):
            output = await forked.answer(beside, module, arguments) if beside else None
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
    return said if not name or said.keys() & {name, "error"} else {"error": _end(code)}


async def ended(module: str, *arguments: str, log: Path, limit: float, beside: RunFolder) -> bool:
    """Run `module` as above; whether it ended in time, with whatever result. Raises OSError where it cannot begin."""
    try:
        async with asyncio.timeout(limit):
            if not await forked.run(beside, module, arguments):
                await _spawned(module, arguments, log)
    except TimeoutError:
        return False
    return True


async def _spawned(module: str, arguments: Sequence[str], log: Path) -> tuple[bytes, int | None]:
    """What it says and its exit code."""
    command = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors
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
        return "its process ended without an answer; the parameter server's VM may be short of memory"
    if code == -signal.SIGKILL:
        return "its process was killed; the parameter server's VM may be short of memory"
    return f"its process ended {f'by signal {-code}' if code < 0 else f'with code {code}'} and without an answer"
