"""What the chief decides at the end of epochs: their metrics, the wait for callbacks, learning rate and end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.test_chief_state import Story
from transient_magics.protocol import chief_messages as messages
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.parameter_server.chief import events
from transient_magics.runtime.parameter_server.chief.epochs import FIRST_PATIENCE, LATE, PATIENCE, Epochs
from transient_magics.runtime.parameter_server.chief.progress import Judge
from transient_magics.runtime.parameter_server.chief.state import ChiefState, Phase
from transient_magics.runtime.parameter_server.chief.workers import Roster

EPOCH = 20
FIT = {"train_steps": 60, "epoch_steps": EPOCH, "eval_steps": EPOCH, "checkpoint_steps": None}
TRIAL = {**FIT, "study": "lr"}
"""A trial without callbacks: its workers never wait."""


def line(step: int, **epochs: list[float]) -> dict[str, Any]:
    """Return metrics of one second whose steps belong to epochs `e0`, `e1`, ..."""
    return {"step": step, "steps": 5, "loss": 1.0, "epochs": {name[1:]: sums for name, sums in epochs.items()}}


def begun(**declared: Any) -> Story:
    """Return a run with callbacks and two workers, whose callbacks were called at the beginning."""
    story = Story(**FIT, callbacks=True, **declared)
    story(events.Prepared(0, metrics=2))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story(events.CallbacksReady(messages.Called()))
    for connection in (1, 2):
        story.joins(connection, f"worker-{connection}")
    return story


def proceeds(done: list[Any]) -> list[tuple[int | None, float]]:
    sent = [item.message for item in done if isinstance(item, events.Send)]
    return [(message.limit, message.rate) for message in sent if isinstance(message, messages.Proceed)]


def over(done: list[Any]) -> list[events.EpochOver]:
    return [item for item in done if isinstance(item, events.EpochOver)]


def evaluate(done: list[Any]) -> events.Evaluate:
    (found,) = [item for item in done if isinstance(item, events.Evaluate)]
    return found


def to_the_end(story: Story, epoch: int) -> events.Evaluate:
    """Train to the end of an epoch, counted from 1, and save."""
    end = EPOCH * epoch
    for connection in (1, 2):
        story(events.Heartbeat(connection, line(end)))
    assert events.Save() in story(events.StepSeen(end))
    return evaluate(story(events.SaveDone(end, f"checkpoints/model.ckpt-{end}", 0.1, 10)))


def test_workers_wait_until_the_callbacks_were_called():
    story = Story(**FIT, callbacks=True)
    story(events.Prepared(0, metrics=2))
    assert proceeds(story(events.Joined(1, "worker-1"))) == [(0, 1.0)]
    assert proceeds(story(events.CallbacksReady(messages.Called(rate=0.5)))) == [(EPOCH, 0.5)]
    assert proceeds(story(events.Joined(2, "worker-2"))) == [(EPOCH, 0.5)]


def test_a_trial_without_callbacks_lets_no_worker_wait():
    story = Story(**TRIAL)
    story(events.Prepared(0, metrics=2))
    assert not proceeds(story(events.Joined(1, "worker-1")))
    assert story.state.limit == 60


def test_without_callbacks_workers_wait_for_quick_evaluations_alone():
    story = Story(**FIT)
    story(events.Prepared(0, metrics=2))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    assert proceeds(story(events.Joined(1, "worker-1"))) == [(EPOCH, 1.0)]
    for connection in (1, 2):
        story.joins(connection, f"worker-{connection}")
    to_the_end(story, 1)
    assert not proceeds(story(events.Tick(), after=PATIENCE)), "its process may have to start first"
    done = story(events.EvaluationDone(20, {"loss": 0.7}, called=messages.Called()))
    assert proceeds(done) == [(40, 1.0), (40, 1.0)]
    to_the_end(story, 2)
    assert proceeds(story(events.Tick(), after=PATIENCE + 0.1)) == [(None, 1.0), (None, 1.0)]
    assert story.state.limit == 60
    assert [item.ended.number for item in over(story(events.EvaluationDone(40, {"loss": 0.6})))] == [1]


def test_a_worker_that_reconnects_after_an_evaluation_that_took_too_long_trains_on():
    story = Story(**FIT)
    story(events.Prepared(0, metrics=2))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    for connection in (1, 2):
        story.joins(connection, f"worker-{connection}")
    to_the_end(story, 1)
    story(events.Disconnected(1))
    assert proceeds(story(events.Tick(), after=FIRST_PATIENCE + 0.1)) == [(None, 1.0)]
    assert proceeds(story(events.Joined(3, "worker-1", number=0))) == [(None, 1.0)], "its limit is that of the epoch"


def test_an_epoch_ends_once_all_workers_have_reported_its_steps():
    story = begun()
    story(events.Heartbeat(1, line(20, e0=[10, 320.0, 12.0])))
    assert events.Save() not in story(events.StepSeen(20)), "worker-2 has made steps that are not reported"
    story(events.Heartbeat(2, line(21, e0=[10, 320.0, 8.0], e1=[1, 32.0, 0.5])))
    assert events.Save() in story(events.StepSeen(21))
    asked = evaluate(story(events.SaveDone(21, "checkpoints/model.ckpt-21", 0.1, 10)))
    assert asked == events.Evaluate(21, events.EndedEpoch(0, 0, 20, (640.0, 20.0)))
    called = messages.Called(logs={"loss": 0.5}, rate=0.1)
    done = story(events.EvaluationDone(21, {"loss": 0.7}, called=called))
    assert over(done) == [events.EpochOver(asked.ended, {"loss": 0.7}, called)]
    assert proceeds(done) == [(40, 0.1), (40, 0.1)]
    assert story.state.rate == 0.1


def test_an_epoch_does_not_wait_for_a_worker_in_a_long_step():
    story = begun()
    story(events.Heartbeat(1, line(20)))
    story(events.StepSeen(20))
    assert events.Save() in story(events.StepSeen(20), after=LATE)


def test_a_checkpoint_that_cannot_be_written_is_tried_again_before_the_epoch_ends():
    story = begun()
    for connection in (1, 2):
        story(events.Heartbeat(connection, line(20)))
    assert events.Save() in story(events.StepSeen(20))
    story(events.SaveFailed("no room"))
    for connection in (1, 2):
        story(events.Heartbeat(connection), after=3)
    assert events.Save() in story(events.StepSeen(20), after=60)


def test_callbacks_end_the_run_after_their_epoch():
    story = begun()
    to_the_end(story, 1)
    why = "the callback EarlyStopping ended it after epoch 1"
    done = story(events.EvaluationDone(20, {"loss": 0.7}, called=messages.Called(stop=why)))
    assert proceeds(done) == [(20, 1.0), (20, 1.0)], "no worker makes another step"
    story(events.StepSeen(20))
    assert story.state.phase is Phase.FINISHING
    for connection in (1, 2):
        story(events.Leaving(connection, "finished"))
    asked = evaluate(story(events.SaveDone(20, "checkpoints/model.ckpt-20", 0.1, 10)))
    assert (asked.ended, asked.last) == (None, True)
    story(events.EvaluationDone(20, {"loss": 0.7}, called=messages.Called()))
    assert story.emitted("train.finished")[0]["reason"] == why


def test_the_last_epoch_ends_with_the_run():
    story = begun()
    for epoch in (1, 2):
        to_the_end(story, epoch)
        story(events.EvaluationDone(EPOCH * epoch, called=messages.Called()))
    story(events.Heartbeat(1, line(60, e2=[20, 640.0, 5.0])))
    story(events.StepSeen(60))
    for connection in (1, 2):
        story(events.Leaving(connection, "finished"))
    asked = evaluate(story(events.SaveDone(60, "checkpoints/model.ckpt-60", 0.1, 10)))
    assert asked == events.Evaluate(60, events.EndedEpoch(2, 2, 60, (640.0, 5.0)), last=True)
    assert [item.ended.number for item in over(story.done)] == [0, 1]


def test_a_callback_that_fails_ends_the_run():
    story = begun()
    to_the_end(story, 1)
    story(events.EvaluationDone(20, called=messages.Called(error="cell line 9: ValueError: no")))
    assert story.emitted("train.failed")[0]["reason"] == "cell line 9: ValueError: no"


def test_a_restarted_chief_continues_with_the_epochs_of_the_one_before():
    first = begun()
    first(events.Heartbeat(1, line(20, e0=[20, 640.0, 20.0])))
    first(events.Heartbeat(2, line(20)))
    first(events.StepSeen(20))
    ended = {"kind": "train.epoch", "epoch": 4, "step": 20, "logs": {}, "rate": 0.25, "stop": ""}
    told = [*first.told, ended]
    spec = RunSpec(**{"name": "run-1", **FIT, "callbacks": True, "first_epoch": 4})
    for known, limit, rate in ((first.told, 0, 1.0), (told, EPOCH, 0.25)):
        epochs = Epochs(spec, known, first.state.to_dict())
        state = ChiefState(spec, {}, 0.0, Roster.after(known), Judge(spec), epochs=epochs)
        state.handle(events.Prepared(20, metrics=2), 0.0)
        assert (state.limit, state.rate) == (limit, rate)
    unreported = Epochs(spec, first.told, first.state.to_dict())
    state = ChiefState(spec, {}, 0.0, Roster.after(first.told), Judge(spec), epochs=unreported)
    state.handle(events.Prepared(20, metrics=2), 0.0)
    assert unreported.ending(20, last=False) == events.EndedEpoch(0, 4, 20, (640.0, 20.0))


def test_a_restarted_chief_counts_no_step_twice():
    first = begun()
    first(events.Heartbeat(1, line(15, e0=[15, 480.0, 15.0])))
    first(events.Disconnected(2))  # as each change of the workers, it writes the state
    spec = RunSpec(**{"name": "run-1", **FIT, "callbacks": True})
    epochs = Epochs(spec, first.told, first.state.to_dict())
    state = ChiefState(spec, {}, 0.0, Roster.after(first.told), Judge(spec), epochs=epochs)
    state.handle(events.Prepared(10, metrics=2), 0.0)
    state.handle(events.CallbacksReady(messages.Called()), 0.0)
    state.handle(events.Joined(1, "worker-1", number=0), 0.0)
    state.handle(events.Heartbeat(1, line(20, e0=[10, 320.0, 10.0])), 0.0)
    assert epochs.ending(20, last=False) == events.EndedEpoch(0, 0, 20, (320.0, 10.0))


def test_without_callbacks_epochs_are_reported_in_order_with_their_sums():
    story = Story(**TRIAL)
    story(events.Prepared(0, metrics=2))
    story.joins(1, "worker-1")
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story(events.Heartbeat(1, line(45, e0=[20, 640.0, 9.0], e1=[20, 640.0, 7.0], e2=[5, 160.0, 1.0])))
    story(events.StepSeen(45))
    asked = evaluate(story(events.SaveDone(45, "checkpoints/model.ckpt-45", 0.1, 10)))
    assert asked.ended
    assert asked.ended.number == 1
    assert [item.ended.number for item in over(story(events.StepSeen(46), after=LATE))] == [0]
    done = story(events.EvaluationDone(45, {"loss": 0.3}))
    assert [(item.ended.sums, item.metrics) for item in over(done)] == [((640.0, 7.0), {"loss": 0.3})]


def test_sums_are_not_in_the_recorded_metrics():
    story = Story(**FIT)
    story(events.Prepared(0, metrics=2))
    story.joins(1, "worker-1")
    (recorded,) = [
        item.line for item in story(events.Heartbeat(1, line(5, e0=[5, 160.0, 3.0]))) if isinstance(item, events.Record)
    ]
    assert "epochs" not in recorded


@pytest.mark.parametrize(
    "foreign",
    [
        [],
        None,
        {"0": None},
        {"0": []},
        {"0": [1]},
        {"0": [1, 32.0, 0.5, 0.5]},
        {"0": [1, 32.0, "much"]},
        {"0": [1, 32.0, [0.5]]},
        {"first": [1, 32.0, 0.5]},
        {"9" * 5000: [1, 32.0, 0.5]},
        {"-1": [1, 32.0, 0.5]},
        {"3": [1, 32.0, 0.5]},
    ],
    ids=lambda foreign: str(foreign)[:30],
)
def test_foreign_metrics_of_epochs_are_left_out(foreign: Any, capsys: pytest.CaptureFixture[str]) -> None:
    story = begun()
    for _ in range(2):
        story(events.Heartbeat(1, {**line(5), "epochs": foreign}))
    story(events.Heartbeat(2, line(5, e0=[5, 160.0, 4.0])))
    story(events.Heartbeat(2, line(6, e0=[1, 32.0, None])))
    assert story.state.to_dict()["epochs"] == {"0": [192.0, 4.0]}
    assert capsys.readouterr().err.count("\n") == 1, "the log has it once"


def test_metrics_of_an_epoch_that_was_reported_are_not_kept():
    story = begun()
    to_the_end(story, 1)
    story(events.EvaluationDone(20, called=messages.Called()))
    story(events.Heartbeat(1, line(21, e0=[1, 32.0, 0.5], e1=[1, 32.0, 0.25])))
    assert story.state.to_dict()["epochs"] == {"1": [32.0, 0.25]}
