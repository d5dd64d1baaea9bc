"""How runs end, told again and again while they go on: by a process of its own, so that nobody
waits for it.

Loading NumPy and SciPy holds an interpreter for some tenths of a second, which a notebook does not
have to spare. A line with the names of a cluster and a run goes in, a line with words comes out.
The process ends with whoever started it, and when it was not asked for two minutes; it is started
anew then.
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
_ATTEMPTS = 2  # the process may just have ended, for it was not asked for so long


class Forecaster:
    """The process, started when it is first asked. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def words(self, cluster: str, run: str) -> str:
        """`ends about 14:32 (14:20 to 14:55), ...`; nothing where that cannot be told: the run is
        young or over, or NumPy or SciPy is not installed. `no forecast: ...` where a file has to be
        deleted first. Takes a moment, the first time a second.
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
        """The number of the process, once it was started."""
        return self._process.pid if self._process else None

    def end(self) -> None:
        """End the process; who asks again starts another."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, question: str) -> str:
        process = self._process = self._process or _start()
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{question}\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())[
            "words"
        ]  # no line where it has ended: a ValueError


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        encoding="utf-8",
        start_new_session=True,  # an interrupted cell is no business of its
    )


@lru_cache(maxsize=1)
def _forecaster(home: Path) -> Forecaster:
    return Forecaster()


def ending(cluster: str, run: str) -> str:
    """How the run of a cluster of this machine ends, in words (`Forecaster.words`)."""
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
    """Answer questions until there are no more."""
    os.nice(_NICE)
    while select.select([sys.stdin], [], [], _IDLE_SECONDS)[0] and (line := sys.stdin.readline()):
        print(json.dumps({"words": _words(**json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
