"""While one of three paced workers is killed or frozen: the others' longest gap between steps, against the usual."""

from __future__ import annotations

import argparse
import os
import signal
import time

from _common import all_in, own_home, process, quantile, say, train

from transient_magics.client import Run
from transient_magics.journal import metrics


def gaps(run: Run, since: float, until: float, without: str = "") -> list[float]:
    """The longest gap between two steps of each worker and second, in seconds."""
    rows = metrics.read(run.directory / "metrics.jsonl")
    return [row["gap_seconds"] for row in rows if since <= row["time"] / 1e9 <= until and row["worker"] != without]


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter observation")
    watch = 15 if parser.parse_args().quick else 40
    with own_home():
        cluster, run = train(3, pace=0.15)
        time.sleep(15)
        began = time.time()
        time.sleep(watch)
        usual = quantile(gaps(run, began, time.time()), 0.99)
        say("usual: 99th percentile of the longest gap in a second", usual, "s")
        for name, number in (("killed", signal.SIGKILL), ("frozen", signal.SIGSTOP)):
            hurt = process(cluster, "worker-1", "worker")
            at = time.time()
            os.kill(hurt, number)
            time.sleep(12)
            longest = max(gaps(run, at - 0.5, at + 12, without="worker-1"))
            say(f"one worker {name}: the others' longest gap", longest, "s")
            say(f"one worker {name}: ratio to the usual", longest / usual, "", "< 1.5")
            if number == signal.SIGSTOP:
                os.kill(hurt, signal.SIGCONT)
            all_in(cluster, 3)
            time.sleep(10)


if __name__ == "__main__":
    main()
