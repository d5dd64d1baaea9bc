"""One of our programs beside the chief, in a process of its own: what it answers, or why there is
no answer.

It may fail or die without harm to training, and its memory goes when it ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from ...protocol import layout
from ...protocol.agent_commands import Fork, Program
from ..folder import RunFolder
from ..protocol import decode
from ..training.usercode import sentence


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
    command = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
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
# is started plainly instead (running.py).


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
