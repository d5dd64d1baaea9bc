"""The bare between-graph script: one task of a declared cluster, for ever.

`python _bare.py FOLDER PLACES ROLE INDEX [IMPORTS]`: the classic `tf.train.Server`; of our code it has the graph's. It
starts as fast as ours does, or with what `IMPORTS` (of _plain.py) names, as a script would that a user writes.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from pathlib import Path


def main(folder: Path, places: list[str], role: str, index: int, imports: str = "") -> None:
    """Be this task, on port 2222 or above of its place, and count the steps in the folder's file."""
    if imports:
        import _plain

        _plain.import_models(imports)
    from transient_magics.protocol.run import RunSpec
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.training.define import define, import_tensorflow
    from transient_magics.runtime.training.graph.training import training_graph

    spec = RunSpec.from_dict(json.loads((folder / "run.json").read_text(encoding="utf-8")))
    tf = import_tensorflow(spec)
    workers = [f"{place}:{2223 + number}" for number, place in enumerate(places[1:])]
    addresses = {"ps": [f"{places[0]}:2222"], "worker": workers}
    filters = ["/job:ps", f"/job:worker/task:{index}"] if role == "worker" else []
    config = tf.ConfigProto(device_filters=filters)  # so that nobody waits for the other workers
    target = tf.train.Server(addresses, job_name=role, task_index=index, config=config)
    if role == "ps":
        target.join()
    trainable = define(RunFolder(folder), spec, str(folder / f"data-{index}"))
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


if __name__ == "__main__":
    _, given, everywhere, job, number, *more = sys.argv
    main(Path(given), everywhere.split(","), job, int(number), *more)
