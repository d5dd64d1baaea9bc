"""`python -m transient_emulator.deflation.duty_cycle`: let processes run for a part of each period.

Lines on standard input give the share and the process ids, for example `0.5 4711 4712`. The latest
line counts. When the input ends, which includes the death of the writer, all processes run freely
again. A stopped process would stay stopped if this program died, so it ignores the usual signals
and sends SIGCONT before it exits.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterable

PERIOD = 0.02
"""Length of one period, in seconds."""


def main() -> None:
    """Stop and continue the processes until standard input ends."""
    # Only SIGKILL may end this program before it has continued the processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(0, False)
    share = 1.0
    processes: frozenset[int] = frozenset()
    incomplete = b""
    # Seconds for which the processes still have to be stopped to reach their share.
    owed = 0.0
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while True:
            began = time.monotonic()
            if selector.select(share * PERIOD):
                received = os.read(0, 1 << 16)
                if not received:
                    return
                *lines, incomplete = (incomplete + received).split(b"\n")
                if lines:
                    words = lines[-1].split()
                    share = float(words[0])
                    processes = frozenset(map(int, words[1:]))
            time.sleep(max(share * PERIOD - (time.monotonic() - began), 0.0))
            # A busy machine wakes this process late from either sleep. The times that the processes
            # really ran and stood still are counted, so delays do not change the share.
            stopping = time.monotonic()
            owed += (stopping - began) * (1 - share) / share
            if owed > 0:
                _signal(processes, signal.SIGSTOP)
                time.sleep(owed)
                _signal(processes, signal.SIGCONT)
                owed -= time.monotonic() - stopping


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


if __name__ == "__main__":
    sys.exit(main())
