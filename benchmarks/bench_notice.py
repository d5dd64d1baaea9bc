"""From the preemption notice (the metadata flips) to the event in the notebook's process: idle, and with busy cores."""

from __future__ import annotations

import argparse
import queue
import time

from _common import all_in, own_home, quantile, say, train

from transient_magics import client
from transient_magics.client import Cluster, Declaration
from transient_magics.journal import ClusterState, Event, events


def delays(cluster: Cluster, revocations: int, *, training: bool, workers: int) -> list[float]:
    """Milliseconds from the request that flips the metadata to the event seen here; each worker lost is replaced."""
    seen: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()

    def watch(_: ClusterState, new: list[Event]) -> None:
        for event in new:
            if isinstance(event, events.VmPreemptionNotice):
                seen.put((event.vm, time.perf_counter()))

    end = client.follower().subscribe(cluster.name, watch)
    time.sleep(1)
    while not seen.empty():
        seen.get()
    found = []
    for _ in range(revocations):
        ready = [vm.name for vm in cluster.state.living if vm.role == "worker" and vm.state == "ready"]
        began = time.perf_counter()
        cluster.revoke(ready[0])
        _, at = seen.get(timeout=30)
        found.append(1000 * (at - began))
        cluster.follow(
            lambda state: sum(vm.role == "worker" and vm.state == "ready" for vm in state.living) >= workers, 60
        )
        if training:
            all_in(cluster, workers)
    end()
    return found


def main() -> None:
    """Print medians and the 99th percentile in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few revocations")
    quick = parser.parse_args().quick
    with own_home():
        cluster = client.declare(Declaration("cpux3", name="idle", max_workers=6))
        cluster.wait(120)
        idle = delays(cluster, 8 if quick else 30, training=False, workers=3)
    say("notice to event, idle: median", quantile(idle, 0.5), "ms", "< 50")
    say("notice to event, idle: longest", max(idle), "ms")
    with own_home():
        cluster, _ = train(3)
        busy = delays(cluster, 6 if quick else 20, training=True, workers=3)
    say("notice to event, both cores busy: median", quantile(busy, 0.5), "ms", "< 150")
    say("notice to event, both cores busy: 99th percentile", quantile(busy, 0.99), "ms", "< 400")


if __name__ == "__main__":
    main()
