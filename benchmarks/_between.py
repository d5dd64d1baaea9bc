"""One trial of `bench_sweep.py` as a bare between-graph script: `python _between.py FOLDER PORT`.

Two processes of the classic `tf.train.Server`: this one is the worker, and starts the parameter server. FOLDER holds
the trial's `run.json` and `cell.py`; of our code it has the graphs' only. It prints the accuracy on the cell's held-out
digits, from the variables that the parameter server holds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any


def main(folder: Path, port: int, role: str) -> None:
    """Be this task."""
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.training.define import define, import_tensorflow
    from transient_magics.runtime.training.graph.training import training_graph

    spec = RunFolder(folder).spec()
    tf = import_tensorflow(spec)
    addresses = {"ps": [f"127.0.0.1:{port}"], "worker": [f"127.0.0.1:{port + 1}"]}
    server = tf.train.Server(addresses, job_name=role, task_index=0)
    if role == "ps":
        server.join()
    trainable = define(RunFolder(folder), spec, str(folder))
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


if __name__ == "__main__":
    _, given, where, *role = sys.argv
    if role:
        main(Path(given), int(where), *role)
    else:
        there = subprocess.Popen([sys.executable, __file__, given, where, "ps"])
        try:
            main(Path(given), int(where), "worker")
        finally:
            there.kill()
