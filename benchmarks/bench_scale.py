"""Many emulated VMs, declared to all SSH-ready, beside as many ipyparallel engines and dask workers in the same run.

They take turns. "Ready" is not the same: here SSH and a light agent of a VM (emulated boot included), with
ipyparallel a kernel that runs code, with dask a worker process that is registered.

Dask is no dependency: `pip install distributed` somewhere on PYTHONPATH, or it is left out.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from importlib.util import find_spec

from _common import median, own_home, say, say_all
from _usage import resident
from bench_join import engines

from transient_magics import client, emulator
from transient_magics.client import Declaration


def dask_workers(count: int) -> float:
    """Seconds until a LocalCluster has that many workers, of one thread and without limit of memory, ready."""
    from distributed import Client, LocalCluster

    began = time.perf_counter()
    with (
        LocalCluster(n_workers=count, threads_per_worker=1, memory_limit=0, dashboard_address=None) as cluster,
        Client(cluster) as client_,
    ):
        client_.wait_for_workers(count, timeout=600)
        return time.perf_counter() - began


def main() -> None:
    """Print seconds, memory and requests, and the ratio per worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="32 instead of 128, once")
    quick = parser.parse_args().quick
    count = 32 if quick else 128
    peers = {"ipyparallel engines run code": engines}
    if find_spec("distributed") is None:
        print("dask LocalCluster workers: left out, because distributed is not installed")
    else:
        peers["dask LocalCluster workers registered"] = dask_workers
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(1 if quick else 3):
        ours.append(declared(count))
        for name, start in peers.items():
            theirs[name].append(start(count))
    say_all(f"{count} VMs, declared to all SSH-ready", ours, "s")
    for name, samples in theirs.items():
        say_all(f"{count} {name}", samples, "s")
        say("ratio", median(ours) / median(samples), "", "< 1")


def declared(count: int) -> float:
    """Seconds until that many VMs, of which one is a parameter server's, are ready; prints what else that takes."""
    with own_home():
        began = time.perf_counter()
        cluster = client.declare(Declaration(f"cpux{count - 1}"))
        cluster.wait(300)
        took = time.perf_counter() - began
        with urllib.request.urlopen(f"{emulator.ensure()}/emulator/v1") as answer:
            requests = json.load(answer)["requests"]
        say("requests to the API until all were ready", requests, "")
        say("memory of the emulator", resident("transient_emulator"), "MiB")
        say("memory of the controller", resident("transient_magics.controller"), "MiB")
    return took


if __name__ == "__main__":
    main()
