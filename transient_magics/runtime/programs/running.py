"""One of our programs beside the chief, in a process of its own: what it answers, or why there is no answer.

It may fail or die without harm to training, and its memory goes when it ends.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from ..protocol import decode
from ..training.usercode import sentence


async def answer(module: str, *arguments: str, log: Path, limit: float, name: str = "") -> dict[str, Any]:
    """Run `module` of this package; the JSON object on its last line, which has a value `name` (if one is given).

    Whatever goes wrong is the answer's `error`. The process ends with the caller, and after `limit` seconds; what it
    writes to stderr goes into `log`.
    """
    command = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
    try:
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors
            )
    except OSError as error:
        return {"error": sentence(error)}
    output = b""
    try:
        async with asyncio.timeout(limit):
            output, _ = await process.communicate()
    except TimeoutError:
        return {"error": f"it took more than {limit / 60:.0f} min"}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        said = decode(output.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": _end(process.returncode or 0)}
    return said if not name or said.keys() & {name, "error"} else {"error": _end(process.returncode or 0)}


def _end(code: int) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed; the parameter server's VM may be short of memory"
    return f"its process ended {f'by signal {-code}' if code < 0 else f'with code {code}'} and without an answer"
