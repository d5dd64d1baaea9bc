"""Bags: what the reuse policy saves, whether a surrogate is as true as it says, block errors, and from when it pays.

All of it but `live` is simulated or computed; nothing is rented. Policies see the same jobs and each VM the same life.
`live` has jobs that wait on emulated VMs, six hours a minute, in the weather of published lifetimes: both policies at
once, each on preemptible VMs of its own, and whether the plan's interval holds what came. What a program takes to start
is 360 times as long on that clock: it goes as here until the first jobs have begun, and hours and dollars count from
then to the last result. How long Dask and the bag's driver took is told apart, in seconds of this machine. How long VMs
boot is emulated, and counts; what it takes on them until they have a job, and from a result to the next, counts too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from _common import own_home, say

from transient_magics import client
from transient_magics.client import Declaration
from transient_magics.journal import Event, costs, events, replay
from transient_magics.planner.lifetimes.kaplan_meier import Capped
from transient_magics.planner.lifetimes.parametric import Bathtub, LifetimeModel
from transient_magics.planner.lifetimes.sources import published_lifetimes
from transient_magics.protocol.space import parse_space
from transient_magics.works.bags.block_average import block_mean
from transient_magics.works.bags.events import BagResult, BagStarted
from transient_magics.works.bags.plans import POLICIES, BagRow, bag_plan
from transient_magics.works.bags.policy.simulate import Bag, Courses, on_demand, simulate
from transient_magics.works.bags.state import DeclaredBag
from transient_magics.works.bags.surrogate.active_learning import Speedup, propose
from transient_magics.works.bags.surrogate.cube import Cube, sobol
from transient_magics.works.bags.surrogate.model import Kind, Result, Surrogate, learn

# Dollars per hour of 2 vCPUs of n1-highcpu in 2019: transient, on demand (HPDC 2020).
TRANSIENT, ON_DEMAND = 0.015, 0.0709
MODELS: dict[str, LifetimeModel] = {
    "CPU VMs of ICAC'19": Capped(published_lifetimes("cpu", "us-east1"), 24.0),
    "bathtub of HPDC 2020": Bathtub(0.4137, 24.0, 0.9, 0.76),
    "Spot, no limit": published_lifetimes("cpu", "us-east1"),
}
SPACE = parse_space("density=0.3:0.9 temperature=0.8:1.6")
SECONDS_OF_A_JOB = 60.0
HOURS_PER_MINUTE = 6.0
RATE = 60 * HOURS_PER_MINUTE
"""Emulated seconds in one of this machine's."""
_SLOW = 1 / 60
"""Hours a minute: as here."""
WAITING = f"""
import random, time

def job(x, seed):
    time.sleep(random.Random(seed).uniform(1, 3) * 60 / {HOURS_PER_MINUTE})
    return {{"x": x}}
"""
"""A job of one to three hours."""


def policies(courses: int) -> None:
    print(
        f"300 jobs of 1 to 3 h, {courses} courses of each policy with the same seeds; failed jobs: lost with their VM"
    )
    for name, model in MODELS.items():
        for vms in (8, 32):
            for title, more in (("not saved", {}), ("saved in 20 s", {"save": 20 / 3600}),
                                ("and at the notice", {"save": 20 / 3600, "notice": True})):  # fmt: skip
                bag = Bag(300, 1, 3, vms, TRANSIENT, model, **more)  # type: ignore[arg-type]
                one, other = (simulate(bag, each, courses=courses, seed=1, uncertain=False)
                              for each in ("reuse", "memoryless"))  # fmt: skip
                _compared(f"{name}, {vms} VMs, {title}", bag, one, other, courses)


def _compared(name: str, bag: Bag, reuse: Courses, memoryless: Courses, courses: int) -> None:
    random = np.random.default_rng(0)
    drawn = [random.integers(courses, size=courses) for _ in range(400)]
    ratios = [memoryless.failed[each].sum() / max(reuse.failed[each].sum(), 1) for each in drawn]
    low, high = np.quantile(ratios, [0.05, 0.95])
    safe = simulate(on_demand(bag, ON_DEMAND), "memoryless", courses=courses, seed=1, uncertain=False)
    print(f"  {name}")
    say("    failed jobs, memoryless over reuse", memoryless.failed.sum() / max(reuse.failed.sum(), 1), "x",
        "2 or more", more=f"90 % {low:.2f} to {high:.2f}; {reuse.failed.mean():.1f} and {memoryless.failed.mean():.1f} "
                          f"of {bag.jobs} jobs")  # fmt: skip
    for policy, found in (("reuse", reuse), ("memoryless", memoryless)):
        say(f"    cost over on demand, {policy}", found.dollars.sum() / safe.dollars.sum(), "x", "0.2",
            more=f"prices alone {TRANSIENT / ON_DEMAND:.3f}; "
                 f"{found.hours.mean() / safe.hours.mean():.2f} x the time")  # fmt: skip
    say("    checkpoints over computing, reuse", 100 * reuse.saving.sum() / reuse.computed.sum(), "%", "below 3")


def plans(bags: int) -> None:
    """Whether the interval of simulated courses holds other courses, drawn with what they were learnt from."""
    print(f"The 90 % interval of 200 courses against {bags} bags of 40 jobs on 8 VMs")
    for name, model in MODELS.items():
        bag = Bag(40, 1, 3, 8, TRANSIENT, model)
        planned = simulate(bag, "reuse", courses=200, seed=2)
        held = simulate(bag, "reuse", courses=bags, seed=77, uncertain=False)
        for what in ("hours", "dollars", "failed"):
            low, high = np.quantile(getattr(planned, what), [0.05, 0.95])
            inside = float(np.mean((getattr(held, what) >= low) & (getattr(held, what) <= high)))
            say(f"  {name}: {what} inside", 100 * inside, "%", "80 to 97", more=f"{low:.2f} to {high:.2f}")


def smooth(density: Any, temperature: Any) -> Any:
    """As a fluid's pressure: ideal gas, and what attraction and repulsion make of it."""
    return density * temperature * (1 + 2.1 * density + 5 * density**3) - 6 * density**2 + 4 * density**4 / temperature


def jump(density: Any, temperature: Any) -> Any:
    """With a transition: what no stationary process is right for."""
    return smooth(density, temperature) + 1.0 * (np.asarray(density) > 0.62 + 0.1 * np.asarray(temperature - 1.2))


def computed(points: Sequence[Any], function: Callable[[Any, Any], Any], random: np.random.Generator) -> list[Result]:
    """Results with errors that differ by a factor of five."""
    found = []
    for point in points:
        error = float(0.02 * random.choice([0.4, 1.0, 2.0]))
        value = float(function(point["density"], point["temperature"])) + error * random.normal()
        found.append((point, {"pressure": value, "pressure_error": error}))
    return found


def acquired(jobs: int, function: Callable[[Any, Any], Any], seed: int, kind: Kind) -> tuple[Surrogate, list[Result]]:
    """As a bag does it: corners and Sobol points, then batches of ten."""
    random = np.random.default_rng(seed)
    results = computed([each.point for each in propose(SPACE, None, 20, first=0, seed=seed)], function, random)
    while len(results) < jobs:
        batch = propose(SPACE, learn(SPACE, results, "gp", seed), 10, first=len(results), seed=seed)
        results += computed([each.point for each in batch], function, random)
    return learn(SPACE, results, kind, seed), results


def held_out(repeats: int) -> None:
    cube = Cube(SPACE)
    rows = sobol(2, 256, 12345)
    strip = rows.copy()
    strip[:, 0] = np.where(strip[:, 0] < 0.5, 0.03 * strip[:, 0], 1 - 0.03 * strip[:, 0])
    held = {"256 Sobol points": [cube.point(row) for row in rows], "a strip of 3 % at the ends":
            [cube.point(row) for row in strip]}  # fmt: skip
    print(f"Surrogates of 100 results with errors of their own, {repeats} of each; held out points were fixed before")
    cases: tuple[tuple[str, Callable[[Any, Any], Any], Kind], ...] = (
        ("smooth, Gaussian process", smooth, "gp"), ("smooth, ensemble of 2,100", smooth, "ensemble"),
        ("a jump in it, Gaussian process", jump, "gp"),
    )  # fmt: skip
    for name, function, kind in cases:
        if kind == "gp":
            learnt = [acquired(100, function, seed, kind)[0] for seed in range(repeats)]
        else:  # as many as it is for
            many = [
                computed(cube.filling(2100, seed), function, np.random.default_rng(seed)) for seed in range(repeats)
            ]
            learnt = [learn(SPACE, results, kind) for results in many]
        for where, points in held.items():
            scores = []
            for seed, surrogate in enumerate(learnt):
                asked = computed(points, function, np.random.default_rng(1000 + seed))
                mean, sd = surrogate.predict(points)["pressure"]
                off = np.array([returned["pressure"] for _, returned in asked]) - mean
                scores.append(off / np.hypot(sd, [returned["pressure_error"] for _, returned in asked]))
            each = [float(np.mean(score**2)) for score in scores]
            inside = [float(np.mean(np.abs(score) < 1.6449)) for score in scores]
            say(f"  {name}: chi-square, {where}", float(np.mean(each)), "", "0.8 to 1.3",
                more=f"n {repeats}, {min(each):.2f} to {max(each):.2f}")  # fmt: skip
            say(f"  {name}: 90 % intervals, {where}", 100 * float(np.mean(inside)), "%", "85 to 95",
                more=f"{100 * min(inside):.0f} to {100 * max(inside):.0f}")  # fmt: skip


def blocks(series: int) -> None:
    print(f"Block errors over the true error of the mean, {series} AR(1) series of each")
    random = np.random.default_rng(5)
    for length in (4096, 512):
        for phi in (0.0, 0.5, 0.9, 0.97):
            steps = random.normal(size=(length + 500, series))
            values = np.zeros_like(steps)
            for turn in range(1, len(steps)):
                values[turn] = phi * values[turn - 1] + steps[turn]
            found = [block_mean(each) for each in values[500:].T]
            lag = np.arange(1, length)
            true = np.sqrt((1 + 2 * np.sum((1 - lag / length) * phi**lag)) / (1 - phi**2) / length)
            off = np.array([each.mean / each.error for each in found])
            naive = float(np.mean([each.std(ddof=1) / np.sqrt(length) for each in values[500:].T])) / true
            say(f"  phi {phi}, {length} values", float(np.median([each.error for each in found])) / true, "x", "1",
                more=f"naive {naive:.2f}; 90 % hold {np.mean(np.abs(off) < 1.6449):.0%}; "
                     f"said to be enough {np.mean([each.enough for each in found]):.0%}")  # fmt: skip


def break_even(repeats: int) -> None:
    from scipy.interpolate import RectBivariateSpline

    print("As many results on a grid with a bicubic spline; errors on 256 held-out points, and what a look-up takes")
    asked = Cube(SPACE).filling(256, 4321)
    truth = np.array([smooth(each["density"], each["temperature"]) for each in asked])
    for side in (5, 7, 10):
        ours, theirs, learning, looking = [], [], [], []
        for seed in range(repeats):
            surrogate, results = acquired(side * side, smooth, seed, "gp")
            began = time.perf_counter()
            learn(SPACE, results, "gp", seed)
            learning.append(time.perf_counter() - began)
            began = time.perf_counter()
            mean, _ = surrogate.predict(asked)["pressure"]
            looking.append((time.perf_counter() - began) / len(asked))
            ours.append(float(np.sqrt(np.mean((mean - truth) ** 2))))
            ends = [np.linspace(each.low, each.high, side) for each in SPACE]
            points = [{"density": float(one), "temperature": float(other)} for one in ends[0] for other in ends[1]]
            values = [each["pressure"] for _, each in computed(points, smooth, np.random.default_rng(seed))]
            spline = RectBivariateSpline(*ends, np.reshape(values, (side, side)))
            found = spline([each["density"] for each in asked], [each["temperature"] for each in asked], grid=False)
            theirs.append(float(np.sqrt(np.mean((found - truth) ** 2))))
        say(f"  {side * side} results: error of the grid over the surrogate's", np.mean(theirs) / np.mean(ours), "x",
            "more than 1", more=f"n {repeats}; {np.mean(ours):.4f} and {np.mean(theirs):.4f}")  # fmt: skip
        learnings = side * side / 10
        speedup = Speedup(SECONDS_OF_A_JOB, float(np.mean(looking)), SECONDS_OF_A_JOB * 1.1,
                          float(np.mean(learning)) * learnings / side**2, side**2)  # fmt: skip
        say("    look-ups from which it pays, jobs of 1 min one by one", speedup.break_even, "",
            more=f"learnt {np.mean(learning):.2f} s, a look-up {1e6 * np.mean(looking):.0f} us")  # fmt: skip
        parallel = replace(speedup, train=SECONDS_OF_A_JOB * 1.1 / 8)
        say("    the same on 8 VMs", parallel.break_even, "", more=f"at as many look-ups {parallel.at(side**2):.1f} x")


def live(seeds: Sequence[int], jobs: int, vms: int) -> None:
    """Bags of jobs that wait, by both policies at once, each seed with VMs of its own."""
    print(f"{jobs} jobs of 1 to 3 h on {vms} preemptible VMs each, {len(seeds)} bags of each policy, live")
    came: dict[str, list[dict[str, float]]] = {policy: [] for policy in POLICIES}
    for seed in seeds:
        with own_home():
            for policy, found in _one_of_each(seed, jobs, vms).items():
                came[policy].append(found)
                told = ", ".join(f"{what} {value:.3g}" for what, value in found.items())
                print(f"  seed {seed}, {policy}: {told}", flush=True)
    planned = {row.policy: row for row in bag_plan(
        f"cpux{vms}", jobs=jobs, job_time="1h:3h", provisioning_model="preemptible"
    ).rows}  # fmt: skip
    for policy, found in came.items():
        for what in ("hours", "dollars", "failed"):
            _held(f"  {policy}: {what}", planned[policy], what, [each[what] for each in found])
    for what in ("until the first job", "from a VM that is ready to its first job", "from a result to the next job"):
        say(f"  s here {what}", median([each[what] for found in came.values() for each in found]), "s", more="median")
    for policy, found in came.items():
        say(f"  {policy}: VMs given up", sum(each["given_up"] for each in found), "", more=f"n {len(found)} bags")
    lost = {policy: sum(each["failed"] for each in found) for policy, found in came.items()}
    say("  failed jobs, memoryless over reuse", lost["memoryless"] / max(lost["reuse"], 1), "x", "2 or more",
        more=f"{lost['memoryless']:.0f} and {lost['reuse']:.0f}")  # fmt: skip


def _one_of_each(seed: int, jobs: int, vms: int) -> dict[str, dict[str, float]]:
    """By policy: emulated hours, dollars, attempts lost with their VM, and VMs given up."""
    clusters = {
        policy: client.declare(Declaration(f"cpux{vms}", name=f"{policy}-{seed}", purpose="jobs", max_workers=64,
                                           provisioning_model="preemptible", max_hours=90 * 24))
        for policy in POLICIES
    }  # fmt: skip
    for cluster in clusters.values():
        cluster.wait(300)
    clusters["reuse"].weather(
        revocations="published", hours_per_minute=HOURS_PER_MINUTE, notice="scaled", boot="published", seed=seed
    )
    bags = {
        policy: client.declare_bag(source=WAITING, over="x=0:1", jobs=jobs, surrogate="none", policy=policy, seed=seed,
                                   cluster=clusters[policy], job_seconds=2 * 60 / HOURS_PER_MINUTE)
        for policy in POLICIES
    }  # fmt: skip
    clusters["reuse"].weather(hours_per_minute=_SLOW)  # VMs would be hours old before they have a job
    began = time.monotonic()
    while not all(each.events(BagStarted.kind) for each in clusters.values()) and time.monotonic() < began + 300:
        time.sleep(0.2)
    clusters["reuse"].weather(hours_per_minute=HOURS_PER_MINUTE)
    found: dict[str, dict[str, float]] = {}
    for policy, bag in bags.items():
        ended = bag.wait(3000)
        found[policy] = {
            **_lived(ended, clusters[policy].events()), "failed": float(ended.state.interruptions),
            "given_up": float(len(ended.state.given_up)),
        }  # fmt: skip
    return found


def _lived(bag: DeclaredBag, history: Sequence[Event]) -> dict[str, float]:
    """Hours and dollars from the first job's beginning to the last result, and the seconds of what was not emulated."""
    started = [each for each in history if isinstance(each, BagStarted)]
    results = [each for each in history if isinstance(each, BagResult)]
    on = {each.job: each.vm for each in started}
    ready = {each.vm: each.at for each in history if isinstance(each, events.VmReady)}
    first, last = started[0], results[-1]
    beside, joins = list[float](), list[float]()
    for vm in {each.vm for each in started}:
        begun = [each.at for each in started if each.vm == vm]
        came = [each.at for each in results if on[each.job] == vm]
        beside += [next(at for at in begun if at > over) - over for over in came if over < begun[-1]]
        joins += [begun[0] - ready[vm]] if ready[vm] > first.at else []

    def cost(until: Event) -> float:
        state = replay(each for each in history if each.seq <= until.seq)
        return costs(state, until.at)[bag.name].total

    return {
        "hours": (last.at - first.at) * RATE / 3600, "dollars": cost(last) - cost(first),
        "until the first job": first.at - bag.declared_at,
        "from a VM that is ready to its first job": median(joins or [0.0]),
        "from a result to the next job": median(beside),
    }  # fmt: skip


def _held(name: str, plan: BagRow, what: str, came: Sequence[float]) -> None:
    low, high = plan.interval(what)
    inside = sum(low <= each <= high for each in came)
    say(name, float(np.mean(came)), "", more=f"planned {getattr(plan, what):.3g}, 90 % {low:.3g} to {high:.3g}; "
        f"{inside} of {len(came)} inside")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer courses, fits and series")
    parser.add_argument("--only", choices=("policies", "plans", "surrogate", "blocks", "break-even", "live"))
    parser.add_argument("--seeds", type=int, nargs="+", help="of `live`: two bags for each (1 to 15; quick: 1)")
    options = parser.parse_args()
    quick = options.quick
    parts: dict[str, Callable[[], None]] = {
        "policies": lambda: policies(10 if quick else 60), "plans": lambda: plans(30 if quick else 120),
        "blocks": lambda: blocks(60 if quick else 300), "surrogate": lambda: held_out(2 if quick else 10),
        "break-even": lambda: break_even(1 if quick else 5),
        "live": lambda: live(options.seeds or ([1] if quick else range(1, 16)), *((26, 2) if quick else (40, 4))),
    }  # fmt: skip
    for name, part in parts.items():
        if options.only in (None, name):
            part()


if __name__ == "__main__":
    main()
