"""The trace of a step, from a worker's VM: a file there requests it, another one is the answer."""

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
    """Trace the next step of a worker, and return the trace's path in the run's `folder` here.

    The content of the trace is not checked yet (protocol.measures.trace). Raises RemoteError, and
    TrainingError if the worker refuses or makes no step.
    """
    there = layout.run_on_vm(run)
    request, trace, refused = (
        f"{there}/{name}" for name in (layout.TRACE_WANTED, layout.TRACE, layout.TRACE_REFUSED)
    )
    for old in (trace, refused):
        await connection.remove(old)
    await connection.put_bytes(request, b"")
    try:
        async with asyncio.timeout(_PATIENCE):
            while not await connection.exists(trace):
                if await connection.exists(refused):
                    left = render_duration(
                        _seconds(await connection.run(["head", "-c", "16", refused]))
                    )
                    recent = f"a trace makes a step slow, and {worker} had one recently"
                    raise TrainingError(f"{recent}: the next in {left}")
                await asyncio.sleep(_EVERY)
    except TimeoutError:
        raise TrainingError(f"{worker} made no step within {_PATIENCE:.0f} s") from None
    finally:
        await connection.remove(request)
    path = layout.trace_of(worker)
    await connection.get(trace, folder / path, most=MOST_BYTES)
    return path


def _seconds(text: str) -> int:
    if text.strip().isdecimal():
        return min(int(text), _LONGEST_WAIT)
    return 0
