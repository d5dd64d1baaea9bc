"""Whether revocations cost accuracy: the digits with none, one and three of them, several times each."""

from __future__ import annotations

import argparse
import statistics

from _common import own_home, revoke_one, say, start

from transient_magics import client
from transient_magics.client import Cluster, Declaration

STEPS = 600
WORKERS = 3
PACE = 0.15
"""So that a run goes on while VMs boot, and does not only lose workers."""


def accuracy(cluster: Cluster, revocations: int) -> float:
    """One run's accuracy on the held-out digits; workers are revoked at equal distances."""
    run = start(cluster, steps=STEPS, pace_seconds=PACE)
    for number in range(revocations):
        run.reach(STEPS * (number + 1) // (revocations + 1), 180)
        revoke_one(cluster)
    return run.wait(300).metrics["accuracy"]


def main() -> None:
    """Print mean and spread for each number of revocations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="twice each instead of five times")
    times = 2 if parser.parse_args().quick else 5
    with own_home():
        cluster = client.declare(Declaration(f"k80x{WORKERS}", name="bench", max_workers=64))
        found: dict[int, list[float]] = {0: [], 1: [], 3: []}
        for _ in range(times):
            for revocations, values in found.items():
                whole(cluster)
                values.append(accuracy(cluster, revocations))
                say(f"a run with {revocations} revocations", values[-1], "")
    for revocations, values in found.items():
        say(f"accuracy with {revocations} revocations, mean of {times}", statistics.mean(values), "")
        say("  standard deviation between runs", statistics.stdev(values), "")


def whole(cluster: Cluster) -> None:
    """Wait until every declared VM is ready."""
    cluster.follow(lambda state: sum(vm.state == "ready" for vm in state.living) > WORKERS, 120)


if __name__ == "__main__":
    main()
