"""Training with agent, metrics and journal on, against a bare between-graph TensorFlow script with the same model.

Both train the digits with one worker and one parameter server on this machine: ours through the emulator, the bare one
as two plain processes in a network namespace, with the classic `tf.train.Server` and no code of ours but the graph's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from _common import CELL, own_home, say, train

from transient_magics.journal import metrics

SKIPPED = 100


def ours(steps: int) -> float:
    """Steps per second of the whole system."""
    with own_home():
        cluster, run = train(1, steps=steps)
        cluster.follow(lambda state: state.runs["run-1"].over, 300)
        rows = [row for row in metrics.read(run.directory / "metrics.jsonl") if row["step"] > SKIPPED]
    return (rows[-1]["step"] - rows[0]["step"]) / ((rows[-1]["time"] - rows[0]["time"]) / 1e9)


def bare(steps: int) -> float:
    """Steps per second of the bare script."""
    with own_home() as home:
        folder = home / "run-1"
        folder.mkdir()
        (folder / "cell.py").write_text(CELL)
        declared = {
            "name": "run-1", "model": "resnet", "hparams_set": "resnet_digits", "problem": "image_digits",
            "train_steps": steps, "token": "",
        }  # fmt: skip
        (folder / "run.json").write_text(json.dumps(declared))
        script = (
            f"ip link set lo up; {sys.executable} {__file__} --bare ps {folder} & server=$!; "
            f"{sys.executable} {__file__} --bare worker {folder} --steps {steps}; kill $server"
        )
        ended = subprocess.run(["unshare", "-Urn", "sh", "-c", script], capture_output=True, text=True, check=False)
    line = next(line for line in ended.stdout.splitlines() if line.startswith("RATE"))
    return float(line.split()[1])


def bare_process(role: str, path: Path, steps: int) -> None:
    """The bare script: one role of a declared cluster."""
    from transient_magics.runtime.folder import RunFolder, RunSpec
    from transient_magics.runtime.t2t import bridges, data, graph, registry

    tf = bridges.cross()
    addresses = {"ps": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223"]}
    server = tf.train.Server(addresses, job_name=role, task_index=0)
    if role == "ps":
        server.join()
    folder = RunFolder(path)
    spec = RunSpec.from_dict(json.loads((path / "run.json").read_text()))
    with bridges.autograph_off():
        definition = registry.define(folder, spec, str(path / "data"))
        data.generate(definition, str(path / "data"), str(path / "tmp"))
        with tf.Graph().as_default():
            graph.prepare(definition)
            with tf.device("/job:worker/task:0/cpu:0"):
                pipeline = data.training_pipeline(definition, str(path / "data"), 0)
                batches = pipeline.dataset.batch(int(definition.hparams.batch_size)).prefetch(4)
                iterator = tf.data.make_initializable_iterator(batches)
                from tensor2tensor.utils import data_reader

                features = data_reader.standardize_shapes(dict(iterator.get_next()))
            with tf.device(tf.train.replica_device_setter(cluster=addresses, worker_device="/job:worker/task:0")):
                built = graph.training_graph(definition, features)
            with tf.Session(server.target) as session:
                session.run([tf.global_variables_initializer(), iterator.initializer])
                began = 0.0
                for step in range(steps):
                    if step == SKIPPED:
                        began = time.perf_counter()
                    session.run([built.loss, built.step], {built.divisor: 1.0})
                print("RATE", (steps - SKIPPED) / (time.perf_counter() - began), flush=True)


def main() -> None:
    """Print steps per second and their ratio, the two measured in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps, one round")
    parser.add_argument("--bare", nargs=2, metavar=("ROLE", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=1000, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        bare_process(arguments.bare[0], Path(arguments.bare[1]), arguments.steps)
        return
    steps, rounds = (800, 1) if arguments.quick else (2500, 2)
    pairs = [(bare(steps), ours(steps)) for _ in range(rounds)]
    theirs, whole = (max(column) for column in zip(*pairs, strict=True))
    say("bare between-graph script", theirs, "steps/s")
    say("with agent, metrics, journal", whole, "steps/s")
    say("ratio", whole / theirs, "", ">= 0.97")


if __name__ == "__main__":
    main()
