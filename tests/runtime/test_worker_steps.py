"""The values that a worker feeds to its steps, without TensorFlow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transient_magics.protocol.agent_commands import Assignment
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.role import Stopwatch
from transient_magics.runtime.tf import placement
from transient_magics.runtime.training.examples import Examples, Source
from transient_magics.runtime.training.graph.worker import WorkerGraph
from transient_magics.runtime.worker import session
from transient_magics.runtime.worker.chief_link import ChiefLink
from transient_magics.runtime.worker.gpu import Pace
from transient_magics.runtime.worker.graph import FinishedGraph, GraphMaker

SPEC = RunSpec("run-1", 100, token="secret", batching="static", noise_share=0.0)
CHIEF = "127.0.0.1:1"
ASSIGNMENT = Assignment("run-1", "worker", "worker-0", "127.0.0.1", (CHIEF,), CHIEF)
OF_SYNCHRONOUS_STEPS_AND_OTHER_CHIEFS = ("round", "seen", "current_round", "current_step", "checkpoint", "saved")
OF_A_WORKER_ALONE = ("pull", "push", "number")
OF_EPOCHS = ("metrics",)


def named_graph() -> WorkerGraph:
    """Return the graph of an asynchronous worker; each tensor is its own name."""
    absent = {*OF_SYNCHRONOUS_STEPS_AND_OTHER_CHIEFS, *OF_A_WORKER_ALONE, *OF_EPOCHS}
    return WorkerGraph(**{field.name: None if field.name in absent else field.name for field in fields(WorkerGraph)})


class Session:
    """A session that records what each step is fed with; `after_step` is called with the number of steps so far.

    `step` is the global step of the run.
    """

    def __init__(self, after_step: Callable[[int], None], step: int = 0) -> None:
        self.fed: list[dict[Any, Any]] = []
        self.step = step
        self._after_step = after_step

    def run(self, fetches: Any, feeds: dict[Any, Any] | None = None) -> Any:
        if fetches == "missing":
            return []
        if fetches == "before":
            return self.step
        if feeds is None:
            return None
        self.fed.append(feeds)
        before, after = self.step, self.step + 1
        self.step = after
        self._after_step(len(self.fed))
        loss, examples, weight = 0.5, 24, 24.0
        return loss, before, after, examples, weight, [time.time()] * 4, [], None


def replace_tensorflow(monkeypatch: pytest.MonkeyPatch, opened: Session) -> None:
    """Let a worker train in the session `opened`, on mini-batches of 32 examples."""
    errors = SimpleNamespace(OutOfRangeError=EOFError, ResourceExhaustedError=MemoryError)
    server = SimpleNamespace(target="")
    tensorflow = SimpleNamespace(
        errors=errors, train=SimpleNamespace(Server=lambda *_, **__: server), Session=lambda *_, **__: opened
    )
    made = FinishedGraph("graph", named_graph(), Source({}, 32, "begin", {}, "enqueue", "close", "wanted"))
    monkeypatch.setattr(session, "tensorflow", lambda: tensorflow)
    monkeypatch.setattr(session, "answer", lambda _: True)
    monkeypatch.setattr(placement, "plain_config", lambda *_: None)
    monkeypatch.setattr(placement, "worker_config", lambda *_: None)
    monkeypatch.setattr(placement, "transient_errors", lambda: (ConnectionError,))
    monkeypatch.setattr(placement, "close", lambda *_: None)
    monkeypatch.setattr(GraphMaker, "make", lambda *_: made)
    monkeypatch.setattr(Examples, "start", lambda *_: None)
    monkeypatch.setattr(Pace, "start", lambda _: None)


def train(training: session.Training) -> None:
    """Train until the worker stops, which must take less than ten seconds."""
    training.listen()
    training.build(0)
    thread = threading.Thread(target=training.run, daemon=True)
    thread.start()
    thread.join(10)
    stopped = not thread.is_alive()
    training.stop.set()
    assert stopped, "the worker still steps or waits"


def test_a_gradient_has_the_share_that_the_chief_gave_with_the_mini_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = ChiefLink(CHIEF, SPEC.token, "worker-0", "")
    training = session.Training(RunFolder(tmp_path), SPEC, ASSIGNMENT, link, Stopwatch(time.time()))
    given = [(24, 0.75), (40, 1.25)]

    def after_step(_: int) -> None:
        if given:
            link.batch = given.pop(0)
        else:
            training.stop.set()

    opened = Session(after_step)
    replace_tensorflow(monkeypatch, opened)
    train(training)
    assert [(feeds["wanted"], feeds["share"]) for feeds in opened.fed] == [(32, 1.0), (24, 0.75), (40, 1.25)]


def test_a_worker_steps_again_if_the_run_loses_its_last_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a parameter server is lost after the last step, before the chief has read that step."""
    monkeypatch.setattr(session, "_END_POLL_SECONDS", 0.01)
    link = ChiefLink(CHIEF, SPEC.token, "worker-0", "")
    training = session.Training(RunFolder(tmp_path), SPEC, ASSIGNMENT, link, Stopwatch(time.time()))

    def after_step(steps: int) -> None:
        if steps == 1:
            opened.step = 98  # of the checkpoint that the chief restored
        if steps == 3:
            threading.Timer(0.1, training.stop.set).start()

    opened = Session(after_step, step=99)
    replace_tensorflow(monkeypatch, opened)
    train(training)
    assert (opened.step, len(opened.fed)) == (100, 3), "it makes the lost steps again, and none beyond the end"


def test_a_worker_that_waits_at_the_end_of_an_epoch_writes_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = ChiefLink(CHIEF, SPEC.token, "worker-0", "")
    link.limit = 2
    training = session.Training(RunFolder(tmp_path), SPEC, ASSIGNMENT, link, Stopwatch(time.time()))
    saved_at: list[int] = []

    def save(_: object) -> None:
        link.save_requested.clear()
        saved_at.append(opened.step)
        training.stop.set()

    def after_step(steps: int) -> None:
        if steps == 2:
            threading.Timer(0.1, link.save_requested.set).start()

    opened = Session(after_step)
    replace_tensorflow(monkeypatch, opened)
    monkeypatch.setattr(training, "_save", save)
    train(training)
    assert saved_at == [2]


def test_a_session_that_is_lost_without_a_message_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = ChiefLink(CHIEF, SPEC.token, "worker-0", "")
    training = session.Training(RunFolder(tmp_path), SPEC, ASSIGNMENT, link, Stopwatch(time.time()))

    def after_step(steps: int) -> None:
        if steps == 1:
            raise ConnectionError
        training.stop.set()

    opened = Session(after_step)
    replace_tensorflow(monkeypatch, opened)
    train(training)
    assert len(opened.fed) == 2


def test_noise_is_measured_also_after_the_graph_was_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a file of examples cannot be read after some steps."""
    link = ChiefLink(CHIEF, SPEC.token, "worker-0", "")
    training = session.Training(RunFolder(tmp_path), SPEC, ASSIGNMENT, link, Stopwatch(time.time()))

    def after_step(steps: int) -> None:
        if steps == 2:
            raise EOFError
        if steps == 3:
            training.stop.set()

    opened = Session(after_step)
    replace_tensorflow(monkeypatch, opened)
    monkeypatch.setattr(GraphMaker, "examples_from_file", True)
    monkeypatch.setattr(GraphMaker, "give_up_file", lambda *_: None)
    begun: list[session.NoiseProbe] = []
    monkeypatch.setattr(session.NoiseProbe, "begin", lambda probe, _: begun.append(probe))
    training.listen()
    training.build(0)
    first = training._noise
    training.run()
    assert first is not training._noise
    assert begun == [first, training._noise]
