"""What the control of a cluster takes as it grows to 1,000 VMs: CPU of each of its parts, and the exponent of that.

An exponent is the slope of the logarithm of a figure over that of the number of VMs: 1 is as much per VM, whatever
their number; 0 is independent of them. No VM is made: each part is called with a state that has so many.

With `--live` there are VMs: emulated ones that are ready and have nothing to do, and what controller, agents, journal
and API take for them; then workers that train, and what all that is not TensorFlow takes of a worker's step. What is
there on Google Cloud, too, is told apart from the emulator, whose processors are also those of Compute Engine and of
the VMs' SSH servers. Of the parameter server's process the chief is the first thread, in which Python runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
import types
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from _common import cpu, main_thread_cpu, own_home, resident, rows_between, say, train

from transient_magics import client, emulator
from transient_magics.client import Declaration
from transient_magics.controller.decisions.core import Situation, decide
from transient_magics.controller.decisions.ledger import leases
from transient_magics.controller.metering import Metering
from transient_magics.journal import ClusterState, Event, bill, events, fold, replay
from transient_magics.panels import view
from transient_magics.protocol.step_parts import step_parts
from transient_magics.protocol.vm_events import TrafficCounted, TrainProgress, TrainStarted, WorkerJoined
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup


def exponent(figures: Mapping[int, float]) -> float:
    """The slope of a line through the logarithms, by least squares; NaN where a figure is 0."""
    if any(value <= 0 for value in figures.values()) or len(figures) < 2:
        return math.nan
    x, y = [math.log(n) for n in figures], [math.log(value) for value in figures.values()]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    rises = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return rises / sum((a - mean_x) ** 2 for a in x)


def say_growth(what: str, figures: Mapping[int, float], unit: str, goal: str, *, of: str = "VMs") -> None:
    """A figure for each number of VMs, and how it grows."""
    for n, value in figures.items():
        say(f"{what}, {n} {of}", value, unit)
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
        events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 10**6}),
        TrainStarted(run="run-1", step=0),
    ]
    history += [
        WorkerJoined(run="run-1", worker=name, number=number, active=number + 1)
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


def metered(state: ClusterState) -> Callable[[], None]:
    """Every VM of a cluster whose traffic is paid says once what it has moved, more each time."""
    assert state.spec
    paid = replace(state, spec=replace(state.spec, transfer_prices={"us-west1-b": 0.01}))
    written = types.SimpleNamespace(state=paid, spec=paid.spec, record=lambda event: True)
    metering, moved = Metering(written), itertools.count(10**6, 10**6)  # type: ignore[arg-type]

    def count() -> None:
        now, most = time.time(), next(moved)
        for name in paid.vms:
            metering.counted(name, TrafficCounted(time=time.time_ns(), sent=most, received=most), now)

    return count


def simulated(counts: list[int]) -> None:
    """One turn of the controller, and what follows from it, by the number of VMs."""
    states = {n: grown(n) for n in counts}
    metering = {n: metered(state) for n, state in states.items()}
    now = time.time()
    progress = TrainProgress(run="run-1", step=10, loss=1.0, steps_per_second=9.0, active=1)
    parts: dict[str, Callable[[int], object]] = {
        "decisions of a second": lambda n: decide(Situation(now, states[n])),
        "leases of a second": lambda n: leases(states[n], dict.fromkeys(range(n - 1), "k80")),
        "the bill": lambda n: bill(states[n], now),
        "a snapshot of the panel": lambda n: view(states[n], bill(states[n], now), now),
        "traffic that all VMs have counted": lambda n: metering[n](),
        "an event folded": lambda n: fold(states[n], progress),
    }
    for what, act in parts.items():
        say_growth(what, {n: timed(lambda n=n, act=act: act(n)) for n in counts}, "ms", "<= 1")


CONTROLLER, EMULATOR, AGENT = (f"transient_magics.{each}" for each in ("controller", "emulator", "runtime.agent"))
SERVER, FORK_SERVER = "transient_magics.runtime.parameter_server", "transient_magics.runtime.agent.fork_server"
SETTLES = 20.0
"""Seconds until what has just become ready is at rest: after 15 s an agent reads once what its run declares."""


def requests() -> int:
    """To the API of Compute Engine so far."""
    with urllib.request.urlopen(f"{emulator.ensure()}/emulator/v1") as answer:
        return json.load(answer)["requests"]


def watched(seconds: float, counters: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """By how much each counter grows in a second."""
    began, before = time.monotonic(), {what: count() for what, count in counters.items()}
    time.sleep(seconds)
    return {what: (count() - before[what]) / (time.monotonic() - began) for what, count in counters.items()}


def length(file: Path) -> float:
    """Bytes of a file that grows; 0 as long as it is not there."""
    return file.stat().st_size if file.exists() else 0


def live(counts: Sequence[int], seconds: float) -> None:
    """So many VMs that are ready, one of them a parameter server's, and have nothing to do."""
    units = {
        "CPU of the controller": ("ms/s", 1000, "exponent <= 1"),
        "CPU of the agents": ("ms/s", 1000, "exponent <= 1"),
        "CPU of the emulator (API, SSH, metadata)": ("ms/s", 1000, "exponent <= 1"),
        "requests to the API": ("/min", 60, "exponent 0"),
        "the journal": ("kB/h", 3.6, "exponent <= 1"),
        "memory of the controller": ("MiB", 1, "exponent <= 1"),
        "memory of the agents": ("MiB", 1, "exponent <= 1"),
        "memory of the emulator": ("MiB", 1, "exponent <= 1"),
    }
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for n in counts:
        with own_home():
            cluster = client.declare(Declaration(f"cpux{n - 1}", name="bench"))
            cluster.wait(900)
            time.sleep(SETTLES)
            rates = watched(seconds, {
                "CPU of the controller": lambda: cpu(CONTROLLER),
                "CPU of the agents": lambda: cpu(AGENT),
                "CPU of the emulator (API, SSH, metadata)": lambda: cpu(EMULATOR),
                "requests to the API": requests,
                "the journal": lambda cluster=cluster: length(cluster.directory / "journal.jsonl"),
            })  # fmt: skip
            for what, mark in (("controller", CONTROLLER), ("agents", AGENT), ("emulator", EMULATOR)):
                rates[f"memory of the {what}"] = resident(mark)
            for what, value in rates.items():
                found[what][n] = value
    for what, (unit, times, goal) in units.items():
        say_growth(what, {n: times * value for n, value in found[what].items()}, unit, goal)


def own_share(counts: Sequence[int], seconds: float, pace: float | None) -> None:
    """So many workers that train: what of a worker's step is ours, and what is written of it."""
    kind = "unpaced" if pace is None else f"steps of {pace:g} s"
    written: dict[str, dict[int, float]] = {"the journal": {}, "metrics": {}}
    for n in counts:
        with own_home():
            cluster, run = train(n, pace=pace)
            time.sleep(SETTLES)
            began = time.time()
            rates = watched(seconds, {
                "controller": lambda: cpu(CONTROLLER),
                "agents": lambda: cpu(AGENT) - cpu(FORK_SERVER),
                "chief (first thread of the parameter server)": lambda: main_thread_cpu(SERVER),
                "what follows files on the VMs": lambda: cpu("tail"),
                "emulator, SSH servers among it": lambda: cpu(EMULATOR),
                "the journal": lambda cluster=cluster: length(cluster.directory / "journal.jsonl"),
                "metrics": lambda run=run: length(run.directory / "metrics.jsonl"),
            })  # fmt: skip
            until = time.time()
            rows = rows_between(run, began, until)
        for what in written:
            written[what][n] = 3.6 * rates.pop(what)
        busy = n * (until - began)  # seconds of workers' steps, which follow each other
        say(f"{n} workers, {kind}: a worker's step", 1000 * busy / sum(row["steps"] for row in rows), "ms")
        emulated = rates.pop("emulator, SSH servers among it")
        for what, value in rates.items():
            say(f"  CPU of the {what}, of it", 100 * value / n, "%")
        say("  all that there is on Google Cloud, too", 100 * sum(rates.values()) / n, "%", "< 1")
        say("  CPU of the emulator, SSH servers among it", 100 * emulated / n, "%")
        between = sum(parts.rest for row in rows if (parts := step_parts(row.get("split"))))
        say("  in the workers' processes between two steps, by the clock", 100 * between / busy, "%")
    for what, figures in written.items():
        say_growth(f"{what}, {kind}", figures, "kB/h", "exponent <= 1", of="workers")


def main() -> None:
    """Print the figures, their exponents and their goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 256 VMs; live up to 32")
    parser.add_argument("--live", action="store_true", help="emulated VMs in the place of states")
    given = parser.parse_args()
    if not given.live:
        simulated([8, 64, 256] if given.quick else [8, 64, 256, 1000])
        return
    live([8, 32] if given.quick else [8, 64, 256], 15 if given.quick else 60)
    for pace in (0.219, None):
        own_share([1, 2] if given.quick else [1, 2, 4], 15 if given.quick else 40, pace)


if __name__ == "__main__":
    main()
