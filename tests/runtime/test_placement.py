"""Which parameter server holds which variable, and how much of all that makes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.runtime import programs

pytestmark = pytest.mark.training

# A table far larger than all the rest, as a vocabulary's is, besides layers of several sizes and one without any rows.
PROGRAM = """
import json, sys
from transient_magics.runtime.tf import placement
from transient_magics.runtime.tf.graph_mode import tensorflow

tf = tensorflow()
shards = int(sys.argv[1])
with tf.Graph().as_default() as graph, placement.placed("/job:worker/task:7", 3, shards):
    for name, shape in {"table": [300_001, 8], "empty": [0, 8], "step": [], "long": [2, 300_000]}.items():
        tf.get_variable(name, shape, tf.float32, tf.zeros_initializer())
    for layer in range(12):
        tf.get_variable(f"layer_{layer}", [100 * layer + 1, 50], tf.float32, tf.zeros_initializer())
    other = tf.constant(0.0)
variables = graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
told = [[*placement.place_in_checkpoint(each), each.device, each.shape.as_list()] for each in variables]
print(json.dumps({"variables": told, "other": other.device}, default=lambda part: [part.start, part.stop]))
"""


def placed(shards: int) -> dict[str, Any]:
    return json.loads(programs.run(PROGRAM, shards, own=True))


@pytest.mark.parametrize("shards", [0, 1, 3])
def test_variables_are_spread_over_the_servers_by_their_size(shards: int) -> None:
    answer = placed(shards)
    assert answer["other"] == "/job:worker/task:7"
    held: Counter[str] = Counter()
    parts: dict[str, list[Any]] = {}
    for name, part, device, shape in answer["variables"]:
        elements = 1
        for size in shape:
            elements *= size
        held[device] += elements
        parts.setdefault(name, []).append(part)
    assert set(held) == {f"/job:ps/task:{index}" for index in range(3)}
    assert all(len(pieces) == 1 for name, pieces in parts.items() if name not in ("table", "long"))
    if shards < 2:
        assert parts["table"] == [None]
        assert held.most_common(1)[0][1] == 300_001 * 8  # whoever has the table got nothing else
    else:
        rows = [rows for rows, _ in parts["table"]]
        assert rows == [[0, 100_001], [100_001, 200_001], [200_001, 300_001]]
        assert len(parts["long"]) == 2  # of two rows there can be two parts
        assert max(held.values()) < 1.1 * sum(held.values()) / 3
