"""A real run through every fault: one parameter server, two paced workers, and what happens to them on the way.

One story is played once; the tests look at what it left behind.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.light import LIGHT
from tests.runtime import programs
from tests.runtime.machine_room import PROJECT, MachineRoom, free_ports, lines, until
from transient_magics import client
from transient_magics.protocol.step_parts import step_parts

pytestmark = pytest.mark.training

DIGITS = (PROJECT / "templates" / "digits.py").read_text(encoding="utf-8")
DECLARATION: dict[str, Any] = {
    "name": "run-1",
    "model": "resnet",
    "hparams_set": "resnet_digits",
    "problem": "image_digits",
    "train_steps": 900,
    "hparams": "",
    "data_dir": None,
    "checkpoint_steps": 100,
    "checkpoint_seconds": 600,
    "mode": "async",
    "batching": "uniform",
    "lr_policy": "active",
    "max_workers": 4,
    "wire": "fp32",
    "pace_seconds": 0.15,
    "notice_seconds": 6.0,
    "line_offset": 1,
    "threads": 1,
    "token": "0123456789abcdef",
}


SERVING = """
import sys
sys.modules["tensor2tensor"] = sys.modules["transient_magics"] = None
import numpy, tensorflow
model = tensorflow.saved_model.load(sys.argv[1]).signatures["serving_default"]
numpy.save(sys.argv[3], model(inputs=tensorflow.constant(numpy.load(sys.argv[2])))["scores"])
"""


@dataclass
class Story:
    """What the run left behind, and what was noted on the way."""

    room: MachineRoom
    marks: dict[str, Any] = field(default_factory=dict)
    run: str = "run-1"

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [
            line for line in lines(self.room.run_folder("ps-0", self.run) / "events.jsonl") if line["kind"] in kinds
        ]

    def metrics(self) -> list[dict[str, Any]]:
        return lines(self.room.run_folder("ps-0", self.run) / "metrics.jsonl")

    def wait(self, what: str, *kinds: str, **values: Any) -> dict[str, Any]:
        """Wait for one more event of `kinds` with these values than there was when it was last waited for."""
        key = f"{kinds}{sorted(values.items())}"
        seen = self.marks.get(key, 0)

        def more() -> list[dict[str, Any]]:
            found = [line for line in self.events(*kinds) if all(line.get(k) == v for k, v in values.items())]
            return found if len(found) > seen else []

        found = until(more, what)
        self.marks[key] = len(found)
        return found[-1]


def assignment(name: str, servers: list[str], chief: str, run: str = "run-1") -> dict[str, Any]:
    role, _, index = name.partition("-")
    given = {"do": "assign", "run": run, "role": role, "name": name, "address": "127.0.0.1", "ps": servers}
    return {**given, "chief": chief, "index": int(index) if role == "ps" else 0}


@pytest.fixture(scope="module")
def story(shared_room: MachineRoom) -> Story:
    return play(shared_room)


def shut_down(*processes: int) -> None:
    """As systemd tells what an SSH session left on a VM that is taken."""
    for process in processes:
        for told in (signal.SIGTERM, signal.SIGHUP):
            os.kill(process, told)


DECLARED = {
    **DECLARATION,
    **LIGHT,
    "train_steps": 600,
    "pace_seconds": 0.25,
    "alarm_below": 0.75,
    "alarm_after": 0.0,
    "keep": 3,
}


def play(room: MachineRoom) -> Story:
    story = Story(room)
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    for name in ("ps-0", "worker-1", "worker-2"):
        room.start_agent(name)
        room.put(name, DECLARED, DIGITS)
        if name != "worker-2":  # two were waiting for their role, one starts from nothing
            room.say(name, {"do": "warm", "run": "run-1", "role": name.partition("-")[0], "name": name})
        room.say(name, assignment(name, [server], chief))
    for name in ("worker-1", "worker-2"):
        story.wait(f"{name} joined", "worker.joined", worker=name)

    # Somebody asks for a checkpoint, twice.
    for _ in range(2):
        saved = story.events("train.checkpoint")[-1]["step"]
        until(lambda saved=saved: any(line["step"] > saved for line in story.metrics()), "steps since it was saved")
        saves = len(story.events("train.checkpoint"))
        room.say("ps-0", {"do": "save", "run": "run-1"})
        until(lambda saves=saves: len(story.events("train.checkpoint")) > saves, "a checkpoint on request")

    # A worker becomes slow, and is as fast as before.
    # The alarm learns what both can do in a window of 3 s; seconds of saving, many on a busy machine, do not count.
    both = story.events("train.checkpoint")[-1]["time"] + 7e9
    seen = lambda: {line["worker"] for line in story.metrics() if line["time"] > both}  # noqa: E731
    until(lambda: len(seen()) == 2, "the alarm knows what both can do")
    room.slow_down("worker-2", 10)
    slow = story.wait("the alarm", "train.slow", bottleneck="worker", worker="worker-2")
    room.slow_down("worker-2", 1)
    later = lambda: [line for line in story.events("train.recovered") if line["time"] > slow["time"]]  # noqa: E731
    story.marks["slow"], story.marks["recovered"] = slow, until(later, "it is taken back")[0]

    # The examples of the dev split are away for a while.
    away = [(path, path.with_name(f".{path.name}")) for path in (room.run_folder("ps-0") / "data").glob("*-dev-*")]
    for here, there in away:
        here.rename(there)
    room.say("ps-0", {"do": "evaluate", "run": "run-1"})
    story.marks["unevaluated"] = story.wait("a failed evaluation", "train.unevaluated")
    for here, there in away:
        there.rename(here)

    # A VM hangs and comes back.
    frozen = room.pids("worker-2")["worker-2"]
    story.marks["frozen"] = time.time_ns()
    os.kill(frozen, signal.SIGSTOP)
    lost = story.wait("the frozen worker is lost", "worker.left", worker="worker-2", reason="lost")["time"]
    alone = lambda: [line for line in story.metrics() if line["time"] > lost + 2e9]  # noqa: E731
    story.marks["alone"] = until(alone, "the other one trains alone")
    os.kill(frozen, signal.SIGCONT)
    story.wait("the thawed worker is back", "worker.joined", worker="worker-2")
    story.marks["thawed"] = back = time.time_ns()
    again = lambda: [line for line in story.metrics() if line["time"] > back + 3e9]  # noqa: E731
    until(lambda: len({line["worker"] for line in again()}) == 2, "both train")
    story.marks["both again"] = again()

    # The parameter server dies, and its newest checkpoint is damaged; every agent dies too.
    for name in ("ps-0", "worker-1", "worker-2"):
        room.kill_agent(name)
    os.kill(
        json.loads((room.run_folder("ps-0") / "logs" / "ps-0.pid").read_text(encoding="utf-8"))["pid"], signal.SIGKILL
    )
    saved = story.events("train.checkpoint")
    damaged = room.run_folder("ps-0") / f"{saved[-1]['path']}.data-00000-of-00001"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    story.marks["damaged"], story.marks["whole"] = saved[-1]["step"], saved[-2]["step"]
    workers = {name: json.loads((room.run_folder(name) / "logs" / f"{name}.pid").read_text(encoding="utf-8"))["pid"]
               for name in ("worker-1", "worker-2")}  # fmt: skip
    for name in ("ps-0", "worker-1", "worker-2"):
        room.start_agent(name)
    story.marks["started"] = len(story.events("train.started"))
    restarted = until(lambda: story.events("train.started")[1:], "training restarted")[-1]
    story.marks["restored"] = restarted["step"]
    for name in workers:
        after = restarted["time"]
        stepping = lambda name=name, after=after: [  # noqa: E731
            line for line in story.metrics() if line["worker"] == name and line["time"] > after
        ]
        story.marks[f"{name} resumed"] = (until(stepping, f"{name} steps again")[0]["time"] - after) / 1e9
    story.marks["same processes"] = workers == {name: room.pids(name)[name] for name in workers}

    # One worker is revoked, and its VM shuts down; the other is killed, whose successor is not paced and ends the run.
    story.marks["flipped"] = room.preempt("worker-1")
    shut_down(room.pids("worker-1")["worker-1"])
    revoked = story.wait("the revoked worker left", "worker.left", worker="worker-1", reason="revoked")["time"]
    left = lambda: [line for line in story.metrics() if line["time"] > revoked + 2e9]  # noqa: E731
    story.marks["after the revocation"] = until(left, "the one that is left trains")
    graph = room.run_folder("ps-0") / "graphs" / "cpu-1.graph"
    until(graph.exists, "the graph for those who join later")
    room.put("worker-2", {**DECLARED, "pace_seconds": None}, DIGITS)
    os.kill(room.pids("worker-2")["worker-2"], signal.SIGKILL)
    story.wait("the killed worker is lost", "worker.left", worker="worker-2", reason="lost")
    story.wait("its successor", "worker.joined", worker="worker-2")
    story.wait("the end", "train.finished", "train.failed")
    until(lambda: not room.pids("ps-0") and not room.pids("worker-2"), "every role has ended")
    return story


def test_the_run_ends_with_a_model_that_reads_digits(story: Story):
    finished = story.events("train.finished")[0]
    assert finished["step"] >= DECLARED["train_steps"]
    assert finished["seconds"] > 10
    evaluated = story.events("train.evaluated")[0]
    assert evaluated["step"] == finished["step"]
    assert evaluated["metrics"]["accuracy"] > 0.9
    assert evaluated["metrics"]["loss"] < 1.0
    last = story.events("train.checkpoint")[-1]
    assert last["path"] == finished["checkpoint"]
    files = story.room.run_folder("ps-0")
    assert last["bytes"] == sum(path.stat().st_size for path in files.glob(f"{last['path']}.*"))
    exits = story.room.reports("ps-0", "process.exited")
    assert exits[-1]["code"] == 0


def test_a_worker_that_becomes_slow_is_named_until_all_is_well(story: Story):
    slow, recovered = story.marks["slow"], story.marks["recovered"]
    assert 0 < slow["speed"] < DECLARED["alarm_below"] * slow["expected"]
    assert recovered["speed"] >= DECLARED["alarm_below"] * recovered["expected"] > 0


def test_an_evaluation_that_fails_is_told_and_harms_nothing(story: Story):
    failed = story.marks["unevaluated"]
    assert failed["step"] in [line["step"] for line in story.events("train.checkpoint")]
    assert "image_digits-dev" in failed["reason"]
    after = [line["step"] for line in story.metrics() if line["time"] > failed["time"]]
    assert after
    assert after[0] > failed["step"], "training went on"
    assert len(story.events("train.evaluated")) == 1, "the next one was evaluated"


def test_the_learning_rate_follows_those_who_train(story: Story):
    def divisors(rows: list[dict[str, Any]]) -> set[tuple[str, float]]:
        return {(line["worker"], line["learning_rate_divisor"]) for line in rows}

    both = {("worker-1", 1.414214), ("worker-2", 1.414214)}
    begin, end = (story.marks[name]["time"] for name in ("slow", "recovered"))
    assert divisors([line for line in story.metrics() if begin < line["time"] < end]) == both
    assert divisors(story.marks["alone"]) == {("worker-1", 1.0)}
    # Back again: from a while after it joined until the parameter server died.
    assert divisors(story.marks["both again"]) == both
    assert divisors(story.marks["after the revocation"]) == {("worker-2", 1.0)}


def test_gradients_of_slow_workers_come_late_however_fast_this_machine_is(story: Story):
    late = [line["staleness"] for line in story.marks["both again"] if line["steps"] > 1]
    assert statistics.fmean(late) > 0.6, "each of two alike makes a step while the other one computes"


def test_checkpoints_are_few_and_the_state_file_names_the_last(story: Story):
    folder = story.room.run_folder("ps-0") / "checkpoints"
    last = story.events("train.finished")[0]["checkpoint"].removeprefix("checkpoints/")
    assert f'model_checkpoint_path: "{last}"' in (folder / "checkpoint").read_text(encoding="utf-8")
    assert len(list(folder.glob("model.ckpt-*.index"))) == DECLARED["keep"]


def test_numbers_are_never_used_twice(story: Story):
    joined = story.events("worker.joined")
    holders: dict[int, set[str]] = {}
    for line in joined:
        holders.setdefault(line["number"], set()).add(line["worker"])
    assert all(len(names) == 1 for names in holders.values())
    assert joined[-1]["worker"] == "worker-2"
    assert joined[-1]["number"] > 1


def test_what_the_parameter_server_kept_of_those_who_are_gone_is_released(story: Story):
    log = (story.room.run_folder("ps-0") / "logs" / "ps-0.log").read_text(encoding="utf-8")
    released = {int(number) for number in re.findall(r"released its data of worker number (\d+)", log)}
    gone = {line["number"] for line in story.events("worker.left") if line["reason"] in ("revoked", "lost")}
    assert gone
    assert gone <= released
    assert "could not close the session" not in log


def test_nobody_else_notices_a_frozen_worker(story: Story):
    times = [
        line["time"]
        for line in story.metrics()
        if line["worker"] == "worker-1" and story.marks["frozen"] < line["time"] < story.marks["thawed"]
    ]
    gaps = [(after - before) / 1e9 for before, after in itertools.pairwise(times)]
    assert len(times) >= 4
    assert max(gaps) < (story.marks["thawed"] - story.marks["frozen"]) / 2e9, "half the time that it was away"


def test_a_damaged_checkpoint_is_passed_over_when_the_parameter_server_restarts(story: Story):
    assert 0 < story.marks["whole"] < story.marks["damaged"]
    # Should the chief lose its own session right then, it asks for the step once more, and somebody has made one.
    assert story.marks["whole"] <= story.marks["restored"] <= story.marks["whole"] + 2
    assert list((story.room.run_folder("ps-0") / "checkpoints").glob("broken-*"))


def test_workers_outlive_the_parameter_server_and_all_agents(story: Story):
    assert story.marks["same processes"]
    assert max(story.marks["worker-1 resumed"], story.marks["worker-2 resumed"]) < 120


def test_a_revoked_worker_is_noticed_at_once_trains_on_and_ends_with_zero(story: Story):
    notice = story.room.reports("worker-1", "vm.preemption_notice")[0]
    assert (notice["time"] - story.marks["flipped"]) / 1e9 < 30
    assert story.room.reports("worker-1", "process.exited")[-1]["code"] == 0
    (left,) = [line for line in story.events("worker.left") if line["reason"] == "revoked"]
    assert 2 < (left["time"] - story.marks["flipped"]) / 1e9 < 60
    under_notice = [line for line in story.metrics() if story.marks["flipped"] + 1e9 < line["time"] <= left["time"]]
    assert sum(line["steps"] for line in under_notice if line["worker"] == "worker-1") > 1, "not just the one it was at"


def test_progress_is_sparse_and_metrics_are_per_second(story: Story):
    times = [line["time"] / 1e9 for line in story.events("train.progress")]
    assert len(times) >= 3
    assert len(times) <= 3 + (times[-1] - times[0]) / 8
    line = story.metrics()[-1]
    assert set(line) == {
        "time",
        "worker",
        "step",
        "steps",
        "samples",
        "loss",
        "batch_size",
        "compute_seconds",
        "wait_seconds",
        "gap_seconds",
        "staleness",
        "learning_rate_divisor",
        "split",
        "server_share",
    }
    assert 0 < line["gap_seconds"] < 60
    for each in story.metrics():
        parts = step_parts(each["split"])
        assert parts is not None
        assert parts.step == pytest.approx(each["compute_seconds"] + each["wait_seconds"], abs=0.002)
    assert 0 <= line["server_share"] <= 1.2
    assert line["batch_size"] == 8
    assert line["samples"] == 8 * line["steps"]


def test_workers_have_the_records_of_the_chief(story: Story):
    def records(name: str) -> dict[str, int]:
        folder: Path = story.room.run_folder(name) / "data"
        return {path.name: path.stat().st_size for path in folder.iterdir() if not path.name.startswith(".")}

    assert records("worker-1") == records("worker-2") == records("ps-0")
    assert len(records("ps-0")) == 5


def test_the_start_of_a_worker_is_told_part_by_part(story: Story):
    log = (story.room.run_folder("worker-1") / "logs" / "worker-1.log").read_text(encoding="utf-8")
    assert "first gradient after" in log
    for part in ("tensorflow", "code", "data", "graph", "session", "step"):
        assert f"{part} " in log


def test_who_joins_later_reads_the_graph_that_the_first_built(story: Story):
    first, later = (
        re.findall(
            r"graph( \(read\))? \d", (story.room.run_folder(name) / "logs" / f"{name}.log").read_text(encoding="utf-8")
        )
        for name in ("worker-1", "worker-2")
    )
    assert first == [""]
    # On a busy machine the chief may take the successor for lost, which then starts once more.
    assert later[:2] == ["", " (read)"]
    assert set(later[1:]) == {" (read)"}


@pytest.mark.usefixtures("_forked")
def test_the_model_is_used_without_a_cluster_and_without_tensor2tensor(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from sklearn.datasets import load_digits

    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "home"))
    run = client.Run("run-1", client.Cluster("gone"))
    shutil.copytree(story.room.run_folder("ps-0"), run.directory)
    digits = load_digits()
    images, truth = numpy.uint8(digits.images[::5] * 255 / 16), digits.target[::5]
    scores = run.predict(images)
    assert isinstance(scores, numpy.ndarray)
    assert scores.shape == (len(images), 10)
    assert numpy.allclose(scores.sum(axis=1), 1, atol=1e-5)
    evaluated = story.events("train.evaluated")[0]["metrics"]["accuracy"]
    assert (scores.argmax(axis=1) == truth).mean() == pytest.approx(evaluated, abs=1e-4)

    model = run.export(tmp_path / "model")
    numpy.save(tmp_path / "images.npy", images[..., None])
    programs.run(SERVING, model, tmp_path / "images.npy", tmp_path / "scores.npy", own=True)
    assert numpy.allclose(numpy.load(tmp_path / "scores.npy"), scores, atol=1e-5)
