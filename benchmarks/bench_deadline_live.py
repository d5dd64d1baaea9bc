"""Runs with deadlines, live: how many were late, what they cost beside the same decisions simulated, how they act.

The decision core goes through adversarial capacity first, in a small world in which its conditions hold (starts as
long as told, speeds as measured), so that none may be late. Then runs on the emulator with replayed availability: two
workers, paced; six hours of the cloud pass in a minute, so that 12 hours of work take two of them. Each replays a
stretch of a trace of `--data` that begins anywhere in it, without one a market drawn from the spells that the
controller supposes. A run is late where its last step is not saved by the deadline; its start-ups are this machine's,
and take so much of a minute of which each is six hours. The simulated cost is that of the same world with the same
stretch and a start as long as the longest that was seen.

Thirty runs take hours: `--first 10 --runs 5 --keep FILE` makes those from seed 10 on and tells of all that FILE has.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean as mean

from _common import ROOT, own_home, say

sys.path.insert(0, str(ROOT))

from tests.deadlines.deadline_world import spells, world
from transient_magics import client
from transient_magics.catalog.traces import Trace, read_traces
from transient_magics.client import Declaration
from transient_magics.controller.deadlines.situation import seen
from transient_magics.deadlines.seen import LACKS, LASTS
from transient_magics.journal import Event, bill, events, replay

CELL = (
    (ROOT / "tests" / "faults" / "test_two_runs.py").read_text(encoding="utf-8").split('CELL = """')[1].split('"""')[0]
)
WORKERS, PACE, HOURS_PER_MINUTE = 2, 0.5, 6.0
RATE = 60 * HOURS_PER_MINUTE
WORK_HOURS, DEADLINE_HOURS = 12.0, 24.0
ZONE = "us-central1-a"
MOST = 9
HOUR = 3600.0


@dataclass(frozen=True)
class Lived:
    """One run: seconds by which it was late (below 0: early), dollars, what the simulation said, acts, revocations.

    `told` and `took`: how many seconds VMs on demand were counted with to take steps when they were taken, and took.
    """

    late: float
    dollars: float
    simulated: float
    acts: int
    revocations: int
    told: float
    took: float


def adversarial(runs: int) -> int:
    """How many of so many worlds, in which capacity goes at the worst moments that are tried, are late. Every other one
    has no room for Spot workers beside those on demand."""
    late = 0
    for seed in range(runs):
        chance = random.Random(seed)
        lengths = [chance.choice((1.0, 1.0, 0.1)) * chance.uniform(60, 5000) for _ in range(chance.randint(1, 16))]
        declared = chance.choice((1, 2, 4))
        made = world(
            spells(1200.0, *lengths), 0.0, 1, chance.uniform(0.5, 4.0), chance.choice((0.0, 0.1, 0.5)), declared,
            begin=chance.uniform(60, 400), save_every=chance.choice((60.0, 300.0, 900.0)), seed=seed,
            most=chance.choice((1, 2)) * declared,
        )  # fmt: skip
        speed = made.speed({"cpu": declared})
        made.work = int(chance.uniform(1500, 6000) * speed)
        made.deadline = 1200 + made.begin + chance.uniform(1.0, 2.0) * made.work / (0.8 * speed)
        late += made.run().now > made.deadline
    return late


def stretch(traces: list[Trace], chance: random.Random) -> Trace:
    """48 hours of a trace from a moment on, or of a drawn market: so many VMs or none."""
    if traces:
        chosen = chance.choice(traces)
        begin = chance.uniform(0, max(chosen.end - 48 * HOUR, 1.0))
        moments = [0.0, *(each - begin for each in chosen.seconds if begin < each < begin + 48 * HOUR)]
        return Trace(ZONE, "cpu", 1, tuple(moments), tuple(min(chosen.at(begin + each), 1) * MOST for each in moments),
                     48 * HOUR)  # fmt: skip
    moments, numbers, open_ = [0.0], [MOST], True
    while moments[-1] < 48 * HOUR:
        moments.append(moments[-1] + chance.expovariate(1 / (LASTS if open_ else LACKS)))
        open_ = not open_
        numbers.append(MOST if open_ else 0)
    return Trace(ZONE, "cpu", 1, tuple(moments), tuple(numbers), moments[-1] + HOUR)


def live(trace: Trace, seed: int) -> Lived:
    """One run on a cluster of its own."""
    with own_home() as home:
        spec = Declaration(f"cpux{WORKERS}", name="due", zone=(ZONE,), max_hours=2000, idle=1e7)
        cluster = client.declare(spec)
        file = Path(home) / "market.csv"
        file.write_text(trace.to_csv(), encoding="utf-8")
        cluster.weather(hours_per_minute=HOURS_PER_MINUTE, notice="scaled", boot="0.5s")
        cluster.wait(300)
        cluster.weather(availability=f"{ZONE}:cpu={file}:{trace.name}")
        began, steps = time.time(), round(60 * WORK_HOURS / HOURS_PER_MINUTE * WORKERS / PACE)
        before = bill(cluster.state, began).total
        run = client.train(source=CELL, cluster=cluster, train_steps=steps, pace_seconds=PACE, check=False,
                           finish_by=DEADLINE_HOURS, eval_batches=1)  # fmt: skip
        run.wait(1800)
        state, history = cluster.state, cluster.events()
        [made] = [each for each in history if isinstance(each, events.TrainMade)]
        acts = [each for each in history if isinstance(each, events.DeadlineActed)]
        known = state.runs[run.name].deadline
        line = state.spec.price("cpu", ZONE)
        start = max(known.joins, default=15.0) + 5
        simulated = world(
            lambda now: trace.at(now * RATE), run.declared.finish_by - began, steps, 1 / PACE, declared=WORKERS,
            begin=start, save_every=30.0, seed=seed, hourly=line.hourly * RATE,
            on_demand_hourly=line.on_demand_hourly * RATE,
            kept=sum(vm.hourly for vm in state.vms.values() if vm.role == "ps") * RATE, rate=RATE,
        ).run()  # fmt: skip
        return Lived(
            made.at - run.declared.finish_by, bill(state, made.at).total - before, simulated.cost, len(acts),
            state.revocations, *_starts(history, run.name),
        )  # fmt: skip


def _starts(history: list[Event], run: str) -> tuple[float, float]:
    """The start of the first VMs on demand, as it was counted with, and as it was; 0 where there were none."""
    acts = (each for each in history if isinstance(each, events.DeadlineActed))
    act = next((each for each in acts if any(terms == "standard" for _, terms, _ in each.machines)), None)
    if act is None:
        return 0.0, 0.0
    then = next((each.seq for each in acts), len(history) + 1)  # the next act may ask for more
    state = replay(each for each in history if each.seq < act.seq)
    names = {each.vm for each in history if isinstance(each, events.VmRequested) and each.role == "worker"
             and each.provisioning_model == "standard" and each.seq < then}  # fmt: skip
    joined = [each.at for each in history if isinstance(each, events.WorkerJoined) and each.worker in names]
    return seen(state, state.runs[run], act.at).begin, max(joined, default=act.at) - act.at


def kept(file: Path | None) -> dict[int, Lived]:
    """The runs of earlier calls, by seed."""
    lines = file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []
    return {each.pop("seed"): Lived(**each) for each in map(json.loads, lines)}


def main() -> None:
    """Print a line for each run, and what all came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 worlds and one run")
    parser.add_argument("--worlds", type=int, help="adversarial ones (10,000)")
    parser.add_argument("--runs", type=int, help="live ones (30)")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first live one")
    parser.add_argument("--keep", type=Path, help="a file to which live ones are appended, and that all are told of")
    parser.add_argument("--data", type=Path, help="a folder of *-1-node-*.csv files of measured availability")
    asked = parser.parse_args()
    worlds = asked.worlds if asked.worlds is not None else 100 if asked.quick else 10_000
    runs = asked.runs if asked.runs is not None else 1 if asked.quick else 30
    began = time.monotonic()
    if worlds:
        say(f"late of {worlds:,} adversarial worlds", adversarial(worlds), "runs", "0")
    traces: list[Trace] = []
    for path in sorted(asked.data.glob("availability-1-node-*.csv")) if asked.data else ():
        traces += [each for each in read_traces(path.read_text(encoding="utf-8"), path.name) if each.end > 48 * HOUR]
    lived = kept(asked.keep)
    for seed in range(asked.first, asked.first + runs):
        if seed in lived:
            continue
        lived[seed] = one = live(stretch(traces, random.Random(seed)), seed)
        if asked.keep:
            with asked.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"seed": seed, **asdict(one)}) + "\n")
        said = f"run {seed}: {-one.late:.0f} s before its deadline, ${one.dollars:.2f}, simulated ${one.simulated:.2f}"
        on_demand = f", on demand after {one.took:.0f} s ({one.told:.0f} counted with)" if one.told else ""
        print(f"{said}, {one.acts} acts, {one.revocations} revocations{on_demand}", flush=True)
    if lived:
        all_ = lived.values()
        say(f"late of {len(lived)} live runs", sum(each.late > 0 for each in all_), "runs", "0")
        broken = sum(each.late > 0 and each.took > each.told for each in all_)
        say("    of them with a start longer than was counted with", broken, "runs")
        say("cost over the simulation's", mean(each.dollars / each.simulated for each in all_), "x", "< 1.2")
        say("acts per run", mean(each.acts for each in all_), "acts")
    say("this took", time.monotonic() - began, "s")


if __name__ == "__main__":
    main()
