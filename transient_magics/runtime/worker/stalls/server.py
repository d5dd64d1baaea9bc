"""A parameter server on the worker's own VM, for S1: TensorFlow's server in a process of its own, and nothing else.

`python -m transient_magics.runtime.worker.stalls.server THREADS ADDRESS ...` serves one task for each address. It ends
when its input does, which is when the worker that started it ends, however that comes about.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from ...tf import placement
from ...tf.graph_mode import run_only, tensorflow


class OwnServer:
    """So many parameter servers in one process, at ports of `address` that are free."""

    def __init__(self, servers: int, address: str, threads: int) -> None:
        self.addresses = [f"{address}:{port}" for port in _free_ports(servers)]
        program = [sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__]
        without_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}  # as the VMs of parameter servers are
        command = [*program, str(threads), *self.addresses]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=without_gpu)

    def close(self) -> None:
        """End it."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()


def serve(threads: int, addresses: Sequence[str]) -> NoReturn:
    """Until the input ends."""
    threading.Thread(target=_watch, daemon=True).start()
    run_only()
    tf = tensorflow()
    servers = [
        tf.train.Server({"ps": [*addresses]}, job_name="ps", task_index=index, config=placement.plain_config(threads))
        for index in range(len(addresses))
    ]
    servers[0].join()
    raise SystemExit


def _watch() -> NoReturn:
    sys.stdin.buffer.read()
    os._exit(0)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2:])
