"""A cluster in the worst weather: revocations, sold-out zones, a failing API, killed controllers and emulators.

It goes on for `--minutes` of this machine's time, an hour passing in each second of it for the cloud; then the cluster
is deleted, and what is left and what was forgotten are looked at from outside. Its bill is only told: bench_bill.py
compares it with what an observer reckons.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from _common import own_home, say
from _guard import of_home

from transient_magics import client, emulator, places
from transient_magics.client import Cluster, Declaration
from transient_magics.errors import TransientError
from transient_magics.journal import bill, events, read

PROJECT = "compute/v1/projects/emulated-project"
SPEC = "k80x3+p100@us-central1-c"


def processes(*marks: str) -> list[int]:
    """Processes of this benchmark whose command line holds all the marks, without the one that tidies up after it."""
    found = []
    for number in of_home(places.home()):
        try:
            line = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if "_guard.py" not in line and all(mark in line for mark in marks):
            found.append(number)
    return found


def storm(cluster: Cluster, minutes: float, chance: random.Random) -> dict[str, int]:
    """Bad weather and killed processes, for so long; returns how often what was killed.

    Time is compressed, but notices stay half a minute, so that VMs under notice are met by all the rest.
    """
    cluster.weather(hours_per_minute=60, revocations="published", api_errors=0.05, creation_preemptions=0.05, seed=1)
    killed = {"controller": 0, "emulator": 0}
    end = time.monotonic() + 60 * minutes
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, chance.uniform(3, 12)))
        match chance.choice(["controller", "emulator", "stockout", "fair", "revoke"]):
            case "controller":
                killed["controller"] += kill(chance, "transient_magics.controller")
            case "emulator":
                killed["emulator"] += kill(chance, "transient_emulator", "--inside")
            case "stockout":
                zone = chance.choice(["us-west1-b:k80", "us-central1-c:p100", "us-west1-b"])
                attempt(lambda zone=zone: cluster.weather(stockout=[f"{zone},for=20s"]))
            case "revoke":
                ready = [vm.name for vm in cluster.state.living if vm.role == "worker" and vm.state == "ready"]
                if ready:
                    attempt(partial(cluster.revoke, chance.choice(ready)))
            case _:
                pass
    return killed


def kill(chance: random.Random, *marks: str) -> int:
    """kill -9; they are started again by whoever needs them."""
    found = processes(*marks)
    if found:
        os.kill(chance.choice(found), signal.SIGKILL)
    return len(found[:1])


def attempt(do: Any) -> None:
    """A wish that may meet a killed process; the storm goes on either way."""
    try:
        do()
    except TransientError as error:
        print(f"  ({error})", flush=True)


def left_behind(url: str) -> int:
    """VMs, disks, addresses and rules of ours that the emulator still has."""
    count = 0
    for scope in ("instances", "disks", "addresses"):
        with urllib.request.urlopen(f"{url}/{PROJECT}/aggregated/{scope}") as answer:
            count += sum(len(each.get(scope, [])) for each in json.load(answer)["items"].values())
    with urllib.request.urlopen(f"{url}/{PROJECT}/global/firewalls") as answer:
        return count + sum(rule["name"].startswith("transient-magics") for rule in json.load(answer)["items"])


def main() -> None:
    """Print what went on and what is left of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--quick", action="store_true", help="two minutes")
    arguments = parser.parse_args()
    minutes = 2.0 if arguments.quick else arguments.minutes
    with own_home():
        declaration = Declaration(SPEC, name="chaos", max_hours=2800, max_cost=None, idle=1e7)
        cluster = client.declare(declaration)
        cluster.wait(90)
        killed = storm(cluster, minutes, random.Random(1))
        attempt(lambda: cluster.weather(reset=True))
        cluster.follow(lambda state: len([vm for vm in state.living if vm.state == "ready"]) >= 5, 120)
        whole = sum(vm.state == "ready" for vm in cluster.state.living)
        url = emulator.ensure()
        cluster.delete()
        left = left_behind(url)
        history = read(cluster.directory / "journal.jsonl")
        state = cluster.state
        say("minutes of storm", minutes, "min")
        say("VMs asked for", len(state.vms), "")
        say("revocations", state.revocations, "")
        say("refusals", sum(isinstance(each, events.VmRefused) for each in history), "")
        say("controllers killed", killed["controller"], "")
        say("emulators killed", killed["emulator"], "")
        say("VMs ready after it, of 5 declared", whole, "", "5")
        say("VMs, disks, addresses, rules left after deletion", left, "", "0")
        missing = len(set(range(1, len(history) + 1)) - {each.seq for each in history})
        say("events missing in the journal", missing, "", "0")
        say("bill", bill(state, time.time()).total, "dollars")
        for _ in range(60):  # an emulator that nobody needs stays for some seconds
            if not (left_over := processes()):
                break
            time.sleep(0.5)
        say("processes left", len(left_over), "", "0")


if __name__ == "__main__":
    main()
