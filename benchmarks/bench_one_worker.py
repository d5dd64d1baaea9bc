"""One worker: its variables on a parameter server of another process, or on the worker itself.

The same training graph twice in one worker process, with a session each; turns of a second alternate, so that both see
the same weather. No code of ours but the graph's: what a step costs more because its variables are elsewhere, on a
loopback, which is the fastest network there is. `--megabit N` shapes it.

Then two runs of one worker each, side by side on one emulated cluster: one declared with `--workers 1`, which keeps its
variables itself and hands them over every second, and one that might take more workers and so does not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import all_in, median, own_home, say, say_all, step_rate
from bench_sweep import CELL

from transient_magics import client
from transient_magics.protocol.run import RunSpec

WIDE = CELL.replace("Conv2D(32", "Conv2D(64").replace(
    "layers.Flatten(),", "layers.Flatten(),\n    keras.layers.Dense(512, activation='relu'),"
)
NETWORKS = {"small": CELL, "two million variables": WIDE}
PORT = 2222


def turns(folder: Path, role: str, count: int) -> None:
    """Be this task; the worker prints the steps per second of each turn, elsewhere and here."""
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.training.define import define, import_tensorflow
    from transient_magics.runtime.training.graph.training import training_graph

    spec = RunFolder(folder).spec()
    tf = import_tensorflow(spec)
    addresses = {"ps": [f"127.0.0.1:{PORT}"], "worker": [f"127.0.0.1:{PORT + 1}"]}
    server = tf.train.Server(addresses, job_name=role, task_index=0)
    if role == "ps":
        server.join()
    trainable = define(RunFolder(folder), spec, str(folder))
    worker = "/job:worker/task:0"
    places = [tf.train.replica_device_setter(cluster=addresses, worker_device=worker), f"{worker}/cpu:0"]
    sessions: list[tuple[Any, Any, Any]] = []
    for place in places:
        with tf.Graph().as_default():
            with tf.device(f"{worker}/cpu:0"):
                pipeline = trainable.training_pipeline()
                iterator = tf.data.make_initializable_iterator(pipeline.dataset.batch(trainable.batch).prefetch(4))
            with tf.device(place):
                built = training_graph(trainable, dict(iterator.get_next()))
                start = tf.global_variables_initializer()
            if not sessions:
                print(json.dumps({"variables": sum(each.shape.num_elements() for each in tf.trainable_variables())}))
            session = tf.Session(server.target)
            session.run([iterator.initializer, start], pipeline.feeds)
            sessions.append((session, [built.objective.loss, built.step], {built.divisor: 1.0}))
    for number in range(2 * count + 2):
        session, fetches, feeds = sessions[number % 2]
        began, steps = time.monotonic(), 0
        while time.monotonic() - began < 1.0:
            session.run(fetches, feeds)
            steps += 1
        if number > 1:
            print(json.dumps({"turn": number % 2, "rate": steps / (time.monotonic() - began)}), flush=True)


def measure(cell: str, count: int, megabit: int) -> tuple[int, list[list[float]]]:
    """Number of variables; steps per second elsewhere, and here."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cell.py").write_text(cell, encoding="utf-8")
        (folder / "run.json").write_text(
            json.dumps(RunSpec("bare", 10, params={"lr": 0.01}).to_dict()), encoding="utf-8"
        )
        shaped = f"tc qdisc add dev lo root tbf rate {megabit}mbit burst 256kb latency 200ms;" if megabit else ""
        task = f"{sys.executable} {__file__} --task {folder}"
        line = f"ip link set lo up; {shaped} {task} ps {count} & {task} worker {count}; kill $!"
        done = subprocess.run(
            ["unshare", "-Urn", "sh", "-c", line], stdout=subprocess.PIPE, text=True, check=False, encoding="utf-8"
        )
    lines = [json.loads(each) for each in done.stdout.splitlines() if each.startswith("{")]
    rates = [[each["rate"] for each in lines if each.get("turn") == turn] for turn in (0, 1)]
    return lines[0]["variables"], rates


def live(count: int) -> list[tuple[float, float]]:
    """Steps per second of the two runs, in spans of five seconds."""
    with own_home():
        cluster = client.declare(client.Declaration("cpux2", name="bench"))
        cluster.wait()
        given = {"source": CELL, "cluster": cluster, "train_steps": 10**7, "params": {"lr": 0.01}, "check": False}
        runs = [client.train(least_workers=1, most_workers=most, **given) for most in (1, 2)]
        for run in runs:
            run.reach(50, 600)
        all_in(cluster, 2)
        began, found = time.time(), []
        time.sleep(5 * count)
        for number in range(count):
            span = began + 5 * number, began + 5 * (number + 1)
            alone, shared = (step_rate(run, *span) for run in runs)
            found.append((alone, shared))
        cluster.delete(120)
        return found


def main() -> None:
    """Print steps per second of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ten turns of each, not forty")
    parser.add_argument("--megabit", type=int, default=0, help="the link between the two, in Mbit/s; without: loopback")
    parser.add_argument("--task", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        turns(Path(given.task[0]), given.task[1], int(given.task[2]))
        return
    for name, cell in NETWORKS.items():
        variables, (elsewhere, here) = measure(cell, 10 if given.quick else 40, given.megabit)
        say(f"{name}: variables", variables, "")
        say(f"{name}: steps per second, variables on a parameter server", median(elsewhere), "/s")
        say(f"{name}: steps per second, variables on the worker", median(here), "/s")
        say_all(
            f"{name}: on the worker over on a parameter server",
            [b / a for a, b in zip(elsewhere, here, strict=True)],
            "",
        )

    rates = live(6 if given.quick else 24)
    say("runs on a cluster: steps per second with --workers 1", median([alone for alone, _ in rates]), "/s")
    say("runs on a cluster: steps per second with --workers 1:2", median([shared for _, shared in rates]), "/s")
    say_all("runs on a cluster: --workers 1 over --workers 1:2", [alone / shared for alone, shared in rates], "")


if __name__ == "__main__":
    main()
