"""Forward a kernel's connections to a Dask scheduler over SSH.

`python -m transient_magics.works.dask.forward CLUSTER DASK` prints one JSON object: the ports on
this machine's loopback (`scheduler`, `dashboard` or 0), or `error`. It ends with the kernel, which
closes its standard input, and with the connection.

It does not use the controller's connection: results are many bytes, and commands for agents must
not wait behind them. Nor does it end with the controller.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from ... import places
from ...controller.vms.access import Access
from ...errors import ClusterError, TransientError, to_message
from ...journal import kept
from ...protocol import layout
from ...spec import ClusterSpec
from .state import DaskState

_CONNECT_SECONDS = 60.0


async def forward(directory: Path, name: str) -> None:
    """Forward until standard input or the connection ends. Raises TransientError on failure."""
    state = kept(directory / layout.JOURNAL).read()
    dask = state.of(DaskState).get(name)
    if dask is None or dask.over or dask.serving is None or state.spec is None:
        raise ClusterError(
            f"The Dask scheduler of {name} is not running",
            where=directory.name,
            fix="Wait until it is ready, or start another one: cluster.dask()",
        )
    vm = state.vms[dask.vm]
    spec = ClusterSpec.from_dict(json.loads((directory / layout.SPEC).read_text(encoding="utf-8")))
    async with Access(spec) as access:
        await access.reopen()
        async with await access.connect(
            vm, directory / layout.KEY, timeout=_CONNECT_SECONDS
        ) as connection:
            ports = {
                "scheduler": await connection.forward(vm.address, dask.serving.port),
                "dashboard": dask.serving.dashboard
                and await connection.forward("127.0.0.1", dask.serving.dashboard),
            }
            print(json.dumps(ports), flush=True)
            ends = [
                asyncio.create_task(_end_of_input()),
                asyncio.ensure_future(connection.closed.wait()),
            ]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in ends:
                task.cancel()


async def _end_of_input() -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


def main() -> int:
    """Forward as requested, and return the exit code: 0, or 1 with the error in the output."""
    cluster, name = sys.argv[1:]
    try:
        asyncio.run(forward(places.cluster(cluster), name))
    except TransientError as error:
        print(json.dumps(to_message(error)), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
