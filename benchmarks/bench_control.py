"""What the control of a cluster takes as it grows to 1,000 VMs: CPU of each of its parts, and the exponent of that.

An exponent is the slope of the logarithm of a figure over that of the number of VMs: 1 is as much per VM, whatever
their number; 0 is independent of them. No VM is made: each part is called with a state that has so many.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping

from _common import say

from transient_magics.controller.decisions.core import Situation, decide
from transient_magics.controller.decisions.ledger import leases
from transient_magics.journal import ClusterState, Event, bill, events, fold, replay
from transient_magics.panels import view
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup


def exponent(figures: Mapping[int, float]) -> float:
    """The slope of a line through the logarithms, by least squares; NaN where a figure is 0."""
    if any(value <= 0 for value in figures.values()) or len(figures) < 2:
        return math.nan
    x, y = [math.log(n) for n in figures], [math.log(value) for value in figures.values()]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    rises = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return rises / sum((a - mean_x) ** 2 for a in x)


def say_growth(what: str, figures: Mapping[int, float], unit: str, goal: str) -> None:
    """A figure for each number of VMs, and how it grows."""
    for n, value in figures.items():
        say(f"{what}, {n} VMs", value, unit)
    say("  exponent", exponent(figures), "", goal)


def grown(count: int) -> ClusterState:
    """A cluster of that many VMs, all of which train."""
    price = PriceLine("n1-standard-4", 0.2, 0.6, "as declared")
    spec = ClusterSpec(
        name="bench", groups=(WorkerGroup("k80", count - 1),), zones=("us-west1-b",), declared_at=time.time(),
        prices={"k80": price, "parameter-server": price}, max_workers=count,
    )  # fmt: skip
    names = ["ps-0", *(f"worker-{number}" for number in range(count - 1))]
    history: list[Event] = [events.ClusterDeclared(spec=spec.to_dict())]
    for slot, name in enumerate(names):
        role = name.partition("-")[0]
        history += [
            events.VmRequested(
                vm=name, role=role, slot=max(slot - 1, 0), zone="us-west1-b", accelerator="k80" if slot else "",
                machine_type="n1-standard-4", provisioning_model="spot" if slot else "standard", hourly=0.2,
                on_demand_hourly=0.6,
            ),
            events.VmRunning(vm=name, address=f"10.0.{slot // 250}.{slot % 250}"),
            events.VmReady(vm=name),
        ]  # fmt: skip
    history += [
        events.TrainDeclared(run="run-1", spec={"train_steps": 10**6}),
        events.TrainStarted(run="run-1", step=0),
    ]
    history += [
        events.WorkerJoined(run="run-1", worker=name, number=number, active=number + 1)
        for number, name in enumerate(names[1:])
    ]
    return replay(history)


def timed(act: Callable[[], object], least: float = 0.5) -> float:
    """Milliseconds of CPU, the least of several times."""
    best, end = math.inf, time.process_time() + least
    while time.process_time() < end:
        began = time.process_time()
        act()
        best = min(best, time.process_time() - began)
    return 1000 * best


def simulated(counts: list[int]) -> None:
    """One turn of the controller, and what follows from it, by the number of VMs."""
    states = {n: grown(n) for n in counts}
    now = time.time()
    progress = events.TrainProgress(run="run-1", step=10, loss=1.0, steps_per_second=9.0, active=1)
    parts: dict[str, Callable[[int], object]] = {
        "decisions of a second": lambda n: decide(Situation(now, states[n])),
        "leases of a second": lambda n: leases(states[n], dict.fromkeys(range(n - 1), "k80")),
        "the bill": lambda n: bill(states[n], now),
        "a snapshot of the panel": lambda n: view(states[n], bill(states[n], now), now),
        "an event folded": lambda n: fold(states[n], progress),
    }
    for what, act in parts.items():
        say_growth(what, {n: timed(lambda n=n, act=act: act(n)) for n in counts}, "ms", "<= 1")


def main() -> None:
    """Print the figures, their exponents and their goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 256 VMs")
    simulated([8, 64, 256] if parser.parse_args().quick else [8, 64, 256, 1000])


if __name__ == "__main__":
    main()
