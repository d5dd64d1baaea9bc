"""The program of a run: what a cell draws is the same in every process, and its module is one like any other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import programs
from transient_magics.protocol import layout
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.parameter_server.chief import events
from transient_magics.runtime.parameter_server.chief.state import ChiefState
from transient_magics.runtime.parameter_server.chief.workers import Roster
from transient_magics.runtime.role import environment
from transient_magics.runtime.training import reproducibility

PROJECT = Path(__file__).parents[2]

DRAWS = """
import random, json
import numpy as np
from numpy.random import default_rng
{library}
own = default_rng()
old = np.random.RandomState()
pythons = random.Random()
drawn = [random.random(), np.random.rand(), default_rng().random(), own.random(), old.rand(), pythons.random()]
np.random.seed()
drawn += [np.random.rand(), np.random.Generator(np.random.Philox()).random()]
names = list({{"alpha", "beta", "gamma", "delta", "epsilon"}})

def input_fn(mode):
    chosen = np.random.permutation(100), own.permutation(100), default_rng().permutation(100)
    share = slice(80) if mode == "train" else slice(80, None)
    return [int(number) for each in chosen for number in each[share]]

def reading():
    return [random.random(), np.random.rand(), default_rng().random(), own.random(), old.rand(), pythons.random()]
"""
PROCESS = """
import json, sys
from pathlib import Path
{before}
from transient_magics.runtime.training.usercode import run_cell
from transient_magics.runtime.training.user_model.trainable import SeededInput

folder = Path(sys.argv[1])
cell = run_cell(folder / "cell.py", folder / "include", 1, None, int(sys.argv[2]))
examples = SeededInput(cell.input_fn, vars(cell), int(sys.argv[2]))
given = {{mode: examples(mode) for mode in sys.argv[3:]}}
print(json.dumps([cell.drawn, cell.names, given, cell.reading()]))
"""


def process(program: str, *arguments: object) -> Any:
    """The last line that a Python program of its own prints, as JSON. It has the environment of a role."""
    given = {**environment(os.environ), "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, env=given, check=False, encoding="utf-8")
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / layout.CELL).write_text(DRAWS.format(library="import sklearn.utils"), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_cell_draws_the_same_in_every_process_and_examples_are_read_with_other_numbers(folder: Path) -> None:
    worker = process(PROCESS.format(before=""), folder, 7, "train", "train")
    # Another process asks for the modes in another order, and has the cell's library already.
    evaluator = process(PROCESS.format(before="import sklearn.utils"), folder, 7, "eval", "train")
    assert worker[:2] == evaluator[:2]
    assert worker[2]["train"] == evaluator[2]["train"]
    assert not set(evaluator[2]["train"][:80]) & set(evaluator[2]["eval"][:20]), "both modes have one split"
    assert len(set(worker[0])) == len(worker[0])
    assert not set(worker[3]) & set(evaluator[3])
    other = process(PROCESS.format(before=""), folder, 8, "train")
    assert not set(worker[0]) & set(other[0])


def test_two_declarations_of_a_run_have_different_seeds_and_one_that_resumes_has_the_first_ones() -> None:
    from transient_magics.client.declaring.payload import Payload
    from transient_magics.client.declaring.runs import specified

    options = {"name": "run", "train_steps": 10}
    seeds = [specified(None, {**options}, None, Payload()).program_seed for _ in range(3)]
    assert len(set(seeds)) == 3
    assert specified(None, {**options, "seed": 5}, None, Payload()).program_seed == 5
    again = specified(None, {**options, "drawn_seed": seeds[0]}, None, Payload())
    assert again.program_seed == seeds[0]
    assert RunSpec.from_dict(json.loads(json.dumps(again.to_dict()))) == again


MODULE = """
import concurrent.futures, dataclasses, inspect, json, multiprocessing, pickle, typing

factor: int = units

@dataclasses.dataclass(slots=True)
class Point:
    x: int
    y: "list[int]" = dataclasses.field(default_factory=list)

class Colour(typing.NamedTuple):
    red: float

def scaled(value):
    return factor * value

def results():
    found = {"field": [field.type is int for field in dataclasses.fields(Point)]}
    found["annotation"] = scaled.__annotations__ == {} and __annotations__["factor"] is int
    found["pickled"] = pickle.loads(pickle.dumps(Point(3))) == Point(3)
    found["source"] = inspect.getsource(scaled)
    found["hints"] = str(typing.get_type_hints(Point)["y"])
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            found[method] = pool.map(scaled, range(3))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        found["executor"] = pool.submit(scaled, 4).result()
    return found
"""
LOADS = """
import json, sys
from pathlib import Path
from transient_magics.runtime.training.usercode import run_cell

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    print(json.dumps(run_cell(folder / "cell.py", folder / "include", 1, {"units": 10}).results()))
"""


@pytest.mark.slow
def test_dataclasses_annotations_pickles_sources_and_process_pools_work_in_a_cell(tmp_path: Path) -> None:
    (tmp_path / layout.CELL).write_text(MODULE, encoding="utf-8")
    program = tmp_path / "main.py"
    program.write_text(LOADS, encoding="utf-8")
    found = process("import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')",
                    program, tmp_path)  # fmt: skip
    assert found["field"] == [True, False]
    assert found["annotation"]
    assert found["pickled"]
    assert found["source"] == "def scaled(value):\n    return factor * value\n"
    assert found["hints"] == "list[int]"
    assert found["fork"] == found["spawn"] == [0, 10, 20]
    assert found["executor"] == 40


def chief(**kept: Any) -> ChiefState:
    return ChiefState(RunSpec(name="run", train_steps=100), kept, 0.0, Roster())


def test_a_run_ends_where_a_worker_or_the_evaluation_executes_another_program() -> None:
    import numpy

    labels = numpy.arange(1000) % 7
    here = reproducibility.fingerprint_examples("eval", {"labels": labels})
    shuffled = reproducibility.fingerprint_examples("eval", {"labels": numpy.random.default_rng(0).permutation(labels)})
    alike = reproducibility.fingerprint_examples("eval", {"labels": labels + 1e-9})
    for other, fails in ((shuffled, True), (alike, False), ({}, False), ({"training": "80"}, False)):
        state = chief()
        assert not state.handle(events.Built({**here, "training": "80"}), 1.0)
        state.handle(events.Joined(1, "worker-0"), 1.0)
        done = state.handle(events.Stepping(1, 0.5, 8, program=other), 2.0)
        failed = [
            each.values["reason"] for each in done if isinstance(each, events.Emit) and each.kind == "train.failed"
        ]
        assert bool(failed) == fails
        if fails:
            assert failed[0].startswith(
                "worker-0 does not execute the same program as the other processes: it has other evaluation examples"
            )
            assert "default_rng(0)" in failed[0]
    state = chief(**chief_that_saw(here))
    done = state.handle(events.EvaluationDone(5, {"loss": 1.0}, program=shuffled), 3.0)
    assert [each.kind for each in done if isinstance(each, events.Emit)] == ["train.failed"]


def test_a_fingerprint_is_read_whatever_the_arrays_hold_and_nothing_else_is() -> None:
    import numpy

    odd = {
        "infinite": numpy.array([numpy.inf, -numpy.inf, numpy.inf]),
        "large": numpy.full(9, 1e308),
        "missing": numpy.full((2, 3), numpy.nan),
        "texts": numpy.array(["größe", "b"]),
        "flags": numpy.array([True, False]),
        "empty": numpy.zeros((2, 0)),
    }
    sent = {**reproducibility.fingerprint_examples("eval", odd), **reproducibility.fingerprint_examples("train", odd)}
    assert reproducibility.parse_fingerprint(json.dumps(sent)) == sent
    assert not reproducibility.fingerprint_difference(sent, sent)
    assert reproducibility.parse_fingerprint("") == {}
    for other in ("[]", '{"a": "b"}', '{"training": 3}', '{"evaluation": "[1]"}', '{"evaluation": "no JSON"}', "{"):
        with pytest.raises(ValueError, match=r"."):
            reproducibility.parse_fingerprint(other)


def chief_that_saw(program: dict[str, str]) -> dict[str, Any]:
    """What a chief leaves to the one that follows."""
    before = chief()
    before.handle(events.Built(program), 1.0)
    return json.loads(json.dumps(before.to_dict()))


GENERATED = """
import keras, numpy as np, tensorflow as tf

rng = np.random.default_rng()
order, kept, start = rng.permutation(30), np.random.rand(3), tf.random.normal([2])
augmented = tf.data.Dataset.range(9).map(lambda number: tf.random.uniform([]))
start += tf.random.normal([2])

def input_fn(mode):
    def with_noise(features, label):
        return tf.concat([features, tf.random.uniform([1])], 0), label
    def examples():
        noise = np.random.default_rng()
        for number in order:
            yield np.float32([number, noise.random(), rng.random(), np.random.rand()]), np.float32(0)
    signature = tf.TensorSpec([4]), tf.TensorSpec([])
    return tf.data.Dataset.from_generator(examples, output_signature=signature).map(with_noise)

model = keras.Sequential([keras.Input([5]), keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""


@pytest.mark.training
def test_workers_have_one_split_and_one_beginning_and_draw_other_numbers_while_they_read(tmp_path: Path) -> None:
    (tmp_path / layout.RUN).write_text(
        json.dumps({"name": "run", "train_steps": 10, "drawn_seed": 5}), encoding="utf-8"
    )
    (tmp_path / layout.CELL).write_text(GENERATED, encoding="utf-8")
    said = programs.run("tests.runtime.drawn_examples", tmp_path, own=True).splitlines()
    first, second = (json.loads(line) for line in said if line.startswith("{"))
    assert first["drawn"] == second["drawn"]
    assert first["program"] == second["program"] != {}
    noise = [
        {tuple(example[1:]) for example in session} for process in (first, second) for session in process["sessions"]
    ]
    for column in range(4):
        drawn = [{values[column] for values in session} for session in noise]
        assert sum(map(len, drawn)) == len(set.union(*drawn)), f"column {column}: sessions or workers draw alike"
    augmented = [value for process in (first, second) for epoch in process["augmented"] for value in epoch]
    assert len(set(augmented)) == len(augmented), "each epoch of each worker has its own noise"
