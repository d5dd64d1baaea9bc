"""A session whose examples are being read can be closed at once, and another one opened."""

from __future__ import annotations

import json

import pytest

from tests.runtime import programs

pytestmark = pytest.mark.training

# What tunes a pipeline misses the end of one in five or so, each time for longer: of forty, one is sure to be missed.
PROGRAM = """
import json, os, threading, time
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.examples import source
from transient_magics.runtime.training.trainable import Pipeline

tf = tensorflow()
server = tf.train.Server.create_local_server()
with tf.Graph().as_default() as graph:
    read = []
    for number in range(40):
        numbers = tf.data.Dataset.range(10**9).map(lambda value: {"inputs": value}, num_parallel_calls=tf.data.AUTOTUNE)
        kinds, shapes = tf.data.get_output_types(numbers), tf.data.get_output_shapes(numbers)
        read.append(source(Pipeline(numbers, kinds, shapes, False), f"examples_{number}", 2, False))
session = tf.Session(server.target, graph=graph)
session.run([each.begin for each in read])
first = session.run([each.values["inputs"] for each in read])
time.sleep(0.5)
closing = threading.Thread(target=session.close, daemon=True)
closing.start()
closing.join(10)
print(json.dumps({"first": [list(map(int, each)) for each in first], "closed": not closing.is_alive()}), flush=True)
os._exit(0)
"""


def test_the_end_of_a_session_waits_for_none_of_its_pipelines() -> None:
    told = json.loads(programs.run(PROGRAM, own=True))
    assert told["first"] == [[0, 1]] * 40
    assert told["closed"]
