"""The peer: TensorFlow 2's own ParameterServerStrategy with its ClusterCoordinator.

Every process of it is this file, started with its role. The coordinator writes the number of applied steps into a
file, so that others can look at any moment. A worker that was killed may be started again at the same address, which
is what the coordinator waits for.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _guard import elsewhere


@dataclass
class Coordinator:
    """A parameter server, workers and a coordinator as processes in a network namespace of their own."""

    folder: Path
    workers: int
    network: str
    """Of _network.py."""
    pace: float = 0.0
    threads: int = 0
    """Of one operation; 0 for TensorFlow's own choice."""
    _room: subprocess.Popen[bytes] | None = None
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        """Start all; returns once steps are being made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._counter.write_bytes(bytes(8))
        self._room = subprocess.Popen(
            ["unshare", "-Urn", "sh", "-c", "ip link set lo up; echo ready; exec sleep 86400"], stdout=subprocess.PIPE
        )
        assert self._room.stdout
        self._room.stdout.readline()
        for name in ("ps-0", *(f"worker-{number}" for number in range(self.workers)), "chief-0"):
            self.start_process(name)
        deadline = time.monotonic() + 180
        while self.steps() < 20:
            if time.monotonic() > deadline or self._processes["chief-0"].poll() is not None:
                self.end()
                raise SystemExit((self.folder / "chief-0.log").read_text(encoding="utf-8")[-2000:])
            time.sleep(0.5)

    def start_process(self, name: str) -> None:
        """Start (again) the process of one task."""
        assert self._room
        job, index = name.split("-")
        given = [job, index, self.workers, self.network, self.pace, self._counter]
        enter = ["nsenter", "-t", str(self._room.pid), "-U", "-n", "--preserve-credentials"]
        environment = {**elsewhere(), "SIDE": str(self.folder), "TF_CPP_MIN_LOG_LEVEL": "2"}
        if self.threads:
            environment["TF_NUM_INTRAOP_THREADS"] = str(self.threads)
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*enter, sys.executable, __file__, *map(str, given)], stdout=log, stderr=log, env=environment
            )

    def kill(self, name: str) -> None:
        """kill -9 of one task."""
        self._processes[name].kill()
        self._processes[name].wait()

    def steps(self) -> int:
        """Steps applied so far."""
        return struct.unpack("q", self._counter.read_bytes())[0]

    def end(self) -> None:
        """End every process."""
        for process in [*self._processes.values(), *filter(None, [self._room])]:
            process.kill()
            process.wait()

    @property
    def _counter(self) -> Path:
        return self.folder / "count"


def serve(job: str, index: int, workers: int, network: str, pace: float, counter: Path) -> None:
    """Be one task of the peer's cluster, for ever."""
    import _network
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops.testing import sleep

    jobs = {"ps": ["127.0.0.1:2300"], "worker": [f"127.0.0.1:{2301 + number}" for number in range(workers)]}
    cluster = tf.train.ClusterSpec({**jobs, "chief": ["127.0.0.1:2299"]})
    if job != "chief":
        tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc").join()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    made: dict[str, Any] = {}

    def make(name: str, shape: list[int]) -> Any:
        return made.setdefault(name, tf.Variable(tf.random.normal(shape, stddev=0.05)))

    with strategy.scope():
        _network.logits(network, next(iter(_network.examples(network).batch(1)))[0], make)
        applied = tf.Variable(0, dtype=tf.int64)

    def examples() -> Any:
        data = _network.examples(network).repeat().batch(_network.BATCH)
        return data.apply(sleep(int(pace * 1e6))) if pace else data.prefetch(4)

    def replica(batch: Any) -> None:
        images, labels = batch
        with tf.GradientTape() as tape:
            loss = _network.loss(_network.logits(network, images, lambda name, _: made[name]), labels)
        variables = list(made.values())
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * gradient)
        applied.assign_add(1)

    @tf.function
    def step(iterator: Any) -> None:
        strategy.run(replica, args=(next(iterator),))

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(tf.function(examples)))

    def tell() -> None:
        with counter.open("r+b", buffering=0) as file:
            while True:
                os.pwrite(file.fileno(), struct.pack("q", int(applied.read_value())), 0)
                time.sleep(0.5)

    threading.Thread(target=tell, daemon=True).start()
    while True:
        coordinator.schedule(step, args=(iterator,))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = {"job": str, "index": int, "workers": int, "network": str, "pace": float, "counter": Path}
    for name, kind in kinds.items():
        parser.add_argument(name, type=kind)
    serve(**vars(parser.parse_args()))
