"""Tidies up after a benchmark, however it ends: `python _guard.py HOME`, started by _common.own_home.

It waits until the other end of its input is closed, which the kernel does for whoever is killed. Then it deletes the
clusters of that home, ends the processes that still bear its name in their environment or command line, and removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

_PATIENCE = 5.0
"""Seconds in which a process ends that was asked to."""


def elsewhere() -> dict[str, str]:
    """The environment of a program beside ours: of the same benchmark, and not of our home."""
    ours = ("TRANSIENT_MAGICS_HOME", "XDG_RUNTIME_DIR")
    return {name: value for name, value in os.environ.items() if name not in ours}


def of_home(home: Path) -> list[int]:
    """The processes of the benchmark that has this home, without this one."""
    mark, found = home.name.encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # one that has just ended
                if mark in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def main(home: Path) -> None:
    """Wait for the end of the input, then leave nothing of this home."""
    sys.stdin.read()
    _signal(home, signal.SIGCONT)  # those that stand still could not end
    from transient_magics import client
    from transient_magics.errors import TransientError

    for cluster in client.clusters():
        try:
            cluster.delete()
        except TransientError as error:
            print(f"not deleted: {error}", file=sys.stderr)
    _signal(home, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    while of_home(home) and time.monotonic() < deadline:
        time.sleep(0.05)
    _signal(home, signal.SIGKILL)
    shutil.rmtree(home, ignore_errors=True)


def _signal(home: Path, what: signal.Signals) -> None:
    for number in of_home(home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, what)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
