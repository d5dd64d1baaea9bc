"""Other ways to train, which programs measure beside ours; each is a process of this file, started with its kind.

`python _peers.py task FOLDER PLACES ROLE INDEX [IMPORTS]`: the bare between-graph script, one task of a declared
cluster until it is killed: the classic `tf.train.Server`; of our code it has the graph's. It starts as fast as ours
does, or with what IMPORTS names, as a script would that a user writes.

`python _peers.py first-step FOLDER IMPORTS`: a plain script up to its first gradient; it prints when that was applied.
It builds its graph with AutoGraph on, as TensorFlow does by default, and has its variables on a parameter server in the
same process. IMPORTS is what it imports of Tensor2Tensor's models: `package`, what a user's `from tensor2tensor.models
import resnet` brings, for the package names 43 modules; or `model`, the one module that is used, as if the package were
empty.

`python _peers.py keras-trial CELL STEPS LR`: one trial of `bench_study.py`; it trains the cell's model with Keras, all
in one process, and prints the accuracy on the cell's held-out digits.

`python _peers.py bare-trial FOLDER PORT`: such a trial as a bare between-graph script of two processes of the classic
`tf.train.Server`: this one is the worker, and starts the parameter server. FOLDER holds the trial's `run.json` and
`cell.py`; of our code it has the graphs' only. The accuracy is that of the variables on the parameter server.

`python _peers.py strategy JOB INDEX WORKERS NETWORK PACE COUNTER`: TensorFlow 2's ParameterServerStrategy with its
ClusterCoordinator (`Coordinator` starts the processes). The coordinator writes the number of applied steps into the
file COUNTER. A worker that was killed may be started again at the same address, for which the coordinator waits.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
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

PEERS = Path(__file__)
IMPORTS = ("package", "model")


def import_models(imports: str) -> Any:
    """Return TensorFlow's version-1 interface, without anything that makes our workers start faster."""
    from transient_magics.runtime.training.t2t import bridges

    for saving in ("_lazy", "_no_unicode_scans"):
        setattr(bridges, saving, lambda *_: None)
    for around in ("_hidden", "_no_collection"):
        setattr(bridges, around, lambda *_: contextlib.nullcontext())
    bridges.autograph_off = lambda: lambda function: function
    tf = bridges.cross()
    for module in _of_package() if imports == "package" else ():
        with contextlib.suppress(Exception):  # some need packages that nobody has any more
            importlib.import_module(module)
    return tf


def _of_package() -> list[str]:
    """The models that `tensor2tensor.models` imports under TensorFlow 2: those outside of its conditions."""
    (place,) = importlib.import_module("tensor2tensor.models").__path__
    lines = ast.parse((Path(place) / "__init__.py").read_text(encoding="utf-8")).body
    named = [line for line in lines if isinstance(line, ast.ImportFrom) and (line.module or "").endswith("models")]
    named += [line for line in lines if isinstance(line, ast.ImportFrom) and ".models." in (line.module or "")]
    return [f"{line.module}.{each.name}" for line in named for each in line.names]


def first_step(folder: Path, imports: str) -> None:
    """Train one step of the run whose declaration and data are in `folder`, and print when it was applied."""
    tf = import_models(imports)
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.training.graph.step import training_graph
    from transient_magics.runtime.training.loading import load_model

    run = RunFolder(folder)
    trainable = load_model(run, run.spec(), str(run.data))
    addresses = {"ps": ["127.0.0.1:2290"], "worker": ["127.0.0.1:2291"]}
    servers = [tf.train.Server(addresses, job_name=role, task_index=0) for role in addresses]
    with tf.Graph().as_default():
        trainable.prepare()
        with tf.device("/job:worker/task:0/cpu:0"):
            pipeline = trainable.training_pipeline()
            data = pipeline.dataset if pipeline.batched else pipeline.dataset.batch(trainable.batch)
            iterator = tf.data.make_initializable_iterator(data.prefetch(4))
        with tf.device(tf.train.replica_device_setter(cluster=addresses, worker_device="/job:worker/task:0")):
            built = training_graph(trainable, dict(iterator.get_next()))
            begin = tf.global_variables_initializer()
        with tf.Session(servers[1].target) as session:
            session.run(begin)
            session.run(iterator.initializer, pipeline.feeds)
            session.run([built.objective.loss, built.step], {built.divisor: 1.0})
            print(time.time(), flush=True)


def task(folder: Path, places: list[str], role: str, index: int, imports: str = "") -> None:
    """Run one task of a bare script, on port 2222 or above of its place, and count the steps in the folder's file."""
    if imports:
        import_models(imports)
    from transient_magics.protocol.run import RunSpec
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.training.graph.step import training_graph
    from transient_magics.runtime.training.loading import import_tensorflow, load_model

    spec = RunSpec.from_dict(json.loads((folder / "run.json").read_text(encoding="utf-8")))
    tf = import_tensorflow(spec)
    workers = [f"{place}:{2223 + number}" for number, place in enumerate(places[1:])]
    addresses = {"ps": [f"{places[0]}:2222"], "worker": workers}
    filters = ["/job:ps", f"/job:worker/task:{index}"] if role == "worker" else []
    config = tf.ConfigProto(device_filters=filters)  # so that no worker waits for the others
    target = tf.train.Server(addresses, job_name=role, task_index=index, config=config)
    if role == "ps":
        target.join()
    trainable = load_model(RunFolder(folder), spec, str(folder / f"data-{index}"))
    if not trainable.has_records():
        trainable.generate(str(folder / f"data-{index}"), str(folder / f"tmp-{index}"))
    with tf.Graph().as_default():
        trainable.prepare()
        with tf.device(f"/job:worker/task:{index}/cpu:0"):
            pipeline = trainable.training_pipeline()
            batches = pipeline.dataset.batch(trainable.batch).prefetch(4)
            iterator = tf.data.make_initializable_iterator(batches)
        with tf.device(tf.train.replica_device_setter(cluster=addresses, worker_device=f"/job:worker/task:{index}")):
            built = training_graph(trainable, dict(iterator.get_next()))
            missing = tf.report_uninitialized_variables()
            start = tf.global_variables_initializer()
        with (
            tf.Session(target.target, config=config) as session,
            (folder / "count").open("r+b", buffering=0) as counter,
        ):
            session.run(iterator.initializer, pipeline.feeds)
            if index == 0:
                session.run(start)
            while len(session.run(missing)):
                time.sleep(0.2)
            for step in range(10**9):
                due = time.monotonic() + (spec.pace_seconds or 0.0)
                session.run([built.objective.loss, built.step], {built.divisor: 1.0})
                time.sleep(max(0.0, due - time.monotonic()))
                os.pwrite(counter.fileno(), struct.pack("q", step + 1), 8 * index)


def keras_trial(cell: Path, steps: int, rate: float) -> None:
    """Train for so many steps of the cell's mini-batch, all in this process."""
    names: dict[str, Any] = {"lr": rate}
    exec(compile(cell.read_text(encoding="utf-8"), str(cell), "exec"), names)
    import tensorflow as tf

    model, input_fn = names["model"], names["input_fn"]
    records = tf.data.Dataset.from_tensor_slices(input_fn("train")).shuffle(1437, seed=0).repeat().batch(32)
    model.fit(records, steps_per_epoch=steps, epochs=1, verbose=0)
    print(model.evaluate(*input_fn("eval"), verbose=0, return_dict=True)["accuracy"])


def bare_trial(folder: Path, port: int, role: str) -> None:
    """Run one task of the bare script."""
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.training.graph.step import training_graph
    from transient_magics.runtime.training.loading import import_tensorflow, load_model

    spec = RunFolder(folder).spec()
    tf = import_tensorflow(spec)
    addresses = {"ps": [f"127.0.0.1:{port}"], "worker": [f"127.0.0.1:{port + 1}"]}
    server = tf.train.Server(addresses, job_name=role, task_index=0)
    if role == "ps":
        server.join()
    trainable = load_model(RunFolder(folder), spec, str(folder))
    placed = tf.train.replica_device_setter(cluster=addresses, worker_device="/job:worker/task:0")
    with tf.Graph().as_default():
        with tf.device("/job:worker/task:0/cpu:0"):
            pipeline = trainable.training_pipeline()
            batches = pipeline.dataset.batch(trainable.batch).prefetch(4)
            iterator = tf.data.make_initializable_iterator(batches)
        with tf.device(placed):
            built = training_graph(trainable, dict(iterator.get_next()))
            start = tf.global_variables_initializer()
        names = [each.op.name for each in tf.trainable_variables()]
        with tf.Session(server.target) as session:
            session.run([iterator.initializer, start], pipeline.feeds)
            for _ in range(spec.train_steps):
                session.run([built.objective.loss, built.step], {built.divisor: 1.0})
    with tf.Graph().as_default():
        with tf.device("/job:worker/task:0/cpu:0"):
            pipeline = trainable.evaluation_pipeline()
            iterator = tf.data.make_initializable_iterator(pipeline.dataset)
            batch = iterator.get_next()
        with tf.device(placed):
            judged = trainable.evaluation_graph(batch)
        assert names == [each.op.name for each in tf.trainable_variables()], "the trained variables are judged"
        with tf.Session(server.target) as session:
            session.run([iterator.initializer, tf.local_variables_initializer()], pipeline.feeds)
            print(_accuracy(tf, session, judged))


def _accuracy(tf: Any, session: Any, judged: Any) -> float:
    while True:
        try:
            session.run(judged.updates)
        except tf.errors.OutOfRangeError:
            return float(session.run(judged.values["accuracy"]))


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
                [*enter, sys.executable, __file__, "strategy", *map(str, given)],
                stdout=log,
                stderr=log,
                env=environment,
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


def strategy(job: str, index: int, workers: int, network: str, pace: float, counter: Path) -> None:
    """Run one task of the strategy's cluster until it is killed."""
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


def main() -> None:
    """Run the process of this kind."""
    match sys.argv[1:]:
        case ["task", folder, places, role, index, *imports]:
            task(Path(folder), places.split(","), role, int(index), *imports)
        case ["first-step", folder, imports]:
            first_step(Path(folder), imports)
        case ["keras-trial", cell, steps, rate]:
            keras_trial(Path(cell), int(steps), float(rate))
        case ["bare-trial", folder, port]:
            server = subprocess.Popen([sys.executable, __file__, "bare-trial", folder, port, "ps"])
            try:
                bare_trial(Path(folder), int(port), "worker")
            finally:
                server.kill()
        case ["bare-trial", folder, port, "ps"]:
            bare_trial(Path(folder), int(port), "ps")
        case ["strategy", job, index, workers, network, pace, counter]:
            strategy(job, int(index), int(workers), network, float(pace), Path(counter))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
