"""A worker that joins a run whose graph is written already, and what it does when that graph is of no use to it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.light import LIGHT
from tests.runtime import programs
from tests.runtime.machine_room import MachineRoom, free_ports, until
from tests.runtime.test_other_runs import REVERSE, events
from tests.runtime.test_training import DECLARATION, DIGITS, assignment
from transient_magics.runtime.training.graph.file import GraphFile

pytestmark = pytest.mark.training

DECLARED = {**DECLARATION, **LIGHT, "train_steps": 100_000, "pace_seconds": 0.2}

# The file that it reads beside the records lives as long as the process that named it.
ELSEWHERE = DIGITS.replace(
    "    def preprocess_example",
    """    def dataset(self, *args, **kwargs):
        place = os.path.join(tempfile.mkdtemp(), "beside")
        with open(place, "w") as file:
            file.write("1")
        atexit.register(os.remove, place)
        found = super().dataset(*args, **kwargs)
        beside = tf.data.TextLineDataset(place).repeat()
        return tf.data.Dataset.zip((found, beside)).map(lambda example, line: example)

    def preprocess_example""",
).replace("import numpy as np", "import atexit, os, tempfile\n\nimport numpy as np\nimport tensorflow.compat.v1 as tf")


@pytest.fixture
def joining(room: MachineRoom) -> Joining:
    return Joining(room)


class Joining:
    """A parameter server that has its records, and a worker that comes when the graph is there."""

    def __init__(self, room: MachineRoom) -> None:
        self.room = room
        self._server, self._chief = (f"127.0.0.1:{port}" for port in free_ports(2))

    def begin(self, cell: str, **declared: Any) -> Path:
        """The place of the graph, once the records are made."""
        for name in ("ps-0", "worker-1"):
            self.room.start_agent(name)
            self.room.put(name, {**DECLARED, **declared}, cell)
        self.room.say("ps-0", assignment("ps-0", [self._server], self._chief))
        folder = self.room.run_folder("ps-0")
        until((folder / "data" / ".complete").exists, "the records")
        (folder / "graphs").mkdir(exist_ok=True)
        return folder / "graphs" / "cpu-1.graph"

    def come(self) -> str:
        """Let the worker come; its log, once it has made a step."""
        self.room.say("worker-1", assignment("worker-1", [self._server], self._chief))
        until(lambda: events(self.room, "worker.joined"), "its first step")
        assert len(self.room.reports("worker-1", "process.started")) == 1
        assert not events(self.room, "train.failed")
        return (self.room.run_folder("worker-1") / "logs" / "worker-1.log").read_text(encoding="utf-8")


def write_graph(folder: Path) -> None:
    programs.run("transient_magics.runtime.programs.shared_graph", "--run", folder, "--servers", 1)


def laps(log: str) -> dict[str, float]:
    told = next(line for line in log.splitlines() if "first gradient after" in line).rpartition(": ")[2]
    return {name: float(seconds) for name, _, seconds in (lap.rpartition(" ") for lap in told.split(", "))}


TEXT = {"model": "transformer", "hparams_set": "transformer_bits", "problem": "reverse_bits", "batching": "dynamic"}
TEXT |= {"hparams": ""}


@pytest.mark.parametrize(
    ("cell", "declared"),
    [
        pytest.param(DIGITS, {"wire": "bf16", "most_workers": 1}, id="images, alone", marks=pytest.mark.nightly),
        pytest.param(DIGITS, {"mode": "sync"}, id="synchronous"),
        pytest.param(REVERSE, TEXT, id="text", marks=pytest.mark.nightly),
    ],
)
def test_it_reads_the_graph_and_runs_none_of_the_users_code(joining: Joining, cell: str, declared: dict[str, Any]):
    cell += """\nimport sys\nif '"role":"worker"' in ' '.join(sys.argv): raise SystemExit(1)\n"""
    graph = joining.begin(cell, **declared)
    write_graph(graph.parent.parent)
    assert {"tensorflow", "graph (read)", "session", "step"} <= laps(joining.come()).keys()


@pytest.mark.nightly
def test_with_the_graph_of_another_tensorflow_it_builds_its_own(joining: Joining):
    other = {"tensorflow": "1.15.0", "elements": {}, "features": {}, "examples": {}, "directory": "/"}
    joining.begin(DIGITS).write_text(json.dumps(other), encoding="utf-8")
    log = joining.come()
    assert "the graph of the run cannot be used" in log
    assert "graph" in laps(log)


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[]"])
def test_a_file_without_a_graph_is_none(tmp_path: Path, content: bytes):
    (tmp_path / "cpu.graph").write_bytes(content)
    with pytest.raises(ValueError, match=r".+"):
        GraphFile.read(tmp_path / "cpu.graph")


@pytest.mark.nightly
def test_where_the_examples_of_the_graph_cannot_be_read_it_builds_its_own(joining: Joining):
    graph = joining.begin(ELSEWHERE)
    # In a process that ends as any does, and takes with it what it made.
    command = [
        sys.executable,
        "-m",
        "transient_magics.runtime.programs.shared_graph",
        "--run",
        graph.parents[1],
        "--servers",
        "1",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    header: dict[str, Any] = json.loads(graph.read_bytes().partition(b"\n")[0])
    assert header["examples"], "nothing tells that they are read from somewhere else, too"
    log = joining.come()
    assert "the graph of the run cannot be used and is built here: the examples cannot be read: NotFoundError" in log
    assert "graph" in laps(log)
