"""Runs that fail, that are stopped and go on, with text and with two parameter servers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.light import LIGHT
from tests.runtime import programs
from tests.runtime.machine_room import MachineRoom, free_ports, lines, until
from tests.runtime.test_training import DECLARATION, DIGITS, assignment

pytestmark = pytest.mark.training

REVERSE = """
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
    hparams.num_hidden_layers = 1
    hparams.hidden_size = 32
    hparams.filter_size = 64
    hparams.batch_size = 256
    return hparams
"""
TEXT = {
    **DECLARATION,
    "model": "transformer",
    "hparams_set": "transformer_bits",
    "problem": "reverse_bits",
    "train_steps": 100_000,
    "pace_seconds": 0.2,
    "wire": "bf16",
    "damping": "staleness",
    "checkpoint_steps": None,
    "checkpoint_auto": True,
    "ps_shards": 2,
}


def events(room: MachineRoom, kind: str) -> list[dict[str, Any]]:
    return [line for line in lines(room.run_folder("ps-0") / "events.jsonl") if line["kind"] == kind]


def test_an_error_in_the_cell_fails_the_run_with_its_line(room: MachineRoom):
    room.start_agent("ps-0")
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    cell = DIGITS.replace("        digits = load_digits()", "        digits = load_digitz()")
    line = next(number for number, text in enumerate(cell.splitlines(), 2) if "load_digitz()" in text)
    room.put("ps-0", DECLARATION, cell)
    room.say("ps-0", assignment("ps-0", [server], chief))
    failed = until(lambda: events(room, "train.failed"), "the failure")[0]
    assert failed["reason"].startswith(f"cell line {line}: NameError: name 'load_digitz' is not defined")
    exited = until(lambda: room.reports("ps-0", "process.exited"), "the end")
    assert exited[0]["code"] == 65
    assert len(room.reports("ps-0", "process.started")) == 1


@pytest.mark.parametrize(
    ("cell", "declared"),
    [pytest.param(DIGITS, LIGHT, id="digits"), pytest.param(REVERSE, {}, id="text", marks=pytest.mark.nightly)],
)
def test_a_run_on_two_parameter_servers_survives_the_second_one_and_a_stop(
    room: MachineRoom, cell: str, declared: dict[str, Any]
):
    servers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    chief = f"127.0.0.1:{free_ports(1)[0]}"
    names = ("ps-0", "ps-1", "worker-1")

    def start(**changes: Any) -> None:
        for name in names:
            room.put(name, {**TEXT, **declared, **changes}, cell)
            room.say(name, assignment(name, servers, chief))

    for name in names:
        room.start_agent(name)
        room.say(name, {"do": "warm", "run": "run-1", "role": name.partition("-")[0], "name": name})
    start()
    until(lambda: events(room, "train.progress"), "steps")
    room.say("ps-0", {"do": "save", "run": "run-1"})
    saved = until(lambda: events(room, "train.checkpoint")[1:], "a checkpoint")[0]
    assert 30 <= saved["next_seconds"] <= 600

    os.kill(room.pids("ps-1")["ps-1"], signal.SIGKILL)
    killed = room.reports("worker-1")  # the worker's process must stay the same
    metrics = room.run_folder("ps-0") / "metrics.jsonl"
    before = lines(metrics)[-1]
    back = until(lambda: room.reports("ps-1", "process.started")[1:], "another process of ps-1")[0]["time"]
    since = until(
        lambda: [line for line in lines(metrics) if line["time"] > back and line["steps"] > 2][1:],
        "steps after ps-1 came back",
    )
    restored = since[0]["step"] - since[0]["steps"]
    assert saved["step"] <= restored <= before["step"] + 40  # the old variables are gone, but for the checkpoint
    assert room.reports("worker-1") == killed

    step = lines(metrics)[-1]["step"]
    for name in ("worker-1", "ps-0", "ps-1"):
        assert room.say(name, {"do": "stop", "run": "run-1"})["ok"]
    last = events(room, "train.checkpoint")[-1]
    assert last["step"] >= step
    assert events(room, "worker.left")[-1]["reason"] == "told to leave"

    records = (room.run_folder("ps-0") / "data").rename(room.root("ps-0") / "records")
    judged = {"keep_best": "accuracy", "stop_when": "accuracy no better in 3 evaluations"}
    start(train_steps=last["step"] + 10, pace_seconds=None, data_dir=str(records), **judged)
    finished = until(lambda: events(room, "train.finished") or events(room, "train.failed"), "the end")[0]
    assert finished["step"] >= last["step"] + 10
    assert events(room, "train.started")[-1]["step"] == last["step"]
    evaluated = events(room, "train.evaluated")[0]
    assert 0 <= evaluated["metrics"]["accuracy"] <= 1
    best = events(room, "train.best")[-1]
    assert (best["step"], best["value"]) == (evaluated["step"], evaluated["metrics"]["accuracy"])

    if cell == REVERSE:
        # What is left can be asked for the logits of targets, given the inputs.
        given, answers = room.root("ps-0") / "inputs.npz", room.root("ps-0") / "outputs.npz"
        bits = numpy.array([[2, 3, 3, 1], [3, 2, 1, 0]])
        numpy.savez(given, inputs=bits, targets=bits[:, ::-1])
        words = "--run", room.run_folder("ps-0"), "predict", given, answers
        assert json.loads(programs.run("transient_magics.runtime.programs.serve", *words)) == {"step": finished["step"]}
        logits = numpy.load(answers)["logits"]
        assert logits.shape[:2] == (2, 4)
        assert numpy.isfinite(logits).all()


WRONG = DIGITS + "\nresnet_digits().nonsense()\n"


@pytest.mark.parametrize(
    ("changes", "cell", "error"),
    [
        ({}, DIGITS, None),
        ({"batching": "dynamic", "keep_best": "accuracy", "eval_steps": 9}, DIGITS, None),
        (
            {"keep_best": "max acuracy", "eval_steps": 9},
            DIGITS,
            "evaluations of this model have no metric 'acuracy' (--keep-best)",
        ),
        ({"model": "resnett"}, DIGITS, "Did you mean resnet"),
        ({}, WRONG, f"cell line {1 + len(WRONG.splitlines())}: AttributeError"),  # the line of the magic is the first
    ],
)
def test_a_run_is_checked_without_data_or_cluster(
    tmp_path: Path, changes: dict[str, Any], cell: str, error: str | None
):
    (tmp_path / "run.json").write_text(json.dumps({**DECLARATION, **LIGHT, **changes}), encoding="utf-8")
    (tmp_path / "cell.py").write_text(cell, encoding="utf-8")
    program = "transient_magics.runtime.programs.check", "--run", tmp_path
    answer = json.loads(programs.run(*program, code=int(error is not None)))
    assert answer["ok"] is (error is None)
    if error is not None:
        assert error in answer["error"]
