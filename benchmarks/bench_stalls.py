"""Whether stalls are found where they were put, and what it costs to split a step into its parts.

`cluster`: a measure of stalls on one cluster of two emulated VMs whose steps last PACE seconds, as on an accelerator;
so a busy machine disturbs less. In turn each example takes some milliseconds to be prepared; a disk reads so many bytes
a second what is not in the page cache; the VMs' links carry so many bits a second; and after each of these the same
cell is measured with nothing wrong with it. Each is measured as users do it (`client.declare_stalls`). Printed is the
largest stall that was claimed, and how far the step that the measure predicts without it (all cached, a hundred times
the cores, or the links) is off from the sound cell's step next to it. Where nothing is wrong nothing may be claimed,
nor with text, whose records are small. `--case` chooses some of these.

`split-cost`: the same step with its moments and without, in turn, against a parameter server. The one without has none
of the operations that they need, either. Beside seconds of the clock stand those that the worker's process computed,
which are more reliable on a machine that is busy with other things. Intervals are of 95 %, of the mean over pairs.

`split-stalls`: in one session a stall after the other is put in and taken away, in turns: decoding that sleeps, a
worker that computes slowly, a link that carries so many bytes a second (each byte goes through a relay), a parameter
server that is stopped half of the time. Of the turns without it every second one is a reference, the others are what is
predicted. Printed is the part that grew most; what the step should last without the stall, by its parts alone: its
seconds, less what the stalled parts had more than the reference, and with what had been hidden beneath them; and what
it lasted then. Between the two kinds of turns without a stall, no part may differ by more than a tenth of the step.
Each is the mean of its steps, for a stall may come and go within a turn.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import CELL, Relay, own_home, parser_of, run_measures, say

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Stalls
from transient_magics.planner.stalls.parts import Estimate
from transient_magics.protocol.step_parts import EXPOSED, StepParts

PACE = 0.1
"""Seconds of a step that nothing holds up."""
PREPARED, DISK, LINK = 0.012, 1.2e6, 80
"""Seconds of an example's preparation, bytes a second of the disk, Mbit/s of the links."""
_EXAMPLE, _FILE = 1 << 14, 24 << 20
STALLED_CELL = """
import os, pathlib, time
import numpy
import tensorflow
import tensorflow.compat.v1 as tf

batch_size = 16
place = pathlib.Path.home() / f"{{os.getpid()}}.records"
with place.open("wb") as file:
    file.write(os.urandom({file}))
    os.fsync(file.fileno())
records = os.open(place, os.O_RDONLY)
os.posix_fadvise(records, 0, 0, os.POSIX_FADV_RANDOM)  # what is read ahead would not have to be waited for

def read(number):
    begin, block = int(number) * {example}, bytearray({example})
    try:
        there = os.preadv(records, [block], begin, os.RWF_NOWAIT)
    except BlockingIOError:
        there = 0
    if there < {example}:
        os.preadv(records, [block], begin)
        time.sleep({fetch})
    time.sleep({prepare})
    return numpy.frombuffer(block, "uint8")[:600].astype("float32") / 255

def example(number):
    values = tf.py_func(read, [number], tf.float32)
    values.set_shape([600])
    return values, tf.ones([1])

def input_fn(mode):
    return tensorflow.data.Dataset.range({examples}).map(example)

def model_fn(features, labels, mode):
    hidden = tf.nn.relu(features @ tf.get_variable("weights", [600, 400]))
    loss = tf.reduce_mean(tf.square(hidden @ tf.get_variable("last", [400, 1]) - labels))
    return {{"loss": loss, "optimizer": tf.train.GradientDescentOptimizer, "learning_rate": 0.1}}
"""


def cell(*, prepare: float = 0.0, fetch: float = 0.0) -> str:
    """The cell with so many seconds more for each example: always, and where it is not in the page cache."""
    return STALLED_CELL.format(example=_EXAMPLE, examples=_FILE // _EXAMPLE, file=_FILE, prepare=prepare, fetch=fetch)


TEXT = """
from tensor2tensor.data_generators import algorithmic
from tensor2tensor.models import transformer
from tensor2tensor.utils import registry

@registry.register_problem
class ReverseBits(algorithmic.AlgorithmicReverseBinary40):
    num_shards = 2
    train_length = 12
    dev_length = 12
    train_size = 2000
    dev_size = 60

@registry.register_hparams
def transformer_bits():
    hparams = transformer.transformer_tiny()
    hparams.hidden_size = 32
    hparams.filter_size = 64
    hparams.batch_size = 256
    return hparams
"""
_OF_TEXT = {"model": "transformer", "hparams_set": "transformer_bits", "problem": "reverse_bits"}
STALLED: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "preparation": (cell(prepare=PREPARED), {"cores": 100.0}, ("preparation",)),
    "fetch": (cell(fetch=_EXAMPLE / DISK), {"cache": 1.0}, ("fetch",)),
    "links": (cell(), {"link": 100.0, "ps": 100.0}, ("network", "contention")),
}
"""Each stall: the cell that has it, what takes it away, and the parts in which it is right. Slow links are found in the
network's part by a worker that steps alone, and in that of contention by all, which share the parameter server's."""


def measured(cluster: Cluster, source: str, repeats: int, seconds: float, **names: str) -> Stalls:
    """A measure of that cell."""
    stalls = client.declare_stalls(
        source=source, cluster=cluster, repeats=repeats, seconds=seconds, pace_seconds=PACE, **names
    )
    stalls.wait(1800)
    print(f"{stalls}\n", flush=True)
    return stalls


def step(stalls: Stalls) -> Estimate:
    """The step, of the one kind of VM."""
    (bar,) = stalls.report.bars
    return bar.stalls.step


def claimed(stalls: Stalls) -> list[str]:
    """The stalls that it claims, the longest first."""
    (bar,) = stalls.report.bars
    return [each.name for each in bar.stalls.stalled]


def shown(estimate: Estimate) -> str:
    """In milliseconds."""
    return f"{1000 * estimate.mean:.1f} ± {1000 * estimate.half:.1f} ms"


def cluster_stalls(options: argparse.Namespace) -> None:
    """Print where each stall was found, and what was predicted without it."""
    cases = options.case or (*STALLED, "text")
    repeats, seconds = (4, 1.0) if options.quick else (7, 3.0)
    off, wrong = list[float](), list[str]()
    with own_home():
        cluster = client.declare(Declaration("cpux2", name="bench"))
        cluster.wait(600)
        for name, (source, without, right) in STALLED.items():
            if name not in cases:
                continue
            cluster.weather(link=f"{LINK}mbit" if name == "links" else "1gbit")
            stalled = measured(cluster, source, repeats, seconds)
            cluster.weather(link="1gbit")
            sound = measured(cluster, cell(), repeats, seconds)
            wrong += claimed(sound)
            found, then, was = claimed(stalled), stalled.what_if(**without).seconds, step(sound)
            off.append(100 * (then.mean / was.mean - 1))
            first = found[0] if found else "nothing"
            more = (
                f"found in {', '.join(found) or 'nothing'} ({'right' if first in right else 'WRONG'}); a step takes "
                f"{shown(step(stalled))}, without it predicted {shown(then)}, then {shown(was)}; n {repeats} repeats, "
                f"load {os.getloadavg()[0]:.1f}"
            )
            say(f"stall: {name}", off[-1], "% off", "<= 10", more=more)
        if off:
            size = statistics.fmean(map(abs, off))
            say("what-if, how far off in the mean", size, "%", "<= 4", more=f"n {len(off)} stalls")
            said = f"{', '.join(wrong) or 'nothing'}; n {len(off)} measures"
            say("no stall: claimed", len(wrong), "", "0", more=said)
        if "text" in cases:
            found = claimed(measured(cluster, TEXT, repeats, seconds, **_OF_TEXT))
            said = f"{', '.join(found) or 'nothing'}; n {repeats} repeats"
            say("text: claimed", len(found), "", "0", more=said)
        cluster.delete()


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


CELL_OF_STALLS = """
import time
import numpy, tensorflow.compat.v1 as tf
import bench_stalls

def slow(tensor):
    slept = tf.py_func(lambda: numpy.float32(bench_stalls.pause("compute")), [], tf.float32)
    with tf.control_dependencies([slept]):
        return tf.identity(tensor)

def input_fn(mode):
    return numpy.ones([8, 600], "float32"), numpy.zeros([8, 1], "float32")

def model_fn(features, labels, mode):
    hidden = tf.nn.relu(slow(features @ tf.get_variable("weights", [600, 600])))
    loss = tf.reduce_mean(tf.square(hidden @ tf.get_variable("last", [600, 1]) - labels))
    return {"loss": loss, "optimizer": tf.train.AdamOptimizer, "learning_rate": 0.1}
"""
SLEEPS: dict[str, float] = {}
"""Seconds that decoding and computing sleep in each step."""
PARTS = {"input": ("input",), "compute": ("compute",), "link": ("pull", "push"), "parameter server": ("pull", "push")}
"""Where each stall has to be found."""
HIDDEN = {"input": ("hidden_pull",)}
"""What goes on beneath a stall, and is waited for when there is none."""
BYTES = 4 * 600 * 600
"""Of the large variable, which comes through the relay in each step; its gradient is fetched by the server itself."""


def pause(what: str) -> float:
    """Sleep as long as this does now."""
    time.sleep(SLEEPS.get(what, 0.0))
    return 0.0


class Halved:
    """A process that is stopped half of the time while `on` is set."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self.on = process, threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.on.wait()
            for number in (signal.SIGSTOP, signal.SIGCONT):
                self._process.send_signal(number)
                time.sleep(0.02)


def split_stalls(folder: Path, rounds: int, steps: int) -> None:
    """Print where each stall was found, and what taking it away brought."""
    from transient_magics.protocol.run import RunSpec
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.tf import placement
    from transient_magics.runtime.training.graph.worker import build
    from transient_magics.runtime.training.loading import import_tensorflow, load_model
    from transient_magics.runtime.worker.meter import moments, parts

    declared = {"name": "run-1", "train_steps": 1000, "token": "0123456789abcdef"}
    (folder / "run.json").write_text(json.dumps(declared), encoding="utf-8")
    (folder / "cell.py").write_text(CELL_OF_STALLS, encoding="utf-8")
    sys.modules["bench_stalls"] = sys.modules[__name__]  # that of the cell
    spec, server, own = RunSpec.from_dict(declared), free_address(), free_address()
    tf = import_tensorflow(spec)
    trainable = load_model(RunFolder(folder), spec, str(folder))
    with subprocess.Popen([sys.executable, "-c", SERVER, server], stderr=subprocess.DEVNULL) as process:
        try:
            link = Relay(server)
            target = tf.train.Server({"boot": [own]}, job_name="boot", task_index=0)
            device = placement.worker_device(1)
            with tf.Graph().as_default() as graph:
                trainable.prepare()
                held = trainable.placeholders().items()
                with tf.device(f"{device}/cpu:0"):
                    decoded = tf.py_func(lambda: np.int64(pause("input")), [], tf.int64)
                    with tf.control_dependencies([decoded]):
                        features = {name: tf.ones([8, *each.shape.as_list()[1:]], each.dtype) for name, each in held}
                built = build(trainable, features, spec, device, 1)
                start = tf.global_variables_initializer()
            config = placement.worker_config([link.address], 1, own, 0)
            session = tf.Session(target.target, graph=graph, config=config)
            session.run(start)
            halved = Halved(process)

            def made() -> list[StepParts]:
                found = list[StepParts]()
                for _ in range(steps):
                    clock = time.time()
                    _, seen, _ = session.run([built.loss, moments(built), built.step])
                    found.append(parts(clock, seen, time.time()))
                return found

            made()
            for what, within in PARTS.items():
                usual = mean_parts(made()).step
                turns: dict[str, list[StepParts]] = {"reference": [], "stalled": [], "after": []}
                for turn in range(rounds):
                    turns["after" if turn % 2 else "reference"] += made()
                    seconds = 1.5 * usual
                    SLEEPS.update({what: seconds} if what in ("input", "compute") else {})
                    link.rate = BYTES / seconds if what == "link" else 0.0
                    if what == "parameter server":
                        halved.on.set()
                    turns["stalled"] += made()
                    SLEEPS.clear()
                    halved.on.clear()
                    link.rate = 0.0
                    time.sleep(0.1)
                reference, stalled, after = (mean_parts(turns[each]) for each in ("reference", "stalled", "after"))
                growth = {name: getattr(stalled, name) - getattr(reference, name) for name in EXPOSED}
                found = max(growth, key=growth.__getitem__)
                beneath = sum(getattr(stalled, each) - getattr(reference, each) for each in HIDDEN.get(what, ()))
                predicted = stalled.step - sum(growth[name] for name in within) + beneath
                idle = max(getattr(after, name) - getattr(reference, name) for name in EXPOSED) / reference.step
                where = f"found in {found} ({'right' if found in within else 'WRONG'})"
                more = (
                    f"{where}; with it {1000 * stalled.step:.1f} ms, without it predicted {1000 * predicted:.1f} ms, "
                    f"then {1000 * after.step:.1f} ms; no part grew by more than {idle:.0%} of the step without one; "
                    f"n {len(turns['stalled'])} steps with it, {len(turns['after'])} without"
                )
                say(f"stall: {what}", 100 * (after.step / predicted - 1), "% off", "<= 10", more=more)
            session.close()
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def mean_parts(found: Sequence[StepParts]) -> StepParts:
    """The mean of each part."""
    return type(found[0])(*(statistics.fmean(each) for each in zip(*found, strict=True)))


def split_cost(folder: Path, pairs: int, seconds: float) -> None:
    """Print what the moments cost in so many pairs, each of two stretches of `seconds`."""
    from transient_magics.protocol.run import RunSpec
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.tf import placement
    from transient_magics.runtime.training.graph.worker import build
    from transient_magics.runtime.training.loading import import_tensorflow, load_model
    from transient_magics.runtime.worker.meter import moments, parts

    (folder / "run.json").write_text(json.dumps(SPEC), encoding="utf-8")
    (folder / "cell.py").write_text(CELL, encoding="utf-8")
    spec, server, own = RunSpec.from_dict(SPEC), free_address(), free_address()
    tf = import_tensorflow(spec)
    trainable = load_model(RunFolder(folder), spec, str(folder))
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
    """Run the chosen measures."""

    def cost(options: argparse.Namespace) -> None:
        with tempfile.TemporaryDirectory() as folder:
            split_cost(Path(folder), 20, 1.0 if options.quick else 5.0)

    def found(options: argparse.Namespace) -> None:
        with tempfile.TemporaryDirectory() as folder:
            split_stalls(Path(folder), 2 if options.quick else 20, 15)

    measures = {"cluster": cluster_stalls, "split-cost": cost, "split-stalls": found}
    parser = parser_of(__doc__, "fewer and shorter repeats", measures)
    parser.add_argument("--case", nargs="+", choices=(*STALLED, "text"), help="of `cluster` (default: all)")
    run_measures(measures, parser.parse_args())


if __name__ == "__main__":
    main()
