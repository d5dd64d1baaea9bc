"""A cluster that trains moves to another zone and back: seconds without a step, steps made again, and dollars.

Two workers with one parameter server on the emulator, whose VMs share this machine's cores. A step counts where it is
in the parameter servers that follow: those made between the save and the end of the old processes are made again. VMs
boot in no time here, so that all that is prepared for a run is prepared after the last one is ready. The phases add up
to the seconds from then until everybody steps.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from _common import all_in, own_home, say, say_all, start

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import ClusterState, Event, events, metrics

HOME, THERE = "us-west1-b", "us-east1-c"
WORKERS = 2
PATIENCE = 600.0
SETTLE = 15.0  # seconds of training before the next move


def moved(cluster: Cluster, run: Run, zone: str) -> dict[str, float]:
    """Move there, and what that took, by name."""
    began, mark = time.time(), cluster.state.seq
    cluster.relocate(zone, yes=True)
    old = {vm.name for vm in cluster.state.serving}

    def over(state: ClusterState) -> bool:
        run_now = state.active_run
        workers = {vm.name for vm in state.serving if vm.role == "worker"}
        return bool(state.relocation is None and run_now and not workers & old and workers <= set(run_now.workers))

    if cluster.follow(over, PATIENCE) is None:
        raise SystemExit(f"it has not moved within {PATIENCE:.0f} s: {cluster.state.trouble}")
    time.sleep(SETTLE)
    told = [each for each in cluster.events() if each.seq > mark]
    new = {vm.name: vm for vm in cluster.state.serving}
    ready = max(vm.ready_at for vm in new.values())
    started = _first(told, events.TrainStarted)
    relocated = _first(told, events.ClusterRelocated)
    saved = [each for each in told if isinstance(each, events.TrainCheckpoint) and each.at <= relocated.at][-1]
    rows = [row for row in metrics.read(run.directory / "metrics.jsonl") if row["steps"] and row["time"] / 1e9 > began]
    first = {vm: min(row["time"] / 1e9 for row in rows if row["worker"] == vm) for vm in new if vm.startswith("worker")}
    before = [row["step"] for row in rows if row["worker"] in old]
    both = relocated.at - min(vm.running_at for vm in new.values())
    counted = max(row["time"] / 1e9 for row in rows if row["worker"] in old and row["step"] <= started.step)
    return {
        "from the last VM's readiness until everybody steps": max(first.values()) - ready,
        "  until the last step that counts": counted - ready,
        "  until that is saved": saved.at - counted,
        "  until the old processes have ended, and all is there": relocated.at - saved.at,
        "  until the parameter server has its values": started.at - relocated.at,
        "  until the first worker steps": min(first.values()) - started.at,
        "  until the last worker steps": max(first.values()) - min(first.values()),
        "without a step that counts": min(first.values()) - counted,
        "steps made again": max([0, *(step - started.step for step in before)]),
        "both places paid": both,
        "dollars for both places": both / 3600 * sum(vm.hourly for vm in new.values()),
        "dollars for what followed": relocated.dollars,
    }


def _first(told: Sequence[Event], kind: type[Event]):  # type: ignore[no-untyped-def]
    return next(each for each in told if isinstance(each, kind))


def main() -> None:
    """Print medians with their ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two moves instead of six")
    given = parser.parse_args()
    with own_home():
        cluster = client.declare(Declaration(f"k80x{WORKERS}@{HOME}", name="bench"))
        run = start(cluster, pace_seconds=0.3, checkpoint_steps=200, checkpoint_seconds=None)
        all_in(cluster, WORKERS)
        time.sleep(SETTLE)
        found = [moved(cluster, run, (THERE, HOME)[turn % 2]) for turn in range(2 if given.quick else 6)]
        say("load of this machine, over a minute", os.getloadavg()[0], "", more=f"{os.cpu_count()} cores")
        goals = {"from the last VM's readiness until everybody steps": "< 20"}
        for name in found[0]:
            values = [each[name] for each in found]
            if name.startswith("dollars"):
                say(name, max(values), "dollars", more=f"the most of {len(values)}")
            else:
                say_all(name, values, "steps" if name.startswith("steps") else "s", goals.get(name, ""))


if __name__ == "__main__":
    main()
