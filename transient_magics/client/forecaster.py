"""Forecasts of running runs, computed in a process of their own.

Loading NumPy and SciPy would block a notebook for some tenths of a second. The process reads a line
with the names of a cluster and a run, and writes a line with the forecast. It exits with its parent
process, and after two minutes without a request; the next request starts another one.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from .. import places
from ..errors import StoreError, TransientError

_NEEDED = ("numpy", "scipy")
_IDLE_SECONDS = 120.0
_NICE = 10
_ATTEMPTS = 2  # the process may just have exited after its idle time


class Forecaster:
    """The process of forecasts, started at the first request. Its methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def words(self, cluster: str, run: str) -> str:
        """Return a forecast such as `ends about 14:32 (14:20 to 14:55), ...`.

        It is empty if there is none: the run is too young or over, or NumPy or SciPy is not
        installed. It is `no forecast: ...` if a file must be deleted first. The first call takes
        about a second.

        Parameters
        ----------
        cluster, run
            The names of the cluster and of the run.
        """
        if not all(map(find_spec, _NEEDED)):
            return ""
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    return self._ask(json.dumps({"cluster": cluster, "run": run}))
                except (OSError, ValueError):
                    self.end()
        return ""

    @property
    def process(self) -> int | None:
        """The ID of the process; None if it is not running."""
        if self._process:
            return self._process.pid
        return None

    def end(self) -> None:
        """End the process; the next request starts another one."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, question: str) -> str:
        if self._process is None:
            self._process = _start()
        process = self._process
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{question}\n")
        process.stdin.flush()
        # A process that has exited returns an empty line, which is a ValueError.
        return json.loads(process.stdout.readline())["words"]


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        encoding="utf-8",
        start_new_session=True,  # the interrupt of a cell must not reach it
    )


@lru_cache(maxsize=1)
def _forecaster(home: Path) -> Forecaster:
    return Forecaster()


def ending(cluster: str, run: str) -> str:
    """Return the forecast of a run (see `Forecaster.words`)."""
    return _forecaster(places.home()).words(cluster, run)


def _words(cluster: str, run: str) -> str:
    from .lookup import cluster as find
    from .planning.forecasts import forecast, no_forecast

    try:
        from ..planner.forecast import ending_words

        return ending_words(forecast(find(cluster).run(run)))
    except StoreError as error:
        return no_forecast(error)
    except TransientError:
        return ""


def main() -> None:
    """Answer requests until the idle time has passed or the parent has exited."""
    os.nice(_NICE)
    while select.select([sys.stdin], [], [], _IDLE_SECONDS)[0] and (line := sys.stdin.readline()):
        print(json.dumps({"words": _words(**json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
