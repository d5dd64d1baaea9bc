"""A worker's way in: process start to first applied gradient; and all-ready against ipyparallel's engines."""

from __future__ import annotations

import argparse
import re
import time

import ipyparallel
from _common import own_home, process, say, train

from transient_magics import client
from transient_magics.client import Declaration


def engines(count: int) -> float:
    """Seconds until `Cluster.start_and_connect` has that many engines ready."""
    began = time.perf_counter()
    cluster = ipyparallel.Cluster(n=count, log_level=40, engine_timeout=300)
    client_ = cluster.start_and_connect_sync()
    client_.wait_for_engines(count, interactive=False)
    took = time.perf_counter() - began
    cluster.stop_cluster_sync()
    return took


def cluster_ready(count: int) -> tuple[float, float]:
    """Seconds until a declared cluster of that many workers is ready, and of these from the VMs' boot on."""
    began = time.perf_counter()
    cluster = client.declare(Declaration(f"cpux{count}"))
    state = cluster.wait(120)
    took = time.perf_counter() - began
    first = min(vm.requested_at for vm in state.vms.values())
    cluster.delete()
    return took, state.ready_at - first


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 workers only")
    counts = [4] if parser.parse_args().quick else [4, 8]
    with own_home():
        for count in counts:
            theirs, (ours, booting) = engines(count), cluster_ready(count)
            say(f"ipyparallel, {count} engines ready", theirs, "s")
            say(f"%transient_cluster, {count} workers and a server ready", ours, "s")
            say("  of these, boot and SSH (emulated boot: 1.5 s)", booting, "s")
            say(f"ratio per worker, {count}", ours / theirs, "", "<= 1")
        cluster, run = train(2, pace=0.25)
        import os
        import signal

        os.kill(process(cluster, "worker-1", "worker"), signal.SIGKILL)
        time.sleep(2)
        cluster.follow(lambda state: bool(state.active_run and "worker-1" in state.active_run.workers), 120)
        time.sleep(3)
        for line in re.findall(r"first gradient after .*", run.logs("worker-1"))[-1:]:
            print(f"worker joining a paced run: {line}")


if __name__ == "__main__":
    main()
