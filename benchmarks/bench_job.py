"""A job through revocations: seconds of its work that are made twice, and from the revocation to going on elsewhere.

A NumPy script saves at every tenth of its steps, and at SIGTERM; its folder is brought here every so often. Its VM is
revoked again and again, with a notice of 30 s and without any. The script writes each step into a file of this machine,
on which the emulated VMs run, so that what was made and never brought here is counted too. What a script would
lose whose VM takes its files along, and which starts anew, stands beside it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _common import own_home, say, say_all

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Job

STEP_SECONDS = 0.1
SCRIPT = f"""
import os, pathlib, signal, sys, time
import numpy as np

kept, made = pathlib.Path(os.environ["TRANSIENT_KEEP"]), open(os.environ["MADE"], "a")
state = kept / "state.npz"
step = int(np.load(state)["step"]) if state.exists() else 0

def save():
    np.savez(kept / "new.npz", step=step, weights=np.zeros(100_000))
    (kept / "new.npz").replace(state)

def leave(*_):
    save()
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
while True:
    print(os.environ["TRANSIENT_ATTEMPT"], step, time.time(), file=made, flush=True)
    time.sleep({STEP_SECONDS})
    step += 1
    if step % 10 == 0:
        save()
"""


def steps(made: Path) -> dict[int, list[tuple[int, float]]]:
    """By attempt: the steps that were begun, and when."""
    found: dict[int, list[tuple[int, float]]] = {}
    for line in made.read_text(encoding="utf-8").splitlines() if made.exists() else ():
        attempt, step, at = line.split()
        found.setdefault(int(attempt), []).append((int(step), float(at)))
    return found


def revoked(cluster: Cluster, job: Job, made: Path, after: float) -> tuple[float, float, float]:
    """Revoke the job's VM `after` seconds of an attempt: seconds of work lost, seconds until it goes on elsewhere, and
    seconds of work that starting anew would have lost."""
    before = job.state.attempt
    until(lambda: before in steps(made), "the attempt")
    begin = steps(made)[before][0][1]
    time.sleep(max(0.0, begin + after - time.time()))
    [vm] = job.state.vms
    at = time.time()
    cluster.revoke(vm)
    until(lambda: before + 1 in steps(made), "the next attempt")
    found = steps(made)
    last, first = found[before][-1][0], found[before + 1][0]
    return max(0, last - first[0]) * STEP_SECONDS, first[1] - at, last * STEP_SECONDS


def until(reached: Callable[[], object], what: str) -> None:
    """Wait for something that a file tells."""
    deadline = time.monotonic() + 240
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {what} within 240 s")
        time.sleep(0.05)


def story(notice: str, times: int, every: float) -> list[tuple[float, float, float]]:
    """What `revoked` says of so many revocations, each at another moment between two packings."""
    with own_home(), tempfile.TemporaryDirectory() as place:
        made = Path(place) / "made"
        cluster = client.declare(Declaration("cpu", name="job"))
        cluster.wait(120)
        cluster.weather(notice=notice)
        told = {"MADE": str(made)}
        job = client.declare_job(source=SCRIPT, cluster=cluster, keep="kept", keep_seconds=every, environment=told)
        until(lambda: job.name in cluster.state.jobs and cluster.state.jobs[job.name].vms, "the job")
        found = [revoked(cluster, job, made, every * (1 + turn / times) + 2) for turn in range(times)]
        job.stop()
        job.wait(120)
        return found


def main() -> None:
    """Print seconds lost, and until it goes on: each revocation, with and without a notice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few revocations")
    parser.add_argument("--keep-every", type=float, default=10.0, help="seconds between two packings (10)")
    given = parser.parse_args()
    for name, notice, target in (("notice", "30s", "< 1"), ("none", "0s", f"< {given.keep_every + 2:.0f}")):
        found = story(notice, 2 if given.quick else 10, given.keep_every)
        lost, seconds, plain = ([each[column] for each in found] for column in range(3))
        say_all(f"{name}: seconds of work lost", lost, "s")
        say(f"{name}: longest", max(lost), "s", target)
        say_all(f"{name}: lost by starting anew", plain, "s")
        say_all(f"{name}: revocation to going on elsewhere", seconds, "s")


if __name__ == "__main__":
    main()
