"""Whether a measure of stalls finds a stall where it was put, and what taking it away would bring.

One cluster of two emulated VMs, one cell. In turn nothing is wrong with it; each example takes some milliseconds to be
prepared; a disk reads so many bytes a second what is not in the page cache; the VMs' links carry so many bits a second.
Each is measured as users do it (`client.declare_stalls`). Told is the largest stall that was claimed; what the measure
predicts for a step without it (all cached, a hundred times the cores or the link); and what the step of the sound cell
was measured at. Of the sound one nothing may be claimed that was not there: the parts that a step through a parameter
server has in any case are printed.
"""

from __future__ import annotations

import argparse

from _common import own_home, say

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Stalls

PREPARED, DISK, LINK = 0.004, 1.5e6, 200
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


def measured(cluster: Cluster, source: str, repeats: int, seconds: float) -> Stalls:
    """A measure of that cell."""
    stalls = client.declare_stalls(source=source, cluster=cluster, repeats=repeats, seconds=seconds)
    stalls.wait(1800)
    return stalls


def main() -> None:
    """Print where each stall was found, and what was predicted without it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repeats")
    repeats, seconds = (3, 0.5) if parser.parse_args().quick else (7, 2.0)
    with own_home():
        cluster = client.declare(Declaration("cpux2", name="bench"))
        cluster.wait(300)
        sound = measured(cluster, cell(), repeats, seconds)
        print(sound, flush=True)
        (bar,) = sound.report.bars
        claimed = [each.name for each in bar.stalls.stalled if each.name in ("preparation", "fetch")]
        more = f"n {repeats} repeats; of its way to the parameter server: " + (
            ", ".join(each.name for each in bar.stalls.stalled if each.name not in claimed) or "nothing"
        )
        say("no stall: claimed of its input", len(claimed), "", "0", more=more)
        cases = {
            "preparation": (cell(prepare=PREPARED), {"cores": 100.0}),
            "fetch": (cell(fetch=_EXAMPLE / DISK), {"cache": 1.0}),
            "network": (cell(), {"link": 100.0}),
        }
        for name, (source, without) in cases.items():
            cluster.weather(link=f"{LINK}mbit" if name == "network" else None)
            stalled = measured(cluster, source, repeats, seconds)
            print(stalled, flush=True)
            (bar,) = stalled.report.bars
            found = bar.stalls.stalled[0].name if bar.stalls.stalled else "nothing"
            predicted, was = stalled.what_if(**without).seconds, sound.report.bars[0].stalls.step
            right = "right" if found == name else "WRONG"
            more = (
                f"found in {found} ({right}); a step takes {1000 * bar.stalls.step.mean:.1f} ms, without it predicted "
                f"{1000 * predicted.mean:.1f} ± {1000 * predicted.half:.1f}, then {1000 * was.mean:.1f} "
                f"± {1000 * was.half:.1f}; n {repeats} repeats"
            )
            say(f"stall: {name}", 100 * (was.mean / predicted.mean - 1), "% off", "<= 10", more=more)
        cluster.delete()


if __name__ == "__main__":
    main()
