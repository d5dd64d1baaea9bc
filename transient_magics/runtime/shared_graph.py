"""Write a worker's graph into a file, for workers that join later: `python -m transient_magics.runtime.shared_graph`.

The chief starts it once a run has trained for a while, as a process of its own and of the lowest priority; workers
copy the file with the records (data_files.py). There is one for machines with a GPU and one for those without: models
differ in them. A worker that finds none, or none that fits, builds its graph itself.
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
_MOST_SECONDS = 900.0


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
        with (self._folder.logs / "graph.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                async with asyncio.timeout(_MOST_SECONDS):
                    await process.wait()
            except TimeoutError:
                print(f"the graph took more than {_MOST_SECONDS:.0f} s to write", file=sys.stderr, flush=True)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


def main() -> None:
    """Write the file whole or not at all; exit with 1, and a traceback, where that cannot be."""
    parser = argparse.ArgumentParser(description="Write a worker's graph into a file.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--servers", type=int, required=True, help="how many parameter servers the run has")
    parser.add_argument("--gpu", action="store_true", help="for workers with a GPU")
    given = parser.parse_args()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    from .graph.worker import written
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
