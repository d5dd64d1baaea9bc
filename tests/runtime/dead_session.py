"""A parameter server and two workers in one process; the sessions of one worker are released. Prints what came out.

A program of its own, because TensorFlow is not imported into the process of the tests, and listens on every interface.
"""

from __future__ import annotations

import json
from typing import Any

from tests.runtime.machine_room import free_ports
from transient_magics.runtime.parameter_server.variables import release
from transient_magics.runtime.tf import placement
from transient_magics.runtime.tf.graph_mode import tensorflow


class Worker:
    """A worker as worker_session makes it, with a counter on the parameter server for a model."""

    def __init__(self, tf: Any, server: str, number: int) -> None:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        self._server = tf.train.Server({"boot": [address]}, job_name="boot", task_index=0)
        self._config = placement.worker_config([server], number, address, 1)
        self._graph = tf.Graph()
        with self._graph.as_default(), placement.placed(placement.worker_device(number), 1, 1):
            counter = tf.get_variable("counter", initializer=0, use_resource=True)
            self._start, self._step = counter.initializer, counter.assign_add(1).op
            with tf.control_dependencies([self._step]):
                self._after = counter.read_value()
        self.open = lambda: tf.Session(self._server.target, graph=self._graph, config=self._config)
        self.session = self.open()

    def start(self) -> None:
        self.session.run(self._start)

    def step(self) -> int:
        return int(self.session.run(self._after))


def outcome(worker: Worker) -> int | str:
    """The counter after a step, or that the session is lost (TensorFlow says now "aborted", now "cancelled")."""
    try:
        return worker.step()
    except placement.transient_errors():
        return "lost"


def main() -> None:
    tf = tensorflow()
    server = f"127.0.0.1:{free_ports(1)[0]}"
    serving = tf.train.Server({"ps": [server]}, job_name="ps", task_index=0)
    dead, other = Worker(tf, server, 0), Worker(tf, server, 130)
    dead.start()
    found: dict[str, Any] = {"before": [outcome(dead), outcome(other)]}
    first, dead.session = dead.session, dead.open()  # as if it had lost the first one
    found["before"].append(outcome(dead))
    for _ in range(2):  # nothing is left to release the second time
        release(server, 0)
    found["released"] = [outcome(dead), outcome(other)]
    dead.session = first
    found["released"].append(outcome(dead))
    dead.session = dead.open()
    found["it lives after all"] = [outcome(dead), outcome(other)]
    try:
        release(f"127.0.0.1:{free_ports(1)[0]}", 0)
    except ConnectionError as error:
        found["nobody there"] = str(error)
    release(server, 0)
    found["released again"] = [outcome(dead), outcome(other)]
    del serving
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
