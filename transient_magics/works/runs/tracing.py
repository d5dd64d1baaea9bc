"""A traced step, brought from a worker's VM: a file there asks for it, another one is the answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ...errors import TrainingError
from ...protocol import layout
from ...protocol.step_parts import MOST_BYTES
from ...remote import Connection
from ...spec import render_duration

_PATIENCE = 120.0
_EVERY = 0.25
_LONGEST_WAIT = 10**6


async def bring(connection: Connection, run: str, worker: str, folder: Path) -> str:
    """Have the next step of the worker at `connection` traced; the trace's path in the run's
    `folder` here.

    Raises RemoteError, and TrainingError where the worker will not, or makes no step. Nothing of
    the trace is believed yet (protocol.measures.trace).
    """
    there = layout.run_on_vm(run)
    wanted, trace, refused = (
        f"{there}/{each}" for each in (layout.TRACE_WANTED, layout.TRACE, layout.TRACE_REFUSED)
    )
    for old in (trace, refused):
        await connection.remove(old)
    await connection.put_bytes(wanted, b"")
    try:
        async with asyncio.timeout(_PATIENCE):
            while not await connection.exists(trace):
                if await connection.exists(refused):
                    left = render_duration(
                        _seconds(await connection.run(["head", "-c", "16", refused]))
                    )
                    raise TrainingError(
                        f"a trace makes a step slow, and {worker} had one lately: the next in {left}"
                    )
                await asyncio.sleep(_EVERY)
    except TimeoutError:
        raise TrainingError(
            f"{worker} made no step within {_PATIENCE:.0f} s that could be traced"
        ) from None
    finally:
        await connection.remove(wanted)
    path = layout.trace_of(worker)
    await connection.get(trace, folder / path, most=MOST_BYTES)
    return path


def _seconds(said: str) -> int:
    if said.strip().isdecimal():
        return min(int(said), _LONGEST_WAIT)
    return 0
