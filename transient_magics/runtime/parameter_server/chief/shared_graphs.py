"""Has workers' graphs written into files, for those that join later (programs/shared_graph.py).

That happens once a run has trained for a while, in a process of the lowest priority, at which it takes no time from
anybody; where nobody leaves it any, another tries at a low one. There is one file for machines with a GPU and one for
those without: models differ in them.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from ...files.data_files import described
from ...folder import RunFolder

_AFTER = 15.0
"""Seconds of training before it is written: a run that is over by then has no use for it, nor has its start."""
_IDLE_SECONDS = 60.0
"""What writing may take on cores that have nothing else to do; a model of today takes eight."""
_MOST_SECONDS = 900.0


class SharedGraphs:
    """The chief's side: has graphs written, one for each kind of machine, and lists those that are there."""

    def __init__(self, folder: RunFolder, servers: int) -> None:
        self._folder, self._servers = folder, servers
        self._begun: set[str] = set()

    def files(self) -> list[dict[str, Any]]:
        """Name, size and sum of each."""
        return [described(path, self._folder.graphs) for path in sorted(self._folder.graphs.glob("*.graph"))]

    async def make(self, gpu: bool) -> None:
        """Have the graph for such machines written, unless that was begun already. Its failure is only logged."""
        path = self._folder.graph_file(gpu)
        if path.name in self._begun or path.exists():
            return
        self._begun.add(path.name)
        await asyncio.sleep(_AFTER)
        command = [
            sys.executable,
            "-m",
            "transient_magics.runtime.programs.shared_graph",
            "--run",
            str(self._folder.path),
        ]
        command += ["--servers", str(self._servers), *(["--gpu"] if gpu else [])]
        if not await self._run([*command, "--idle"], _IDLE_SECONDS) and not await self._run(command, _MOST_SECONDS):
            print(f"the graph took more than {_MOST_SECONDS:.0f} s to write", file=sys.stderr, flush=True)

    async def _run(self, command: list[str], most_seconds: float) -> bool:
        """Whether the program ended in time, with whatever result."""
        with (self._folder.logs / "graph.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                async with asyncio.timeout(most_seconds):
                    await process.wait()
            except TimeoutError:
                return False
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        return True
