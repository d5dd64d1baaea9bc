"""Where the seconds of a step go: pure arithmetic on moments, and what mini-batches go by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime import programs
from tests.runtime.machine_room import free_ports
from tests.runtime.test_training import DECLARATION
from transient_magics.journal import metrics
from transient_magics.protocol.step_parts import EXPOSED, StepParts, step_parts
from transient_magics.runtime.parameter_server.chief.workers import Batches, Member
from transient_magics.runtime.parameter_server.server_load import Load, Shares
from transient_magics.runtime.tf.graph_mode import GPU
from transient_magics.runtime.training.batching import Rule
from transient_magics.runtime.worker.meter import parts, whole

MOMENT = st.floats(0, 20)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ((1, 2, 3, 5), {"input": 1, "pull": 1, "compute": 3, "push": 5, "hidden_pull": 1, "hidden_push": 2, "own": 2}),
        ((2, 1, 3, 5), {"input": 2, "compute": 3, "push": 5, "hidden_pull": 1, "hidden_push": 2, "own": 2}),
        ((0, 9, 8, 9.5), {"pull": 9, "compute": 0.5, "push": 0.5, "hidden_push": 0.5, "own": 0.5}),
    ],
)
def test_each_part_begins_where_the_one_before_it_ended(seen: tuple[float, ...], expected: dict[str, float]):
    found = parts(100.0, [100.0 + moment for moment in seen], 110.0)
    assert {name: seconds for name, seconds in found._asdict().items() if seconds} == pytest.approx(expected)


@given(st.lists(MOMENT, min_size=4, max_size=4), MOMENT, MOMENT, MOMENT, MOMENT, MOMENT, st.floats(0, 60))
def test_exposed_parts_add_up_to_the_step_whatever_was_seen(
    seen: list[float], ended: float, taking: float, barrier: float, between: float, unseen: float, pace: float
):
    made = parts(0.0, seen, ended)
    assert made.step == pytest.approx(ended)
    seconds = max(ended + taking + unseen, pace) + barrier + between
    every = whole(made, seconds, taking, barrier, between, pace)
    assert every.step == pytest.approx(seconds)
    assert min(every) >= -1e-9
    assert step_parts(every.rounded) is not None, "a reader of the line accepts it"
    assert every.barrier == pytest.approx(barrier)
    assert between - 1e-9 <= every.rest <= between + unseen + 1e-9
    if pace:
        assert every.own >= pace, "an emulated accelerator is as fast as it is said to be"
        assert every.input + every.pull + every.push <= max(0.0, ended + taking + unseen - pace) + 1e-9, "waited beyond"


def test_a_step_in_which_the_clock_was_set_is_not_split():
    assert whole(parts(100.0, [101.0] * 4, 3700.0), 2.0, 0.0, 0.0, 0.0) == StepParts(rest=2.0)


def test_foreign_parts_are_counted_only_where_they_can_be(tmp_path):
    good = StepParts(0.1, 0.2, 0.3, 0.4, hidden_pull=0.1, own=0.2)
    assert step_parts([*good.rounded, 7.0]) == good, "of a newer worker, which tells more"
    for bad in (
        None,
        {},
        "split",
        [1.0],
        [*good[:-1], -1.0],
        [*good[:-1], True],
        [*good[:-1], 1e300],
        [*good[:-1], "1"],
    ):
        assert step_parts(bad) is None
        assert metrics.split({"split": bad}) == {}
    assert set(metrics.split({"split": good.rounded})) == {*(f"split_{name}" for name in (*EXPOSED, "own")),
                                                        "hidden_pull", "hidden_push"}  # fmt: skip
    row = {"time": 10**18, "worker": "w", "steps": 1, "split": good.rounded, "server_share": 0.5}
    (minute,) = metrics.thin([row, {**row, "split": [1]}, {**row, "server_share": 1.0}], 2 * 10**18)
    assert step_parts(minute["split"]) == pytest.approx(good.plus(good))
    assert minute["server_share"] == pytest.approx(2 / 3)


def test_the_share_of_the_busiest_parameter_server_is_told_of_about_a_second():
    shares = Shares()
    shares.add("ps-0", Load(5.0, 100.0, 2))
    assert shares.largest is None
    for name, taken in (("ps-0", 0.5), ("ps-1", 1.5)):
        for clock in (0.0, 0.5, 1.0):
            shares.add(name, Load(5.0 + taken * clock, 100.0 + clock, 2))
    assert shares.largest == pytest.approx(0.75)
    shares.add("ps-1", Load(0.1, 3.0, 2))  # another process
    assert shares.largest == pytest.approx(0.25)


def sizes(slow_link: float, slow_gpu: float = 1.0) -> list[int]:
    """The mini-batches of two workers, the second behind a slower link or with a slower GPU, after a minute."""
    batches = Batches("run-1", "dynamic", 2, Rule())
    members = [Member(f"worker-{number}", number, number, 0.0, active=True) for number in range(2)]
    batches.prepared(32, members)
    for second in range(60):
        for member in members:
            second_one = bool(member.number)
            size = batches._controller.sizes[member.number]  # type: ignore[union-attr]
            own = 0.01 * size * (slow_gpu if second_one else 1.0)
            pull = slow_link if second_one else 0.01
            told = StepParts(pull=pull, compute=1.5 * own, own=own)
            line = {"steps": 10, "batch_size": size, "compute_seconds": 10 * told.step,
                    "split": [10 * part for part in told]}  # fmt: skip
            batches.measured(member, line, members, float(second))
    return list(batches._controller.sizes.values())  # type: ignore[union-attr]


def test_a_slow_link_takes_no_examples_from_a_worker_and_a_slow_gpu_does():
    assert sizes(slow_link=2.0) == [32, 32]
    fast, slow = sizes(slow_link=0.01, slow_gpu=2.0)
    assert fast + slow == 64
    assert slow < 0.6 * fast


CELL = """
import time
import numpy, tensorflow.compat.v1 as tf

STALL = {stall!r}

def stalled(tensor, part):
    if part != STALL:
        return tensor
    slept = tf.py_func(lambda: (time.sleep(0.3), numpy.float32(0))[1], [], tf.float32)
    with tf.control_dependencies([slept]):
        return tf.identity(tensor)

class Optimizer(tf.train.AdamOptimizer):
    def apply_gradients(self, pairs, *given, **named):
        pairs = list(pairs)
        with tf.device(pairs[0][1].device):
            gradient = stalled(pairs[0][0], "push")
        return super().apply_gradients([(gradient, pairs[0][1]), *pairs[1:]], *given, **named)

def input_fn(mode):
    return numpy.ones([8, 300], "float32"), numpy.zeros([8, 1], "float32")

def model_fn(features, labels, mode):
    hidden = tf.nn.relu(stalled(features @ tf.get_variable("weights", [300, 300]), "compute"))
    loss = tf.reduce_mean(tf.square(hidden @ tf.get_variable("last", [300, 1]) - labels))
    return {{"loss": loss, "optimizer": Optimizer, "learning_rate": 0.1}}
"""
STEPS = """
import json, sys, time
from pathlib import Path
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.tf import placement
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.loading import load_model
from transient_magics.runtime.training.graph.worker import build
from transient_magics.runtime.worker.meter import moments, parts

folder = RunFolder(Path(sys.argv[1]))
spec, tf = folder.spec(), tensorflow()
trainable = load_model(folder, spec, str(folder.data))
servers, worker = ["127.0.0.1:" + port for port in sys.argv[2:4]], "127.0.0.1:" + sys.argv[4]
served = [tf.train.Server({"ps": servers}, job_name="ps", task_index=index) for index in range(2)]
own = tf.train.Server({"boot": [worker]}, job_name="boot", task_index=0)
device = placement.worker_device(3)
with tf.Graph().as_default() as graph:
    trainable.prepare()
    features = trainable.placeholders()
    if sys.argv[5] == "input":
        with tf.device(device + "/cpu:0"):
            slept = tf.py_func(lambda: (time.sleep(0.3), 0)[1], [], tf.int64)
            with tf.control_dependencies([slept]):
                taken = {name: tf.ones([8, *each.shape.as_list()[1:]]) for name, each in features.items()}
            features = taken
    built = build(trainable, features, spec, device, 2)
    start = tf.global_variables_initializer()
feeds = {} if sys.argv[5] == "input" else {
    each: [[1.0] * each.shape.as_list()[1]] * 8 for each in features.values()
}
config = placement.worker_config(servers, 3, worker, 1)
with tf.Session(own.target, graph=graph, config=config) as session:
    session.run(start)
    found = []
    for _ in range(4):
        began = time.time()
        _, seen, _ = session.run([built.loss, moments(built), built.step], feeds)
        found.append(parts(began, seen, time.time()))
shortest = min(found, key=lambda each: each.step)
print(json.dumps(shortest._asdict()))
"""


@pytest.mark.training
@pytest.mark.parametrize(("stall", "wire"), [("input", "fp32"), ("compute", "bf16"), ("push", "fp32")])
def test_a_stall_is_found_in_its_part_of_a_step_and_what_overlaps_stays_hidden(tmp_path: Path, stall: str, wire: str):
    declared = {**DECLARATION, "model": "", "hparams_set": "", "problem": "", "wire": wire}
    (tmp_path / "run.json").write_text(json.dumps(declared), encoding="utf-8")
    (tmp_path / "cell.py").write_text(CELL.format(stall=stall), encoding="utf-8")
    found = json.loads(programs.run(STEPS, tmp_path, *free_ports(3), stall, own=True).splitlines()[-1])
    exposed = {part: found[part] for part in EXPOSED}
    assert max(exposed, key=exposed.__getitem__) == stall
    assert 0.2 < exposed[stall] < 1, "of 0.3 s"
    assert 0 < found["pull"] + found["hidden_pull"] < exposed[stall]
    if stall == "input":
        assert found["pull"] < 0.01 < 0.3 - found["hidden_pull"], "the variables came while examples were waited for"


LONE = """
import numpy, tensorflow.compat.v1 as tf

def input_fn(mode):
    return numpy.ones([8, 3], "float32"), numpy.zeros([8, 1], "float32")

def model_fn(features, labels, mode):
    none = tf.get_variable("none", [0, 3])
    loss = tf.reduce_mean(tf.square(features @ tf.get_variable("weights", [3, 1]) - labels)) + tf.reduce_sum(none)
    return {"loss": loss, "optimizer": tf.train.AdamOptimizer, "learning_rate": 0.1}
"""
LONE_STEP = """
import json, sys
from pathlib import Path
from tests.runtime.seeded_steps import here
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.tf import placement
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.loading import load_model
from transient_magics.runtime.training.graph.worker import build
from transient_magics.runtime.worker.meter import moments

folder = RunFolder(Path(sys.argv[1]))
spec, tf = folder.spec(), tensorflow()
trainable = load_model(folder, spec, str(folder.data))
with tf.Graph().as_default() as graph:
    trainable.prepare()
    features = trainable.placeholders()
    built = build(trainable, features, spec, placement.worker_device(0), 1)
    start = tf.global_variables_initializer()
feeds = {each.name: [[1.0] * each.shape.as_list()[1]] * 8 for each in features.values()}
with tf.Session(graph=here(graph)) as session:
    session.run(start.name)
    print(json.dumps(session.run([each.name for each in moments(built)], feeds)))
"""


@pytest.mark.training
def test_of_a_lone_worker_with_a_gpu_the_gradients_are_seen_even_those_without_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = {**DECLARATION, "model": "", "hparams_set": "", "problem": "", "most_workers": 1}
    (tmp_path / "run.json").write_text(json.dumps(declared), encoding="utf-8")
    (tmp_path / "cell.py").write_text(LONE, encoding="utf-8")
    monkeypatch.setenv(GPU, "1")
    *_, forward, backward = json.loads(programs.run(LONE_STEP, tmp_path, own=True).splitlines()[-1])
    assert forward > 0
    assert backward > 0
