"""Write a worker's graph into a file, for workers that join later: `python -m transient_magics.runtime.shared_graph`.

The chief starts it once a run has trained for a while, as a process of its own and of the lowest priority, at which it
takes no time from anybody; where nobody leaves it any, another tries at a low one. Workers copy the file before the
records (data_files.py). There is one for machines with a GPU and one for those without: models differ in them. A worker
that finds none, or none that fits, builds its graph itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from .data_files import described
from .folder import RunFolder

_AFTER = 15.0
"""Seconds of training before it is written: a run that is over by then has no use for it, nor has its start."""
_IDLE_SECONDS = 60.0
"""What writing may take on cores that have nothing else to do; a model of today takes eight."""
_MOST_SECONDS = 900.0
_NICE = 10


def graph_file(gpu: bool) -> str:
    """The name of the file below the run's folder of graphs."""
    return f"{'gpu' if gpu else 'cpu'}.graph"


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
        name = graph_file(gpu)
        if name in self._begun or (self._folder.graphs / name).exists():
            return
        self._begun.add(name)
        await asyncio.sleep(_AFTER)
        command = [sys.executable, "-m", f"{__package__}.shared_graph", "--run", str(self._folder.path)]
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


def main() -> None:
    """Write the file whole or not at all; exit with 1, and a traceback, where that cannot be."""
    parser = argparse.ArgumentParser(description="Write a worker's graph into a file.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--servers", type=int, required=True, help="how many parameter servers the run has")
    parser.add_argument("--gpu", action="store_true", help="for workers with a GPU")
    parser.add_argument("--idle", action="store_true", help="take only the time that nobody else wants")
    given = parser.parse_args()
    if given.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(_NICE)
    from .graph.file import written
    from .graph_mode import GPU
    from .trainable import define

    os.environ[GPU] = str(int(given.gpu))
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    folder = RunFolder(given.run)
    spec = folder.spec()
    content = written(define(folder, spec, folder.data_directory(spec)), spec, given.servers)
    folder.graphs.mkdir(exist_ok=True, mode=0o700)
    place = folder.graphs / graph_file(given.gpu)
    part = place.with_suffix(".part")
    part.write_bytes(content)
    os.replace(part, place)


if __name__ == "__main__":
    main()
