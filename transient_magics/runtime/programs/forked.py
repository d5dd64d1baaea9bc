"""One of our programs beside a run, forked by its VM's agent: TensorFlow, which takes seconds to import, is there.

The caller asks the agent and watches the process that it is told of, whatever becomes of the agent then. Where there is
no agent, or it has no fork server for models of this kind, the program is started plainly instead (running.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from ...protocol import layout
from ...protocol.agent_commands import Fork, Program
from ..folder import RunFolder
from ..protocol import decode


async def answer(folder: RunFolder, program: str, arguments: Sequence[str]) -> bytes | None:
    """What it answers, once it has ended; None where it could not be forked. It ends if this is cancelled."""
    place = folder.logs / f"{program}.answer"
    place.unlink(missing_ok=True)
    if not await run(folder, program, (*arguments, "--answer", str(place))):
        return None
    return place.read_bytes() if place.exists() else b""


async def run(folder: RunFolder, program: str, arguments: Sequence[str]) -> bool:
    """Wait until it has ended; False where it could not be forked. It ends if this is cancelled."""
    asked = Fork(run=folder.path.name, program=cast("Program", program), arguments=(*arguments,), caller=os.getpid())
    pid = await _forked(folder, asked)
    if pid is None:
        return False
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
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
