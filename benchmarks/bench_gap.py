"""Faults beside which training goes on: what one that hits a worker costs the others, and a dead parameter server all.

One of three paced workers is killed, frozen, or cut off from the network; the others' step times meanwhile are set
against those of all in the undisturbed time before. Then the parameter server is killed: seconds until every worker
steps again, and steps lost.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from _black_hole import black_hole
from _common import all_in, own_home, process, quantile, rows_between, say, say_all, start

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import events

WORKERS, HURT = 3, "worker-1"
CHECKPOINT_STEPS = 300
LASTING = 62
"""Seconds that a parameter server runs before it is killed: one that ends again and again within a minute is started
later each time, and at last not at all.
"""

Fault = Callable[[Cluster], AbstractContextManager[None]]


def step_times(run: Run, since: float, until: float, without: str = "") -> list[float]:
    """Seconds of each step. Of a second's steps the longest is known; the others count as equally long."""
    found: list[float] = []
    for row in rows_between(run, since, until):
        if row["worker"] != without:
            longest, others = row["gap_seconds"], row["steps"] - 1
            rest = row["compute_seconds"] + row["wait_seconds"] - longest
            found += [longest, *[min(longest, max(0.0, rest) / others)] * others] if others else [longest]
    return found


@contextlib.contextmanager
def killed(cluster: Cluster) -> Iterator[None]:
    """The worker's process gets kill -9, once; its agent starts another."""
    os.kill(process(cluster, HURT, "worker"), signal.SIGKILL)
    yield


@contextlib.contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    """The worker's process stands still."""
    number = process(cluster, HURT, "worker")
    os.kill(number, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGCONT)


def cut_off(cluster: Cluster) -> AbstractContextManager[None]:
    """The worker's VM has a black hole for a network."""
    return black_hole(cluster, HURT, "worker")


def hurt_a_worker(
    cluster: Cluster, run: Run, name: str, fault: Fault, usual: list[float], quiet: float, watch: float
) -> None:
    """Print the others' 99th percentile; `usual` are the undisturbed times up to now, and grow by `quiet` seconds."""
    began = time.time()
    time.sleep(quiet)
    usual += step_times(run, began, time.time())
    at = time.time()
    try:
        with fault(cluster):
            time.sleep(watch)
            ended = time.time()
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        print(f"one worker {name}: cannot be done on this machine ({error})", flush=True)
        return
    others = step_times(run, at, ended, without=HURT)
    before, now = quantile(usual, 0.99), quantile(others, 0.99)
    say("undisturbed: 99th percentile of the step time", before, "s")
    say(f"one worker {name}: the others' 99th percentile", now, "s")
    say(f"one worker {name}: ratio to the undisturbed", now / before, "", "<= 1.2")
    say(f"one worker {name}: the others' longest step", max(others), "s")
    all_in(cluster, WORKERS)
    gone, back = (
        next(event.at for event in cluster.events(kind) if event.at > at) for kind in ("worker.left", "worker.joined")
    )
    say(f"one worker {name}: counted as gone after", gone - at, "s")
    healed, since = (at, "its death") if fault is killed else (ended, "its recovery")
    say(f"one worker {name}: trains again, seconds from {since}", back - healed, "s")
    time.sleep(5)


@dataclass(frozen=True)
class Restart:
    """Of the parameter server: seconds from its death until it serves and until every worker steps; steps."""

    serves: float
    all_step: float
    unsaved: int
    lost: int


def kill_the_server(cluster: Cluster, run: Run) -> Restart:
    """Kill it some seconds after a checkpoint, and wait until every worker steps again."""
    time.sleep(max(0.0, cluster.events("train.started")[-1].at + LASTING - time.time()))
    seen = len(cluster.events("train.checkpoint"))
    cluster.follow(lambda _: len(cluster.events("train.checkpoint")) > seen, 60)
    time.sleep(5)
    starts, at = len(cluster.events("train.started")), time.time()
    os.kill(process(cluster, "ps-0", "parameter_server"), signal.SIGKILL)
    cluster.follow(lambda _: len(cluster.events("train.started")) > starts, 120)
    started = cluster.events("train.started")[-1]
    assert isinstance(started, events.TrainStarted)
    first: dict[str, float] = {}
    while len(first) < WORKERS:
        if time.time() > at + 120:
            raise SystemExit(f"of {WORKERS} workers {len(first)} step again")
        time.sleep(0.2)
        for row in rows_between(run, started.at, time.time()):
            first.setdefault(row["worker"], row["time"] / 1e9)
    made = max(row["step"] for row in rows_between(run, 0, at))
    saved = [event.step for event in cluster.events("train.checkpoint")
             if isinstance(event, events.TrainCheckpoint) and event.at < at][-1]  # fmt: skip
    return Restart(started.at - at, max(first.values()) - at, made - saved, made - started.step)


def kill_the_server_often(cluster: Cluster, run: Run, times: int) -> None:
    """Print how long it takes until every worker steps again, and what is lost."""
    restarts = [kill_the_server(cluster, run) for _ in range(times)]
    name = "parameter server killed:"
    say_all(f"{name} it serves again after", [each.serves for each in restarts], "s")
    say_all(f"{name} all workers step again after", [each.all_step for each in restarts], "s", "< 3")
    unsaved = max(each.unsaved for each in restarts)
    say(f"{name} steps since the last checkpoint, at most", unsaved, "", f"<= {CHECKPOINT_STEPS} + some")
    say(f"{name} steps lost, at most", max(each.lost for each in restarts), "", "the same")


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter observation")
    quiet, watch, kills = (12, 12, 3) if parser.parse_args().quick else (40, 20, 8)
    with own_home():
        cluster = client.declare(Declaration(f"k80x{WORKERS}", name="bench", max_workers=4 * WORKERS))
        run = start(cluster, pace_seconds=0.15, checkpoint_steps=CHECKPOINT_STEPS, checkpoint_seconds=None)
        all_in(cluster, WORKERS)
        time.sleep(15)
        usual: list[float] = []
        for name, fault in (("killed", killed), ("frozen", frozen), ("cut off", cut_off)):
            hurt_a_worker(cluster, run, name, fault, usual, quiet, watch)
        kill_the_server_often(cluster, run, kills)


if __name__ == "__main__":
    main()
