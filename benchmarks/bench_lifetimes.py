"""Lifetimes and checkpoint plans against what was published and against held-out halves.

The published measurements are not part of the project: `--data FOLDER`, or the folder `shared/data` beside the project.
Without them only what is simulated or shipped is measured.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import numpy as np

from transient_magics.catalog import published
from transient_magics.planner.checkpoints import Planner, young_daly
from transient_magics.planner.lifetimes.change import FALSE_ALARMS, compare
from transient_magics.planner.lifetimes.kaplan_meier import KaplanMeier
from transient_magics.planner.lifetimes.model import drawn
from transient_magics.planner.lifetimes.observations import Observations
from transient_magics.planner.lifetimes.parametric import Bathtub, EarlyThenSteady
from transient_magics.planner.lifetimes.study import as_published, fit, formulas, log_likelihood
from transient_magics.runtime.parameter_server.chief.interval import seconds_between

HERE = Path(__file__).parents[1].parent / "shared" / "data"
LIFETIMES = "preemption/goog_preemption_lifetimes.csv"
# As others published them, from the same data: A, b, tau1, tau2 and R² by machine type.
FITS = {
    "": (0.4137, 24.453, 0.950, 0.767, 0.968), "n1-highcpu-2": (0.2654, 24.042, 1.711, 0.754, 0.954),
    "n1-highcpu-4": (0.2855, 24.047, 0.684, 0.680, 0.910), "n1-highcpu-8": (0.3106, 24.184, 1.276, 0.582, 0.961),
    "n1-highcpu-16": (0.4227, 24.453, 1.060, 0.784, 0.957), "n1-highcpu-32": (0.6905, 25.623, 0.782, 1.227, 0.974),
}  # fmt: skip
PUBLISHED = Bathtub(0.4137, 24.0, 0.9, 0.76)
TRUTH = EarlyThenSteady(0.25, 1.0, 0.012)
AGES = (1, 2, 4, 8, 12, 20)
MINUTE = 1 / 60
RATIOS = (1.0884584, 1.0640838, 1.0496623, 1.0401750, 1.0335624)
BY_AGE = {0: 249.6420063, 1: 246.5809298, 2: 244.0849495, 8: 241.0068589, 12: 241.0014515, 16: 241.2641622}


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
                model = fit(formula, learned, capped=False).model
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
    planner = Planner(PUBLISHED, 5, MINUTE, MINUTE, piece=MINUTE, as_published=True)
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
    cases = [("4-parameter bathtub", PUBLISHED, (0, 8, 18, 22))]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE, help="the folder of published measurements")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    lines = rows(options.data)
    goldens(lines)
    overheads(lines)
    on_a_cluster()
    calibration(lines, 20 if options.quick else 100)
    if lines:
        by_date(lines)
    alarms(200 if options.quick else 2000)


if __name__ == "__main__":
    main()
