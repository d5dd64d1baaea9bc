"""Whether a measure of stalls finds a stall where it was put, and what taking it away would bring.

One cluster of two emulated VMs whose steps last PACE seconds, as on an accelerator; so a busy machine disturbs less. In
turn each example takes some milliseconds to be prepared; a disk reads so many bytes a second what is not in the page
cache; the VMs' links carry so many bits a second; and after each of these the same cell is measured with nothing wrong
with it. Each is measured as users do it (`client.declare_stalls`). Told is the largest stall that was claimed, and how
far the step that the measure predicts without it (all cached, a hundred times the cores, or the links) is off from the
sound cell's step next to it. Where nothing is wrong nothing may be claimed, nor with text, whose records are small.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping
from typing import Any

from _common import own_home, say

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Stalls
from transient_magics.planner.stalls.parts import Estimate

PACE = 0.1
"""Seconds of a step that nothing holds up."""
PREPARED, DISK, LINK = 0.012, 1.2e6, 80
"""Seconds of an example's preparation, bytes a second of the disk, Mbit/s of the links."""
_EXAMPLE, _FILE = 1 << 14, 24 << 20
CELL = """
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
    return CELL.format(example=_EXAMPLE, examples=_FILE // _EXAMPLE, file=_FILE, prepare=prepare, fetch=fetch)


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


def main() -> None:
    """Print where each stall was found, and what was predicted without it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repeats")
    parser.add_argument("--only", choices=(*STALLED, "text"), help="of the cases this one")
    given = parser.parse_args()
    repeats, seconds = (4, 1.0) if given.quick else (7, 3.0)
    off, wrong = list[float](), list[str]()
    with own_home():
        cluster = client.declare(Declaration("cpux2", name="bench"))
        cluster.wait(600)
        for name, (source, without, right) in STALLED.items():
            if given.only not in (None, name):
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
        if given.only in (None, "text"):
            found = claimed(measured(cluster, TEXT, repeats, seconds, **_OF_TEXT))
            said = f"{', '.join(found) or 'nothing'}; n {repeats} repeats"
            say("text: claimed", len(found), "", "0", more=said)
        cluster.delete()


if __name__ == "__main__":
    main()
