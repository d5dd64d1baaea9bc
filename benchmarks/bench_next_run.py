"""From the last step of a run to the first step of the one that waits behind it, on the same worker.

A cluster of two CPU VMs has a queue of runs of one worker each, which differ in their learning rate. For each pair that
follow each other it is printed when what happened, in seconds after the last step of the former (negative: before it),
and below it what the processes of the latter wrote about their own starts.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from _common import own_home, say_all, start, vm_home

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import events, metrics

STEPS = 1000
FIRST = "its first step"
_LAP = re.compile(r"([a-z() ]+) ([0-9.]+)(?:, |$)")


def moments(cluster: Cluster, former: Run, latter: Run) -> dict[str, float]:
    """When each thing happened, in seconds after the former's last step, by name and in the usual order."""
    last = metrics.read(former.directory / "metrics.jsonl")[-1]["time"] / 1e9

    def told(run: Run, kind: type[events.Event], *, latest: bool = False) -> float:
        found = [each.at for each in cluster.events(kind.kind) if getattr(each, "run", "") == run.name]
        return (found[-1] if latest else found[0]) - last

    def process(vm: str) -> float:
        lines = (vm_home(cluster, vm) / "transient" / "agent.jsonl").read_text(encoding="utf-8").splitlines()
        started = (line for line in map(json.loads, lines) if line["kind"] == "process.started")
        return next(line["time"] for line in started if line["run"] == latter.name) / 1e9 - last

    leased = next(
        each.at
        for each in cluster.events("cluster.leased")
        if isinstance(each, events.ClusterLeased) and latter.name in each.workers.values()
    )
    return {
        "the next is checked": told(latter, events.TrainChecked),
        "the worker has left": told(former, events.WorkerLeft),
        "the last checkpoint is written": told(former, events.TrainCheckpoint, latest=True),
        "it is evaluated": told(former, events.TrainEvaluated, latest=True),
        "its chief tells the end": told(former, events.TrainFinished),
        "the next has the worker": leased - last,
        "its parameter server's process is there": process("ps-0"),
        "its variables are there": told(latter, events.TrainStarted),
        "its worker's process is there": process("worker-0"),
        FIRST: told(latter, events.WorkerJoined),
    }


def laps(run: Run) -> Iterator[tuple[str, float]]:
    """What its parameter server and its worker wrote about their starts."""
    for vm, goal in (("ps-0", "variables"), ("worker-0", "first gradient")):
        found = re.findall(rf"{goal} after [0-9.]+ s: (.*)", run.logs(vm, 2000))
        for name, seconds in _LAP.findall(found[-1]):
            yield f"  {vm}: {name}", float(seconds)


def main() -> None:
    """Print medians with their ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five pairs instead of twelve")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run (%(default)s)")
    given = parser.parse_args()
    pairs = 5 if given.quick else 12
    with own_home():
        cluster = client.declare(Declaration("cpux1", name="bench"))
        runs = [
            start(
                cluster, steps=given.steps, name=f"trial-{number}", workers=1, check=True,
                hparams=f"learning_rate={0.1 / (number + 1):.4f}",
            )
            for number in range(pairs + 1)
        ]  # fmt: skip
        found: defaultdict[str, list[float]] = defaultdict(list)
        for former, latter in pairwise(runs):
            latter.wait(600)
            parts = (*moments(cluster, former, latter).items(), *laps(latter))
            print(f"{latter.name}: {', '.join(f'{name.strip()} {seconds:.1f}' for name, seconds in parts)}", flush=True)
            for name, seconds in parts:
                found[name].append(seconds)
        for name, values in found.items():
            say_all(name, values, "s", "< 3" if name == FIRST else "")


if __name__ == "__main__":
    main()
