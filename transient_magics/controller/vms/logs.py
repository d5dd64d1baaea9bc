"""Last lines of a log: of a run's process on a VM, of an agent, or of a remote controller."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

from ...errors import ClusterError, unknown
from ...journal import ClusterState
from ...protocol import layout
from ..host import controller_vm
from .fleet import Fleet

# In bytes.
_MOST_LOG = 262_144
_SECONDS = 10.0


async def last_lines(
    directory: Path, state: ClusterState, fleet: Fleet | None, vm: str, run: str | None, lines: int
) -> str:
    """Return the last `lines` lines that `vm` of the cluster in `directory` wrote in `run`.

    Without `run`, the latest run is used. Raises ClusterError or RemoteError.
    """
    if vm and vm == controller_vm() and (own := directory / layout.CONTROLLER_LOG).exists():
        return "\n".join(own.read_text(errors="replace", encoding="utf-8").splitlines()[-lines:])
    if fleet:
        link = fleet.link(vm)
    else:
        link = None
    if link is None:
        if vm in state.vms:
            raise ClusterError(f"{vm} is not connected", fix="Try again in a moment.")
        names = [vm.name for vm in state.living]
        raise unknown("VM", vm, names, where=directory.name, numbered=True, error=ClusterError)
    latest = state.current_or_next_run or state.run
    chosen = run or (latest.name if latest else None)
    if chosen:
        path = layout.log_on_vm(chosen, vm)
    else:
        path = f"{layout.ON_VM}/{layout.AGENT_LOG}"
    try:
        async with asyncio.timeout(_SECONDS):
            connection = await link.connection()
            if not await connection.exists(path):
                return ""
            return (
                await connection.run(f"tail -c {_MOST_LOG} {shlex.quote(path)} | tail -n {lines}")
            )[-_MOST_LOG:]
    except TimeoutError:
        raise ClusterError(
            f"{vm} did not answer within {_SECONDS:g} s", fix="Try again in a moment."
        ) from None
