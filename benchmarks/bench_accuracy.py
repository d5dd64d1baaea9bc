"""Whether revocations or a narrow wire cost accuracy: the digits with none, one and three of them, and with bf16."""

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


def accuracy(cluster: Cluster, revocations: int, wire: str) -> float:
    """One run's accuracy on the held-out digits; workers are revoked at equal distances."""
    run = start(cluster, steps=STEPS, pace_seconds=PACE, wire=wire)
    for number in range(revocations):
        run.reach(STEPS * (number + 1) // (revocations + 1), 180)
        revoke_one(cluster)
    return run.wait(300).metrics["accuracy"]


def main() -> None:
    """Print mean and spread for each kind of run, and how far it is from the plain one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="twice each instead of five times")
    times = 2 if parser.parse_args().quick else 5
    with own_home():
        cluster = client.declare(Declaration(f"k80x{WORKERS}", name="bench", max_workers=64))
        found: dict[tuple[int, str], list[float]] = {(0, "fp32"): [], (1, "fp32"): [], (3, "fp32"): [], (0, "bf16"): []}
        for _ in range(times):
            for (revocations, wire), values in found.items():
                whole(cluster)
                values.append(accuracy(cluster, revocations, wire))
                say(f"a run with {revocations} revocations, {wire}", values[-1], "")
    plain = found[0, "fp32"]
    for (revocations, wire), values in found.items():
        say(f"accuracy with {revocations} revocations, {wire}, mean of {times}", statistics.mean(values), "")
        say("  standard deviation between runs", statistics.stdev(values), "")
        if values is not plain:
            error = ((statistics.variance(values) + statistics.variance(plain)) / times) ** 0.5
            apart = statistics.mean(values) - statistics.mean(plain)
            say("  difference to the plain runs, in its standard errors", apart / error, "", "> -2")


def whole(cluster: Cluster) -> None:
    """Wait until every declared VM is ready."""
    cluster.follow(lambda state: sum(vm.state == "ready" for vm in state.living) > WORKERS, 120)


if __name__ == "__main__":
    main()
