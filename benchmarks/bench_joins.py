"""Two hundred workers come and are killed: what they leave in the parameter server, and whether it still is fast."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections import Counter
from pathlib import Path

from _common import all_in, own_home, process, say, train

from transient_magics.client import Cluster, Run
from transient_magics.journal import ClusterState, metrics

WORKERS = 3
_STARTS = 5
"""Times that a VM's agent starts its worker again before the VM is revoked; after seven in a minute it would not."""


def held(pid: int) -> dict[str, float]:
    """Memory in MiB, threads and open files of a process."""
    status = dict(
        line.split(":", 1) for line in (Path("/proc") / str(pid) / "status").read_text(encoding="utf-8").splitlines()
    )
    memory = float(status["VmRSS"].split()[0]) / 1024
    return {"memory": memory, "threads": float(status["Threads"]), "files": float(len(os.listdir(f"/proc/{pid}/fd")))}


def rate(run: Run, seconds: float) -> float:
    """Steps per second of all workers over the next `seconds`."""
    began = time.time()
    time.sleep(seconds + 1)
    rows = metrics.read(run.directory / "metrics.jsonl")
    return sum(row["steps"] for row in rows if began <= row["time"] / 1e9 <= began + seconds) / seconds


def kill(cluster: Cluster, worker: str, starts: Counter[str]) -> None:
    """End a worker without a word, or, when its VM has seen that often enough, the VM."""
    starts[worker] += 1
    if starts[worker] > _STARTS:
        cluster.revoke(worker)
        return
    with contextlib.suppress(ProcessLookupError, LookupError):
        os.kill(process(cluster, worker, "worker"), signal.SIGKILL)


def main() -> None:
    """Print what the parameter server held before and after, and per join."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 instead of 200")
    joins = 10 if parser.parse_args().quick else 200
    with own_home():
        cluster, run = train(WORKERS, pace=0.25)
        server, starts = process(cluster, "ps-0", "parameter_server"), Counter[str]()
        speed, first = rate(run, 20), held(server)
        seen = len(cluster.events("worker.joined"))
        while (joined := len(cluster.events("worker.joined")) - seen) < joins:
            state = cluster.state.active_run
            assert state
            oldest = min(state.workers.values(), key=lambda worker: worker.number, default=None)
            if oldest and len(state.workers) == WORKERS:
                kill(cluster, oldest.name, starts)
                now = held(server)
                print(
                    f"{joined:4} joins: " + ", ".join(f"{name} {value:.0f}" for name, value in now.items()), flush=True
                )
                cluster.follow(lambda state, gone=oldest.number: gone not in _numbers(state), 60)
            all_in(cluster, WORKERS)
        assert process(cluster, "ps-0", "parameter_server") == server
        last = held(server)
        for name, unit in (("memory", "MiB"), ("threads", ""), ("files", "")):
            say(f"{name} of the parameter server, before", first[name], unit)
            say(f"{name} of the parameter server, after {joined} joins", last[name], unit)
        say("memory per join", (last["memory"] - first["memory"]) / joined, "MiB")
        say("step rate at the end against the start", rate(run, 20) / speed, "", ">= 0.95")


def _numbers(state: ClusterState) -> set[int]:
    return {worker.number for worker in state.active_run.workers.values()} if state.active_run else set()


if __name__ == "__main__":
    main()
