"""Has workers' graphs written into files, for those that join later (programs/shared_graph.py).

That happens once a run has trained for a while, in a process of the lowest priority, at which it takes no time from
anybody; where nobody leaves it any, another tries at a low one. There is one file for machines with a GPU and one for
those without: models differ in them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from ...files.data_files import described
from ...folder import RunFolder
from ...programs.running import ended

_AFTER = 15.0
"""Seconds of training before it is written: a run that is over by then has no use for it, nor has its start."""
_WORTH_SECONDS = 60.0
"""Of training that are left: so shortly before its end few workers join a run, and those build their graphs."""
_IDLE_SECONDS = 60.0
"""What writing may take on cores that have nothing else to do; a model of today takes eight."""
_MOST_SECONDS = 900.0


class SharedGraphs:
    """The chief's side: has graphs written, one for each kind of machine, and lists those that are there.

    `left` tells for how many seconds the run will train on.
    """

    def __init__(self, folder: RunFolder, servers: int, left: Callable[[], float]) -> None:
        self._folder, self._servers, self._left = folder, servers, left
        self._begun: set[str] = set()

    def files(self) -> list[dict[str, Any]]:
        """Name, size and sum of each."""
        return [
            described(path, self._folder.graphs)
            for path in sorted(self._folder.graphs.glob(f"*-{self._servers}.graph"))
        ]

    async def make(self, gpu: bool) -> None:
        """Have the graph for such machines written, unless that was begun already. Its failure is only logged."""
        path = self._folder.graph_file(gpu, self._servers)
        if path.name in self._begun or path.exists():
            return
        self._begun.add(path.name)
        await asyncio.sleep(_AFTER)
        if self._left() < _WORTH_SECONDS:
            return
        given = ["--run", str(self._folder.path), "--servers", str(self._servers), *(["--gpu"] if gpu else [])]
        run = partial(ended, "shared_graph", *given, log=self._folder.logs / "graph.log", beside=self._folder)
        if not await run("--idle", limit=_IDLE_SECONDS) and not await run(limit=_MOST_SECONDS):
            print(f"the graph took more than {_MOST_SECONDS:.0f} s to write", file=sys.stderr, flush=True)
