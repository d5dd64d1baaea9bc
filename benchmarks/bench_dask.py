"""Dask on VMs: what it costs a task to run there, and what revocations cost a computation.

The same empty task, one at a time, on a plain `LocalCluster` of this machine and on a VM's worker by SSH and TLS, in
turns, so that both meet the same machine: the median of what each task takes longer. Then many short tasks, each with a
result of 100 kB, while VMs are revoked one after the other, with a notice of 30 s and without any. Each task writes
into a file of this machine, on which the emulated VMs run, so that what was executed twice is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import own_home, say, say_all

from transient_magics import client
from transient_magics.client import Cluster, Declaration
from transient_magics.journal import events

TASK_SECONDS, RESULT_BYTES = 0.2, 100_000


def nothing(value: int) -> int:
    """A task that computes nothing: what it takes is the way."""
    return value


def work(made: str, number: int) -> bytes:
    """A short task that says on this machine that it was executed."""
    time.sleep(TASK_SECONDS)
    with open(made, "a", encoding="utf-8") as file:
        file.write(f"{number}\n")
    return number.to_bytes(4, "big") + bytes(RESULT_BYTES)


def added(ours: Any, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of a task on a plain local cluster, and on ours, in turns."""
    import distributed

    plain_times: list[float] = []
    own_times: list[float] = []
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as plain,
    ):
        for who in (plain, ours):  # what is first is slower
            who.gather([who.submit(nothing, each, pure=False) for each in range(20)])
        for each in range(rounds):
            for who, times in ((plain, plain_times), (ours, own_times))[:: 1 if each % 2 else -1]:
                began = time.perf_counter()
                who.submit(nothing, each, pure=False).result()
                times.append(1000 * (time.perf_counter() - began))
    return plain_times, own_times


def revoked(cluster: Cluster, dask: Any, tasks: int, times: int) -> tuple[int, int, list[events.DaskLeft]]:
    """Tasks that were lost, executions more than there are tasks, and how workers left, with so many revocations."""
    mark = cluster.state.seq
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "made"
        made.touch()
        futures = dask.map(lambda number: work(str(made), number), range(tasks), pure=False)
        for turn in range(times):
            share = (turn + 1) / (times + 1)
            while len(made.read_text(encoding="utf-8").splitlines()) < share * tasks:
                time.sleep(0.05)
            ready = sorted(vm.name for vm in cluster.state.living if vm.role == "worker" and vm.state == "ready")
            if ready:
                cluster.revoke(ready[0])
        results = dask.gather(futures, errors="skip")
        right = sum(int.from_bytes(each[:4], "big") in range(tasks) for each in results)
        done = len(made.read_text(encoding="utf-8").splitlines())
        time.sleep(3.0)  # until the last of what VMs tell is here
    left = [each for each in cluster.events("dask") if each.seq > mark and isinstance(each, events.DaskLeft)]
    return tasks - right, done - tasks, left


def main() -> None:
    """Print what a task costs more, and what revocations cost, with and without a notice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few tasks and revocations")
    parser.add_argument("--tasks", type=int, help="tasks while VMs are revoked (10000, quick 120)")
    given = parser.parse_args()
    tasks = given.tasks or (120 if given.quick else 10_000)
    with own_home(), contextlib.ExitStack() as stack:
        cluster = client.declare(Declaration("cpux3", name="dask"))
        cluster.wait(300)
        dask = stack.enter_context(cluster.dask(threads=1)).client
        dask.wait_for_workers(3, timeout=300)
        plain, own = added(dask, 40 if given.quick else 500)
        say_all("a task on a local cluster", plain, "ms")
        say_all("a task on a VM", own, "ms")
        more = [theirs - mine for mine, theirs in zip(plain, own, strict=True)]
        say("added for each task, median", statistics.median(more), "ms", "<= 10", more=f"n = {len(more)}")
        for name, notice in (("notice", "30s"), ("none", "0s")):
            cluster.weather(notice=notice)
            dask.wait_for_workers(3, timeout=300)
            lost, again, left = revoked(cluster, dask, tasks, 2 if given.quick else 10)
            say(f"{name}: tasks lost", lost, "", "0", more=f"of {tasks:,}")
            say(f"{name}: executed twice", again, "")
            say(f"{name}: results moved", sum(each.moved_bytes for each in left) / 1e6, "MB")
            say(f"{name}: longest departure", max((each.seconds for each in left), default=0.0), "s", "<= 22")


if __name__ == "__main__":
    main()
