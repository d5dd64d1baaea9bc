"""What it costs to split every step: the same step with its moments and without, in turn, against a parameter server.

The one without has none of the operations that they need, either. Beside seconds of the clock stand those that the
worker's process computed, which say more on a machine that is busy with other things. Intervals are of 95 %, of the
mean over pairs.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _common import CELL, say

SPEC = {
    "name": "run-1", "model": "resnet", "hparams_set": "resnet_digits", "problem": "image_digits", "train_steps": 1000,
    "token": "0123456789abcdef",
}  # fmt: skip
SERVER = """
import sys
from tensorflow.compat.v1 import train
train.Server({"ps": [sys.argv[1]]}, job_name="ps", task_index=0).join()
"""


def bypass(graph: Any) -> None:
    """Take out the operations through which variables are seen to arrive."""
    for operation in graph.get_operations():
        if operation.name.rpartition("/")[2].startswith("arrived") and operation.type == "Identity":
            tensor = operation.outputs[0]
            for reader in tensor.consumers():
                for index, given in enumerate(reader.inputs):
                    if given is tensor:
                        reader._update_input(index, operation.inputs[0])


def free_address() -> str:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def timed(session: Any, fetches: Any, look: Callable[[float, Any], object] | None, steps: int) -> tuple[float, float]:
    """Seconds of a step by the clock, and those computed by this process."""
    began, computed = time.perf_counter(), time.process_time()
    for _ in range(steps):
        clock = time.time()
        found = session.run(fetches)
        if look:
            look(clock, found[-1])
    return (time.perf_counter() - began) / steps, (time.process_time() - computed) / steps


def measure(folder: Path, pairs: int, seconds: float) -> None:
    """Print what the moments cost in so many pairs, each of two stretches of `seconds`."""
    from transient_magics.protocol.run import RunSpec
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.tf import placement
    from transient_magics.runtime.training.define import define, import_tensorflow
    from transient_magics.runtime.training.graph.worker import build
    from transient_magics.runtime.worker.split import moments, parts

    (folder / "run.json").write_text(json.dumps(SPEC))
    (folder / "cell.py").write_text(CELL)
    spec, server, own = RunSpec.from_dict(SPEC), free_address(), free_address()
    tf = import_tensorflow(spec)
    trainable = define(RunFolder(folder), spec, str(folder))
    made = []
    with subprocess.Popen([sys.executable, "-c", SERVER, server], stderr=subprocess.DEVNULL) as process:
        try:
            target = tf.train.Server({"boot": [own]}, job_name="boot", task_index=0)
            for watched in (True, False):
                with tf.Graph().as_default() as graph:
                    trainable.prepare()
                    held = trainable.placeholders().items()
                    features = {
                        name: tf.zeros([trainable.batch, *(size or 1 for size in each.shape.as_list()[1:])], each.dtype)
                        for name, each in held
                    }
                    built = build(trainable, features, spec, placement.worker_device(1), 1)
                    start = tf.global_variables_initializer()
                    if not watched:
                        bypass(graph)
                config = placement.worker_config([server], 1, own, 0)
                session = tf.Session(target.target, graph=graph, config=config)
                session.run(start)
                fetches = [built.loss, built.before, built.after, built.examples, built.weight, built.step]
                look = (lambda clock, seen: parts(clock, seen, time.time())) if watched else None
                run = partial(timed, session, [*fetches, moments(built)] if watched else fetches, look)
                run(5)
                made.append(run)
            usual, _ = made[1](5)
            steps, costs = max(3, round(seconds / usual)), list[list[float]]([[], []])
            for pair in range(pairs):
                order = (0, 1) if pair % 2 else (1, 0)
                taken = {which: made[which](steps) for which in order}
                for kind, found in enumerate(costs):
                    found.append(100 * (taken[0][kind] / taken[1][kind] - 1))
        finally:
            process.kill()
    say("a step without moments", 1000 * usual, "ms")
    for what, found in zip(("by the clock", "computed by the worker's process"), costs, strict=True):
        half = 1.96 * statistics.stdev(found) / len(found) ** 0.5
        more = f"± {half:.2f}; median {statistics.median(found):.2f}; n {len(found)} pairs of {steps} steps"
        say(f"cost of splitting it, {what}", statistics.fmean(found), "%", "<= 1", more=more)


def main() -> None:
    """Print the cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter stretches")
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), 20, 1.0 if parser.parse_args().quick else 5.0)


if __name__ == "__main__":
    main()
