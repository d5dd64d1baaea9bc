"""A mixed cluster in three zones, one of them sold out: from its declaration to RUNNING, ready and training."""

from __future__ import annotations

import argparse

from _common import own_home, say, start

from transient_magics import client
from transient_magics.client import Declaration
from transient_magics.journal import events

SPEC = "k80x2@us-west1-b+p100@us-central1-c+v100"
SOLD_OUT = "us-central1-a:v100"


def main() -> None:
    """Print when each VM's request was answered, the cluster was ready and every worker had made a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="(it is quick)")
    parser.parse_args()
    with own_home():
        other = client.declare(Declaration("cpu", name="other"))  # whose emulator's weather can be set beforehand
        other.wait(60)
        other.weather(stockout=[SOLD_OUT])
        cluster = client.declare(Declaration(SPEC, name="mixed", zone=("us-central1-a", "us-west1-a")))
        run = start(cluster, steps=10**7, pace_seconds=0.3)
        began = cluster.events()[0].at
        cluster.follow(lambda state: state.phase == "ready", 120)
        cluster.follow(lambda state: bool(state.active_run and len(state.active_run.workers) == 4), 240)
        run.reach(20, 120)
        history, vms = cluster.events(), cluster.state.vms
        for event in history:
            if isinstance(event, events.VmRunning):
                vm = vms[event.vm]
                say(f"{vm.name} RUNNING in {vm.zone} ({vm.accelerator or 'cpu'})", event.at - began, "s")
        joined = [event.at - began for event in history if isinstance(event, events.WorkerJoined)]
        say("refusals for want of capacity", len(cluster.events("vm.refused")), "")
        say("all SSH-ready", cluster.events("cluster.ready")[0].at - began, "s")
        say("the first worker has joined", joined[0], "s")
        say("the fourth worker has joined", joined[3], "s")


if __name__ == "__main__":
    main()
