"""The planner against what was published, and forecasts of runs against what came.

`published`: predicted hours and bills beside every cell of ICAC'19's tables (Li et al., "Speeding up Deep Learning with
Transient Servers") and the cluster speeds of CM-DARE (Li et al., ICDCS'20), each model with how many numbers were
fitted; step times of networks that were left out of the fit; seconds and memory of large simulations. The published
figures stand here as printed; CM-DARE's cells are read from its data set where that lies beside the project.

`lifetimes`: lifetimes and checkpoint plans against what was published and against held-out halves. The published
measurements are not part of the project: `--data FOLDER`, or the folder `shared/data` beside the project. Without them
only what is simulated or shipped is measured.

`live`: when a run in published weather was forecast to end, and what it was forecast to cost, against what came. Paced
workers on the emulator are revoked and replaced as VMs were in 2019, an emulated day taking six minutes. Start-ups and
notices take their part of that day, steps and joins their own time. A short run in fair weather comes first, so that
the model has been run before. Forecasts are made at a tenth, a third and two thirds of the steps and compared with the
end: the moment as a part of the run's whole time, and the whole bill, which follows the emulated clock; and how often
each lay within its 90 % interval. The forecasts of one run depend on each other: many seeds show more than many
moments.
"""

from __future__ import annotations

import argparse
import csv
import resource
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean as mean
from typing import Any

import numpy as np
from _common import ROOT, all_in, own_home, parser_of, run_measures, say, start

from transient_magics import client
from transient_magics.catalog import ACCELERATORS, ZONES, published
from transient_magics.client import Cluster, Declaration, Run, plan
from transient_magics.journal import RunState
from transient_magics.planner.checkpoints import Planner, young_daly
from transient_magics.planner.choices import Choice
from transient_magics.planner.forecast import Forecast
from transient_magics.planner.lifetimes.kaplan_meier import FALSE_ALARMS, KaplanMeier, compare
from transient_magics.planner.lifetimes.observations import Observations
from transient_magics.planner.lifetimes.parametric import Bathtub, EarlyThenSteady, drawn
from transient_magics.planner.lifetimes.sources import published_lifetimes
from transient_magics.planner.lifetimes.study import as_published, formulas, log_likelihood
from transient_magics.planner.lifetimes.study import fit as fit_lifetimes
from transient_magics.planner.plan import Plan
from transient_magics.planner.simulate import Startup, rent, simulate
from transient_magics.planner.speeds.fitting import Cell, fit
from transient_magics.planner.speeds.throughput import families, leave_one_out
from transient_magics.planner.speeds.workloads import PUBLISHED
from transient_magics.runtime.parameter_server.chief.saving import seconds_between
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
HERE = ROOT.parent / "shared" / "data"
LIFETIMES = "preemption/goog_preemption_lifetimes.csv"
# As others published them, from the same data: A, b, tau1, tau2 and R² by machine type.
FITS = {
    "": (0.4137, 24.453, 0.950, 0.767, 0.968), "n1-highcpu-2": (0.2654, 24.042, 1.711, 0.754, 0.954),
    "n1-highcpu-4": (0.2855, 24.047, 0.684, 0.680, 0.910), "n1-highcpu-8": (0.3106, 24.184, 1.276, 0.582, 0.961),
    "n1-highcpu-16": (0.4227, 24.453, 1.060, 0.784, 0.957), "n1-highcpu-32": (0.6905, 25.623, 0.782, 1.227, 0.974),
}  # fmt: skip
BATHTUB = Bathtub(0.4137, 24.0, 0.9, 0.76)
TRUTH = EarlyThenSteady(0.25, 1.0, 0.012)
AGES = (1, 2, 4, 8, 12, 20)
MINUTE = 1 / 60
RATIOS = (1.0884584, 1.0640838, 1.0496623, 1.0401750, 1.0335624)
BY_AGE = {0: 249.6420063, 1: 246.5809298, 2: 244.0849495, 8: 241.0068589, 12: 241.0014515, 16: 241.2641622}
WORKERS = 4
PACE = 0.5
PARTS = (0.1, 0.33, 0.67)
REHEARSAL = 160
HOURS_PER_MINUTE = 4.0


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


def tables(options: argparse.Namespace) -> None:
    """Print everything that is compared with ICAC'19 and CM-DARE, and the speed of simulations."""
    np.seterr(all="raise", under="ignore")
    golden()
    icac19()
    left_out()
    cmdare()
    unseen()
    speed()


def rows(folder: Path) -> list[dict[str, str]]:
    """The published lifetimes, or nothing where they are not there."""
    path = folder / LIFETIMES
    if not path.exists():
        print(f"There is no {path}: what needs the published measurements is left out.")
        return []
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def observed(lines: list[dict[str, str]]) -> Observations:
    return Observations.of(
        [float(line["lifetime_s"]) / 3600 for line in lines], [line["end_kind"] == "preempted" for line in lines]
    )


def halves(seen: Observations, random: np.random.Generator) -> tuple[Observations, Observations]:
    each = seen.each()
    order = random.permutation(len(each))
    return each.some(order[: len(order) // 2]), each.some(order[len(order) // 2 :])


def covered(learned: Observations, held_out: Observations) -> tuple[int, int]:
    """How often the share alive of those held out was in the 90 % interval learned from the others, of how many."""
    inside = asked = 0
    model, truth = KaplanMeier(learned), KaplanMeier(held_out)
    for age in AGES:
        share, spread = float(truth.survival(np.array(age))), float(truth.variance(np.array([age]))[0])
        if spread > 0:
            vms = round(share * (1 - share) / spread)  # as many as would say so without censoring
            low, high = model.alive_of(vms, age)
            inside, asked = inside + (low <= round(share * vms) <= high), asked + 1
    return inside, asked


def by_date(lines: list[dict[str, str]]) -> None:
    print("Hold-out by date: learned from the earlier half, checks of the later one that were inside, and the alarm")
    for kind in FITS:
        several = sorted(
            (row for row in lines if kind in ("", row["machine_type"])), key=lambda row: row["insert_time"]
        )
        middle = len(several) // 2
        earlier, later = (observed(part).without_cap() for part in (several[:middle], several[middle:]))
        inside, asked = covered(earlier, later)
        change = compare(KaplanMeier(earlier), later)
        assert change
        print(
            f"  {kind or 'all':14} {inside} of {asked}   {change.revoked} revoked, {change.expected:.1f} expected, "
            f"chance {change.chance:.1e}{'   ALARM' if change.alarm else ''}"
        )


def simulated(random: np.random.Generator, vms: int, truth: EarlyThenSteady = TRUTH) -> Observations:
    """Of VMs whose users delete them at random moments."""
    lived = drawn(truth, random, vms)
    watched = random.uniform(0.5, 30, vms)
    return Observations.of(np.minimum(lived, watched), lived <= watched)


def calibration(lines: list[dict[str, str]], splits: int) -> None:
    random = np.random.default_rng(7)
    print("Hold-out: learned from one half, the share alive in the other inside its 90 % interval")
    sets = {f"simulated, {vms} VMs": [simulated(random, vms) for _ in range(splits)] for vms in (120, 600)}
    for gpu in ("k80", "p100", "v100", "cpu"):
        tables = [each for each in published.tables() if each.gpu == gpu]
        seen = Observations.together([Observations.hourly(each.launched, each.revoked) for each in tables])
        sets[f"published, {gpu}"] = [seen] * splits
    if lines:
        every = observed(lines).without_cap()
        sets["HPDC 2020, all"] = [every] * splits
        for name in ("n1-highcpu-2", "n1-highcpu-4", "n1-highcpu-16", "n1-highcpu-32"):
            kind = observed([line for line in lines if line["machine_type"] == name]).without_cap()
            sets[f"HPDC 2020, {name}"] = [kind] * splits
    total = np.zeros(2)
    for name, several in sets.items():
        found = np.sum([covered(*halves(seen, random)) for seen in several], axis=0)
        total += found if not name.startswith("simulated") else 0
        print(f"  {name:28} {found[0] / found[1]:6.1%} of {found[1]}")
    print(f"  {'all that is real':28} {total[0] / total[1]:6.1%} of {total[1]:.0f}")
    print("Hold-out: log-likelihood per revocation of formulas fitted to the other half (larger is better)")
    for name, seen in [("simulated", simulated(random, 600)), *([("HPDC 2020, all", every)] if lines else [])]:
        scores: dict[str, list[float]] = {}
        for _ in range(5):
            learned, held_out = halves(seen, random)
            for formula in formulas(capped=False):
                model = fit_lifetimes(formula, learned, capped=False).model
                scores.setdefault(formula, []).append(log_likelihood(model, held_out) / held_out.events)  # type: ignore[arg-type]
        print(f"  {name:28} " + ", ".join(f"{formula} {np.mean(score):.3f}" for formula, score in scores.items()))


def alarms(trials: int) -> None:
    random = np.random.default_rng(11)
    print("The alarm, 30 new VMs against 150 known ones, looked at seven times while they grow older:")
    print(f"how often it goes ({FALSE_ALARMS:.0%} if nothing changed)")
    for name, after in {
        "nothing changed": TRUTH, "three times the steady hazard": EarlyThenSteady(0.25, 1.0, 0.036),
        "twice as many go early": EarlyThenSteady(0.5, 1.0, 0.012), "both": EarlyThenSteady(0.5, 1.0, 0.036),
    }.items():  # fmt: skip
        heard = 0
        for _ in range(trials):
            known, new = KaplanMeier(simulated(random, 150)), simulated(random, 30, after)
            looks = [compare(known, new.until(age)) for age in (0.25, 0.5, 1, 2, 4, 8, 30)]
            heard += any(look and look.alarm for look in looks)
        print(f"  {name:30} {heard / trials:6.1%} of {trials}")


def goldens(lines: list[dict[str, str]]) -> None:
    if lines:
        print("Four-parameter bathtub as published: A, b, tau1, tau2, R² (published in brackets)")
        for kind, golden in FITS.items():
            revoked = [float(line["lifetime_s"]) / 3600 for line in lines
                       if line["end_kind"] == "preempted" and kind in ("", line["machine_type"])]  # fmt: skip
            model, r2 = as_published(np.array(revoked))
            found = (*model.parameters.values(), r2)
            pairs = "  ".join(f"{mine:.3f} ({theirs:.3f})" for mine, theirs in zip(found, golden, strict=True))
            print(f"  {kind or 'all':14} {len(revoked):4}  {pairs}")
        km = KaplanMeier(observed(lines))
        dead = 1 - km.survival(np.array([1, 3, 6, 12, 20, 23.9]))
        print("Revoked by 1, 3, 6, 12, 20, 23.9 h, censoring counted: " + " ".join(f"{share:.3f}" for share in dead)
            + " (.149 .232 .276 .318 .367 .386)")  # fmt: skip
    began = time.perf_counter()
    planner = Planner(BATHTUB, 5, MINUTE, MINUTE, piece=MINUTE, as_published=True)
    took = time.perf_counter() - began
    print(f"Checkpoint planner as published: expected minutes, and the difference to the published ({took:.1f} s)")
    print(f"  300 min, fresh: {planner.plan().hours * 60:.9f} ({planner.plan().hours * 60 - 310.0687164353:+.1e})")
    ours = ", ".join(f"{60 * each:.0f}" for each in planner.plan().checkpoints)
    print(f"  its checkpoints after {ours} min (published 15, 43, 81, 140, 268: by their own equation 310.985 min)")
    for hours, golden in enumerate(RATIOS, 1):
        mine = planner.plan(work=hours).hours / hours
        print(f"  {hours} h / work: {mine:.7f} ({mine - golden:+.1e})")
    for age, golden in BY_AGE.items():
        mine = planner.plan(age, 4).hours * 60
        print(f"  240 min at {age:2} h: {mine:.7f} ({mine - golden:+.1e})")


def overheads(lines: list[dict[str, str]]) -> None:
    print("A job of 4 h, a checkpoint of 1 min, 1 min to restart: overhead of the plan, of Young and Daly's interval")
    cases = [("4-parameter bathtub", BATHTUB, (0, 8, 18, 22))]
    if lines:
        cases.append(("as observed (KM)", KaplanMeier(observed(lines), 25.0), (0, 8, 18, 22)))
    spot = Observations.together(
        [Observations.hourly(t.launched, t.revoked) for t in published.tables() if t.gpu == "k80"]
    )
    cases.append(("published K80 on Spot", KaplanMeier(spot), (0, 8, 18)))
    for name, model, ages in cases:
        began = time.perf_counter()
        planner = Planner(model, 4, MINUTE, MINUTE)  # type: ignore[arg-type]
        took = time.perf_counter() - began
        for age in ages:
            usual = [planner.every(young_daly(MINUTE, mean), age).overhead for mean in (1, 12)]
            print(
                f"  {name:22} at {age:2} h: plan {planner.plan(age).overhead:+7.2%}  every 11 min {usual[0]:+7.2%}  "
                f"every 38 min {usual[1]:+7.2%}  none {planner.every(4, age).overhead:+8.2%}  ({took:.1f} s)"
            )


def on_a_cluster() -> None:
    print("On a cluster, where a parameter server's end alone loses work: --checkpoint-every auto, and the best")
    for mean_hours in (5, 24, 1000):
        for cost in (0.2, 1.5, 6.0):

            def overhead(seconds: float, mean: float = mean_hours * 3600.0, cost: float = cost) -> float:
                return mean * np.expm1((seconds + cost) / mean) / seconds - 1

            rule, best = seconds_between(cost), min(np.geomspace(5, 1e5, 2000), key=overhead)
            print(
                f"  server lasts {mean_hours:4} h, a checkpoint {cost:3} s: every {rule:3.0f} s {overhead(rule):6.2%}, "
                f"best every {best:6.0f} s {overhead(best):6.2%}"
            )


def lifetimes(options: argparse.Namespace) -> None:
    """Print fits, checkpoint plans, hold-outs and alarms."""
    lines = rows(options.data)
    goldens(lines)
    overheads(lines)
    on_a_cluster()
    calibration(lines, 20 if options.quick else 100)
    if lines:
        by_date(lines)
    alarms(200 if options.quick else 2000)


@dataclass(frozen=True)
class Judged:
    """One forecast beside what came: seconds from its moment until the run was over, and the whole bill in dollars."""

    seed: int
    part: float
    whole_seconds: float
    seconds: float
    seconds_interval: tuple[float, float]
    came_seconds: float
    dollars: float
    dollars_interval: tuple[float, float]
    came_dollars: float

    @property
    def time_error(self) -> float:
        """As a part of the run's whole time."""
        return (self.seconds - self.came_seconds) / self.whole_seconds

    @property
    def bill_error(self) -> float:
        """As a part of the whole bill."""
        return self.dollars / self.came_dollars - 1

    @property
    def time_held(self) -> bool:
        """Whether the end lay within its 90 % interval."""
        return self.seconds_interval[0] <= self.came_seconds <= self.seconds_interval[1]

    @property
    def bill_held(self) -> bool:
        """Whether the bill lay within its 90 % interval."""
        return self.dollars_interval[0] <= self.came_dollars <= self.dollars_interval[1]

    def __str__(self) -> str:
        time_said = _row(self.seconds, self.seconds_interval, self.came_seconds, self.time_error, self.time_held, 0)
        bill_said = _row(self.dollars, self.dollars_interval, self.came_dollars, self.bill_error, self.bill_held, 2)
        return f"{self.seed:4} {self.part:5.0%} {time_said} {bill_said}"


def _row(told: float, interval: tuple[float, float], came: float, error: float, held: bool, digits: int) -> str:
    between = f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"
    return f"{told:9.{digits}f} {between:>17} {came:9.{digits}f} {error:+8.1%} {'in' if held else 'OUT':>4}"


_COLUMNS = f"{'forecast':>9} {'90 %':>17} {'happened':>9} {'error':>8} {'':4}"
HEADER = f"{'':10} {'seconds until the end':52} dollars of the cluster\n{'seed':>4} {'made':>5} {_COLUMNS} {_COLUMNS}"


def once(seed: int, steps: int, hours_per_minute: float) -> list[Judged]:
    """The forecasts of one run, judged."""
    with own_home():
        cluster = client.declare(Declaration(f"k80x{WORKERS}", name="live", max_workers=64, max_hours=90 * 24))
        cluster.wait(120)
        start(cluster, steps=REHEARSAL, pace_seconds=PACE).wait(600)
        run = start(cluster, steps=steps, pace_seconds=PACE)
        all_in(cluster, WORKERS)
        compressed = {"hours_per_minute": hours_per_minute, "notice": "scaled", "boot": "published"}
        cluster.weather(revocations="published", seed=seed, **compressed)
        made: list[tuple[float, Forecast]] = []
        for part in PARTS:
            reach(cluster, run, part * steps)
            if not run.state.over:
                made.append((part, run.forecast()))
        run.wait(3600)
        state = run.state
        total = run.cost().total
        print(f"seed {seed}: {cluster.state.revocations} revocations", flush=True)
        return [
            Judged(
                seed, part, state.ended_at - state.started_at, foretold.seconds, foretold.interval("seconds"),
                state.ended_at - foretold.at, foretold.dollars, foretold.interval("dollars"), total,
            ) for part, foretold in made
        ]  # fmt: skip


def reach(cluster: Cluster, run: Run, step: float) -> None:
    """Wait until the run has made so many steps."""
    cluster.follow(lambda state: state.of(RunState)[run.name].step >= step or state.of(RunState)[run.name].over, 3600)


def live(options: argparse.Namespace) -> None:
    """Print every forecast beside what happened, and the errors of all of them."""
    seeds = options.seeds or ([1] if options.quick else [1, 2, 3])
    began = time.monotonic()
    judged: list[Judged] = []
    for seed in seeds:
        judged += once(seed, options.steps or (600 if options.quick else 1800), HOURS_PER_MINUTE)
    print("\n".join([HEADER, *map(str, judged)]), flush=True)
    for part in PARTS:
        those = [each for each in judged if each.part == part]
        if those:
            say(f"forecast at {part:.0%}: error of the run's time", 100 * mean(abs(each.time_error) for each in those),
                "%", "< 10")  # fmt: skip
            say("    error of the bill", 100 * mean(abs(each.bill_error) for each in those), "%")
    if judged:
        say(f"time within its 90 % interval, of {len(judged)}", sum(each.time_held for each in judged), "times")
        say(f"bill within its 90 % interval, of {len(judged)}", sum(each.bill_held for each in judged), "times")
    say("this took", time.monotonic() - began, "s")


def main() -> None:
    """Run the chosen measures."""
    measures = {"published": tables, "lifetimes": lifetimes, "live": live}
    parser = parser_of(__doc__, "fewer splits and alarms; one short live run instead of three", measures)
    parser.add_argument("--data", type=Path, default=HERE, help="the folder of published measurements")
    parser.add_argument("--seeds", type=int, nargs="+", help="of the weather, one live run each (default: 1 2 3)")
    parser.add_argument("--steps", type=int, help="of each live run (default: 1800, some four minutes)")
    run_measures(measures, parser.parse_args())


if __name__ == "__main__":
    main()
