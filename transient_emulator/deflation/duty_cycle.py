"""`python -m transient_emulator.deflation.duty_cycle`: let processes run for a part of each period only.

Lines on the standard input say which part, and which processes: `0.5 4711 4712`; the latest line counts. Its end, also
by the death of whoever wrote it, has all of them go on. A stopped process dies of nothing but SIGKILL, and would be
stopped for ever: so no signal ends this one before it has said SIGCONT.
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
"""Seconds."""


def main() -> None:
    """Until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(0, False)
    share, processes, rest = 1.0, frozenset[int](), b""
    owed = 0.0
    with selectors.DefaultSelector() as waiting:
        waiting.register(0, selectors.EVENT_READ)
        while True:
            began = time.monotonic()
            if waiting.select(share * PERIOD):
                read = os.read(0, 1 << 16)
                if not read:
                    return
                *lines, rest = (rest + read).split(b"\n")
                if lines:
                    words = lines[-1].split()
                    share, processes = float(words[0]), frozenset(map(int, words[1:]))
            time.sleep(max(share * PERIOD - (time.monotonic() - began), 0.0))
            # A busy machine wakes us late from either sleep: what counts is how long they ran and stood in truth.
            stopping = time.monotonic()
            owed += (stopping - began) * (1 - share) / share
            if owed > 0:
                _tell(processes, signal.SIGSTOP)
                time.sleep(owed)
                _tell(processes, signal.SIGCONT)
                owed -= time.monotonic() - stopping


def _tell(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


if __name__ == "__main__":
    sys.exit(main())
