"""The planner against what was published, and how fast it is.

Predicted hours and bills beside every cell of ICAC'19's tables (Li et al., "Speeding up Deep Learning with Transient
Servers") and the cluster speeds of CM-DARE (Li et al., ICDCS'20), each model with how many numbers were fitted; step
times of networks that were left out of the fit; seconds and memory of large simulations. The published figures stand
here as printed; CM-DARE's cells are read from its data set where that lies beside the project.
"""

from __future__ import annotations

import argparse
import csv
import resource
import statistics
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from _common import ROOT, say

from transient_magics.catalog import ACCELERATORS, ZONES
from transient_magics.client import plan
from transient_magics.planner.choices import Choice
from transient_magics.planner.lifetimes.published import published_lifetimes
from transient_magics.planner.plan import Plan
from transient_magics.planner.simulate import Startup, rent, simulate
from transient_magics.planner.speeds.families import families, leave_one_out
from transient_magics.planner.speeds.fitting import Cell, fit
from transient_magics.planner.speeds.workloads import PUBLISHED
from transient_magics.spec import parse_groups

STEPS = 64_000
CMDARE = ROOT.parent / "shared" / "data" / "derived" / "cmdare_cluster_speed_steps_per_s.csv"
# Section 5 of ICAC'19: (cluster, parameter servers, how rented, hours, dollars as printed)
HEADLINE = [
    ("k80", 0, "standard", 3.91, 2.83), ("k80x2", 1, "standard", 1.99, 3.16), ("k80x4", 1, "standard", 0.99, 3.02),
    ("k80x8", 1, "standard", 0.51, 3.01), ("p100", 0, "spot", 1.50, 0.83), ("v100", 0, "spot", 1.23, 1.06),
    ("p100x4", 1, "spot", 0.470, 1.104), ("v100x4", 1, "spot", 0.433, 1.554),
]  # fmt: skip
# (cluster, {revocations: (runs, hours, dollars)}) and the mean of all runs (hours, dollars)
REVOKED = {
    "k80x2": {0: (26, 1.96, 1.28), 1: (5, 3.17, 1.47)},
    "k80x4": {0: (21, 0.98, 1.14), 1: (8, 1.13, 1.18), 2: (2, 1.45, 1.25)},
    "k80x8": {0: (27, 0.51, 1.11), 1: (4, 0.53, 1.14), 2: (1, 0.54, 1.17)},
}
MIXED = {"k80x2": (2.16, 1.31), "k80x4": (1.05, 1.16), "k80x8": (0.51, 1.11)}
# Seconds after its creation at which the one worker was lost, in the runs that lost one (`vm_data.csv`); training began
# two to four minutes after that.
MOMENTS = {
    "k80x2": (4602, 4999, 1421, 569, 2815), "k80x4": (1454, 3559, 3595, 635, 3359, 1615, 676, 2981),
    "k80x8": (1706, 501, 2218, 1749),
}  # fmt: skip
BEFORE_TRAINING = 150.0
# seconds of 64,000 steps with 2, 3, ... 8 workers, by GPU and number of parameter servers; the V100's dollars
SERVERS = {
    ("k80", 1): (6961, 4730, 3464, 2739, 2318, 1955, 1774), ("k80", 2): (6617, 4408, 3342, 2676, 2222, 1907, 1716),
    ("v100", 1): (2423, 1840, 1623, 1503, 1514, 1372, 1424), ("v100", 2): (1960, 1358, 1070, 967, 871, 840, 812),
}  # fmt: skip
V100_DOLLARS = {
    1: (1.255, 1.393, 1.617, 1.857, 2.233, 2.351, 2.780),
    2: (1.093, 1.083, 1.109, 1.233, 1.319, 1.473, 1.618),
}


def planned(spec: str, ps: int = 1, model: str = "spot", revocations: int = 0) -> Plan:
    """A plan of the paper's own workload."""
    found = plan(spec, workload="icac19/resnet-32", train_steps=STEPS, ps=ps, provisioning_model=model,
                 revocations=revocations)  # fmt: skip
    assert isinstance(found, Plan)
    return found


def line(what: str, predicted: float, published: float, unit: str) -> float:
    """One row of the table; returns the relative error."""
    error = predicted / published - 1
    print(f"  {what:44} {predicted:9.3f} {published:9.3f} {unit:8} {error:+7.1%}")
    return error


def summary(what: str, errors: Iterable[float]) -> None:
    """Mean and worst absolute error."""
    sizes = [abs(error) for error in errors]
    print(f"{what}: {len(sizes)} cells, mean {statistics.fmean(sizes):.1%}, worst {max(sizes):.1%}\n", flush=True)


def golden() -> None:
    """The figures that a reader of the paper knows."""
    alone, four = planned("k80", 0, "standard"), planned("k80x4")
    say("1 K80 on demand", alone.hours, "h", "3.91")
    say("1 K80 on demand", alone.dollars, "$", "2.83")
    say("4 K80, no revocation", four.hours, "h", "0.98")
    say("8 K80 over 1", alone.hours / planned("k80x8").hours, "x", "7.7")
    for spec, target in (("k80x2", "61.7 (5 runs)"), ("k80x4", "15.3 (8 runs)"), ("k80x8", "3.9 (4 runs)")):
        more = planned(spec, revocations=1).hours / planned(spec).hours - 1
        say(f"{spec}, time that one revocation adds", 100 * more, "%", target)
        say("    lost at the moments of those runs", 100 * (at_moments(spec) / planned(spec).hours - 1), "%", target)
    mixed = mean_of(REVOKED["k80x4"], "k80x4")[1]
    hours = mean_of(REVOKED["k80x4"], "k80x4")[0]
    say("4 K80 against 1 on demand, server at $0.143", 100 * (1 - mixed / alone.dollars), "% saved", "59.1")
    cheap = mixed - hours * (0.143 - 0.041)
    say("4 K80 against 1 on demand, server at $0.041", 100 * (1 - cheap / alone.dollars), "% saved", "62.9")
    say("8 V100, speed with 2 servers over 1", planned("v100x8").hours / planned("v100x8", 2).hours, "x", "1.75")
    print()


class Lost:
    """Lifetimes as they were: of each run's workers, the first is lost at its moment."""

    name = "as in the runs"

    def __init__(self, moments: tuple[int, ...]) -> None:
        self._hours = (np.array(moments) - BEFORE_TRAINING) / 3600

    def survival(self, hours: np.ndarray) -> np.ndarray:
        """The share of the runs' first workers that lived longer."""
        return (self._hours[:, np.newaxis] > hours).mean(axis=0)

    def quantile(self, share: np.ndarray, age: Any = 0.0) -> np.ndarray:
        """One row per run."""
        lifetimes = np.full(share.shape, np.inf)
        lifetimes[:, 0] = self._hours
        return lifetimes


def at_moments(spec: str) -> float:
    """Mean hours of as many runs as there were, each losing its worker when it did."""
    lost = Lost(MOMENTS[spec])
    choice = Choice(parse_groups(spec, ACCELERATORS, ZONES))
    course = choice.course(PUBLISHED["icac19/resnet-32"], STEPS, lambda gpu, place: lost, replace=False)
    exact = replace(course, work_error=0.0, limit_error=0.0)
    return float(simulate(exact, runs=len(MOMENTS[spec])).hours.mean())


def left_out() -> None:
    """The same law, with each cell of the servers' table left out of its fit."""
    cells = [
        Cell({gpu: workers}, ps, STEPS / took)
        for (gpu, ps), seconds in SERVERS.items()
        for workers, took in enumerate(seconds, 2)
    ]
    errors = []
    for index, cell in enumerate(cells):
        errors.append(fit(cells[:index] + cells[index + 1 :]).predict(cell) / cell.steps_per_second - 1)
    summary("ICAC'19's speeds by workers and servers, each left out of the fit", errors)


def mean_of(cells: dict[int, tuple[int, float, float]], spec: str) -> tuple[float, float]:
    """Hours and dollars predicted for as many runs with each number of revocations as there were."""
    plans = [(count, planned(spec, revocations=lost)) for lost, (count, _, _) in cells.items()]
    runs = sum(count for count, _ in plans)
    return sum(n * p.hours for n, p in plans) / runs, sum(n * p.dollars for n, p in plans) / runs


def icac19() -> list[float]:
    """Every cell of the three tables; returns the relative error of each."""
    print("ICAC'19 (three GPUs' step times, the server's part, its scaling, and the bend: six numbers fitted to hours)")
    print(f"  {'':44} predicted published")
    hours, dollars = [], []
    for spec, ps, model, took, cost in HEADLINE:
        found = planned(spec, ps, model)
        hours.append(line(f"{spec}, {model}, {ps} PS", found.hours, took, "h"))
        dollars.append(line("", found.dollars, cost, "$"))
    for spec, (took, cost) in MIXED.items():
        predicted = mean_of(REVOKED[spec], spec)
        hours.append(line(f"{spec}, spot, as often revoked as there", predicted[0], took, "h"))
        dollars.append(line("", predicted[1], cost, "$"))
    for spec, cells in REVOKED.items():
        for lost, (runs, took, cost) in cells.items():
            found = planned(spec, revocations=lost)
            hours.append(line(f"{spec}, {lost} revoked ({runs} runs)", found.hours, took, "h"))
            dollars.append(line("", found.dollars, cost, "$"))
    for (gpu, ps), seconds in SERVERS.items():
        for workers, took in enumerate(seconds, 2):
            found = planned(f"{gpu}x{workers}", ps)
            hours.append(line(f"{gpu}x{workers}, {ps} PS", found.hours, took / 3600, "h"))
            if gpu == "v100":
                dollars.append(line("", found.dollars, V100_DOLLARS[ps][workers - 2], "$"))
    summary("hours", hours)
    summary("dollars", dollars)
    summary("all of it", hours + dollars)
    return hours + dollars


def cmdare() -> None:
    """Cluster speeds of four models, fitted anew."""
    if not CMDARE.exists():
        print("CM-DARE's data set does not lie beside the project: its cells are left out.\n")
        return
    rows = list(csv.DictReader(CMDARE.read_text(encoding="utf-8").splitlines()))
    print("CM-DARE, steps per second of clusters (two GPUs, the server's part and its scaling: four numbers a model)")
    every: list[float] = []
    for model in dict.fromkeys(row["model"] for row in rows):
        cells = [
            Cell({row["gpu"].lower(): int(row["workers"])}, int(row["num_ps"]), float(row["speed_mean"]))
            for row in rows
            if row["model"] == model
        ]
        errors = fit(cells).errors
        every += list(errors)
        print(f"  {model:24} {len(cells)} cells, mean {abs(errors).mean():.1%}, worst {abs(errors).max():.1%}")
    summary("all", every)


def unseen() -> None:
    """Step times of each of the twenty networks, from the others of its family."""
    errors = [
        abs(predicted / seconds - 1)
        for family in families()
        for gpu in ("k80", "p100")
        for _, seconds, predicted in leave_one_out(family, gpu)
    ]
    say("step time of a network left out, median error", 100 * statistics.median(errors), "%", "< 8")
    say("    mean", 100 * statistics.fmean(errors), "%")
    say("    worst", 100 * max(errors), "%")


def speed() -> None:
    """Seconds and memory of large simulations."""
    groups = parse_groups("k80x16", ACCELERATORS, ZONES)
    course = Choice(groups).course(PUBLISHED["icac19/resnet-32"], 4_000_000, published_lifetimes)
    began, worked = time.perf_counter(), time.process_time()
    outcome = simulate(course, runs=10_000)
    say("10,000 runs of 16 workers, about a day each", time.perf_counter() - began, "s", "< 1")
    say("    of it at work", time.process_time() - worked, "s")
    say("    revocations in each", float(outcome.revocations.mean()), "")
    began = time.perf_counter()
    revoked, up = rent(published_lifetimes("v100", "us-west1"), Startup(39, 32, 8.6), 10_000, 30)
    say("10,000 VMs for 30 days, each replaced when revoked", time.perf_counter() - began, "s")
    say("    revocations", revoked, "")
    say("    share of the time in use", 100 * up, "%")
    say("    memory of this process at most", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB")
    began = time.perf_counter()
    plan(workload="icac19/resnet-32", train_steps=STEPS)
    say("a search of the catalog", time.perf_counter() - began, "s")


def main() -> None:
    """Print everything; `--quick` changes nothing, all of it takes seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.parse_args()
    np.seterr(all="raise", under="ignore")
    golden()
    icac19()
    left_out()
    cmdare()
    unseen()
    speed()


if __name__ == "__main__":
    main()
