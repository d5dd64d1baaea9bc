"""A cluster's chaotic day, emulated: its bill beside a reckoning by Google's rules of what an observer of the API saw.

Six hours pass in a minute, for start-ups and notices too. VMs are revoked as in 2019 and one by one, creations are
preempted, zones sell out, the cluster is resized, and its controller is killed and put to sleep, as on a laptop that is
closed. Printed are the largest differences of what the product's bill names, and what Google would add.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

from _common import ROOT, own_home, say

sys.path.insert(0, str(ROOT))

from tests.money.catalog_prices import catalog_prices
from tests.money.comparing import differences
from tests.money.observer import Observer
from tests.money.reckoning import Charges, reckon
from transient_magics import client, emulator
from transient_magics.client import Cluster, Declaration
from transient_magics.errors import TransientError

SPEC = "t4x3@us-central1-a+v100@us-central1-a"
SPECS = (SPEC, "t4x2@us-central1-a+v100@us-central1-a", "t4x4@us-central1-a")
HOURS_PER_MINUTE = 6.0


def attempt(do: Any) -> None:
    """A wish that may meet a killed process; the day goes on either way."""
    try:
        do()
    except TransientError as error:
        print(f"  ({error})", flush=True)


def controller(cluster: Cluster) -> int | None:
    """Its process number, if it runs."""
    try:
        number = int((cluster.directory / "controller.lock").read_text(encoding="utf-8"))
        os.kill(number, 0)
    except (OSError, ValueError):
        return None
    return number


def nap(cluster: Cluster, seconds: float) -> None:
    """The controller stands still, as on a laptop that sleeps, while VMs are taken away."""
    number = controller(cluster)
    if number is None:
        return
    os.kill(number, signal.SIGSTOP)
    try:
        attempt(lambda: cluster.weather(revocations="every=2s"))
        time.sleep(seconds)
    finally:
        os.kill(number, signal.SIGCONT)
        attempt(lambda: cluster.weather(revocations="published"))


def live(cluster: Cluster, minutes: float, chance: random.Random) -> dict[str, int]:
    """The day; returns what happened how often."""
    happened: dict[str, int] = defaultdict(int)
    cluster.weather(
        hours_per_minute=HOURS_PER_MINUTE,
        notice="scaled",
        boot="published",
        revocations="published",
        creation_preemptions=0.1,
        api_errors=0.02,
        seed=1,
    )
    end = time.monotonic() + 60 * minutes
    moves = ["revoke", "revoke", "resize", "kill", "nap", "stockout", "wait"]
    while (left := end - time.monotonic()) > 0:
        cluster.follow(lambda state: False, min(left, chance.uniform(1, 6)))  # who follows revives its controller
        move = moves[sum(happened.values())] if sum(happened.values()) < len(moves) else chance.choice(moves)
        happened[move] += 1
        match move:
            case "revoke":
                ready = [vm.name for vm in cluster.state.living if vm.role == "worker" and vm.state == "ready"]
                if ready:
                    attempt(partial(cluster.revoke, chance.choice(ready)))
            case "resize":
                attempt(partial(cluster.resize, chance.choice(SPECS)))
            case "kill" if number := controller(cluster):
                os.kill(number, signal.SIGKILL)
            case "nap":
                nap(cluster, chance.uniform(2, 6))
            case "stockout":
                attempt(lambda: cluster.weather(stockout=["us-central1-a:v100,for=10s"]))
            case _:
                pass
    return happened


def show(cluster: Cluster, observer: Observer) -> None:
    """The figures."""
    at = observer.clock(time.time())
    prices = catalog_prices()
    vms = observer.vms()
    reckoned = reckon(vms, at, prices)
    compared = differences(cluster.cost(), reckoned, cluster.name)
    ours, theirs = sum(each.ours for each in compared), sum(each.reckoned for each in compared)
    starts = sum(len(vm.runs) for vm in vms)
    worst = max(compared, key=lambda each: abs(each.dollars))
    shares = [each for each in compared if each.reckoned]
    furthest = max(shares, key=lambda each: abs(each.share))
    say("VMs that existed", len(vms), "")
    say("VMs that ran", starts, "")
    say("preempted", sum(run.preempted for vm in vms for run in vm.runs), "")
    say("emulated hours", sum((run.terminated or at) - run.running for vm in vms for run in vm.runs) / 3600, "VM hours")
    say("bill", ours, "dollars")
    say("reckoned", theirs, "dollars")
    say("difference in all", ours - theirs, "dollars")
    say("difference in all", 100 * (ours - theirs) / theirs, "%", "1")
    say(f"largest difference of a VM in dollars, {worst.vm}", worst.dollars, "dollars")
    say(f"largest difference of a VM in its cost, {furthest.vm}", 100 * furthest.share, "%")
    unpaid = [each for each in compared if each.ours and not each.reckoned]
    say("VMs on the bill that Google gives for nothing", len(unpaid), "", "0")
    older = reckon(vms, at, replace(prices, uptime_ends="TERMINATED"))
    until_gone = sum(each.total for each in older.values())
    say("reckoned until VMs were gone, by Google's older page", until_gone, "dollars")
    rest = sum(reckoned.values(), Charges())
    say("of what was reckoned, disks", rest.disks, "dollars")
    say("of what was reckoned, external addresses", rest.address, "dollars")
    for each in compared:
        print(f"  {each.vm:12} {each.ours:10.4f} {each.reckoned:10.4f} {each.dollars:+10.4f}")


def main() -> None:
    """Live the day and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=4.0, help="an emulated day is four (the default)")
    parser.add_argument("--quick", action="store_true", help="three emulated hours in half a minute")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    minutes = 0.5 if arguments.quick else arguments.minutes
    with own_home(), emulator.hold():
        url = emulator.ensure()
        with Observer(url) as observer:
            cluster = client.declare(Declaration(SPEC, name="day", max_hours=2000, max_cost=None, idle=1e7))
            cluster.wait(90)
            happened = live(cluster, minutes, random.Random(arguments.seed))
            attempt(lambda: cluster.weather(revocations="none", stockout="none", api_errors=0.0))
            cluster.delete()
            observer.look()
        print(", ".join(f"{name} {count}" for name, count in sorted(happened.items())))
        show(cluster, observer)


if __name__ == "__main__":
    main()
