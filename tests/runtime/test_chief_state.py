"""What the chief decides, told as stories of events and instructions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from transient_magics.protocol import chief_messages as messages
from transient_magics.protocol.objective import Best
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.parameter_server.chief import events as events
from transient_magics.runtime.parameter_server.chief.epochs import Epochs
from transient_magics.runtime.parameter_server.chief.progress import Judge
from transient_magics.runtime.parameter_server.chief.stall_turns import Turns
from transient_magics.runtime.parameter_server.chief.state import LAST_SAVE_WITHIN, ChiefState, Phase
from transient_magics.runtime.parameter_server.chief.workers import Member, Roster
from transient_magics.runtime.parameter_server.server_load import Load


class Story:
    """Feeds events to a chief and remembers what came out."""

    def __init__(self, after: Story | None = None, kept: dict[str, Any] | None = None, **declared: Any) -> None:
        """A fresh chief, or one that is started `after` another was killed, which had `kept` that last."""
        usual = {"name": "run-1", "train_steps": 100, "checkpoint_steps": 40, "checkpoint_seconds": None}
        spec = RunSpec(**{**usual, "alarm_below": 0.0, **declared})
        self.told: list[Any] = list(after.told) if after else []
        """Events, also those of the chief before."""
        kept = kept or (after.state.to_dict() if after else {})
        self.state = ChiefState(spec, kept, 0.0, Roster.after(self.told), Judge(spec, self.told))
        self.now = 0.0
        self.done: list[Any] = []

    def __call__(self, event: Any, after: float = 0.1) -> list[Any]:
        self.now += after
        done = self.state.handle(event, self.now)
        self.done += done
        self.told += [{"kind": item.kind, **item.values} for item in done if isinstance(item, events.Emit)]
        return done

    def joins(self, connection: int, name: str, number: int | None = None) -> Any:
        """A worker joins and applies its first gradient; returns what it was told first."""
        answers = self(events.Joined(connection, name, number=number))
        self(events.Stepping(connection, 2.0))
        return next(item.message for item in answers if isinstance(item, events.Send) and item.connection == connection)

    def emitted(self, kind: str) -> list[dict[str, Any]]:
        return [dict(item.values) for item in self.done if isinstance(item, events.Emit) and item.kind == kind]

    def released(self) -> list[int]:
        """The numbers of workers whose sessions were to be released."""
        return [item.number for item in self.done if isinstance(item, events.Release)]


def kinds(done: Iterable[Any]) -> list[str]:
    return [item.kind for item in done if isinstance(item, events.Emit)]


def restarted() -> Story:
    """Of a chief that was restarted while a worker trained, with a checkpoint of step 40."""
    first = Story()
    first(events.Prepared(0))
    first.joins(1, "worker-1")
    second = Story(first)
    second(events.Prepared(40))
    return second


def test_a_worker_counts_from_its_first_gradient_on():
    story = Story()
    story(events.Prepared(0))
    assert "worker.joined" not in kinds(story(events.Joined(1, "worker-1")))
    assert kinds(story(events.Stepping(1, 2.0))) == ["worker.joined"]
    assert story.emitted("worker.joined") == [{"run": "run-1", "worker": "worker-1", "number": 0, "active": 1}]


def test_numbers_are_never_used_twice_even_by_a_restarted_chief():
    first = Story()
    first(events.Prepared(0))
    assert [first.joins(1, "worker-1").number, first.joins(2, "worker-2").number] == [0, 1]
    first(events.Disconnected(2))
    second = Story(first)
    second(events.Prepared(40))
    assert second.joins(7, "worker-3").number == 2


def test_what_dead_workers_leave_on_the_parameter_servers_is_released_but_not_of_one_that_may_thaw():
    story = Story()
    story(events.Prepared(0))
    for connection in range(5):
        story.joins(connection, f"worker-{connection}")
    story(events.Disconnected(0))
    story(events.Leaving(1, "revoked"))
    story(events.Disconnected(1))
    story.joins(12, "worker-2")  # another process of its VM, under the number 5
    story(events.Disconnected(2))
    assert story.released() == [0, 1, 2]
    for connection in (4, 12):
        story(events.Heartbeat(connection), after=4)
    assert "worker.left" in kinds(story(events.Tick(), after=2))  # number 3 is silent for ten seconds
    assert story.released() == [0, 1, 2]
    story(events.Disconnected(3))
    assert story.released() == [0, 1, 2, 3]
    story(events.StepSeen(100))
    story(events.Leaving(4, "finished"))
    assert story.released() == [0, 1, 2, 3], "the parameter servers end too"


def test_a_restarted_chief_releases_those_that_it_never_hears_of():
    second = restarted()
    second(events.Tick(), after=30)
    assert second.released() == [0]


def test_a_worker_that_finds_the_restarted_chief_keeps_its_number_without_joining_twice():
    second = restarted()
    assert second.joins(1, "worker-1", number=0).number == 0
    assert second.emitted("worker.joined") == []


def test_a_worker_that_freezes_and_thaws_counts_again_for_a_restarted_chief():
    second = restarted()
    second.joins(1, "worker-1", number=0)
    second(events.Tick(), after=30)
    assert kinds(second(events.Heartbeat(1))) == ["worker.joined"]
    assert second.emitted("worker.left") == [
        {"run": "run-1", "worker": "worker-1", "number": 0, "active": 0, "reason": "lost"}
    ]


def test_a_worker_that_a_restarted_chief_never_sees_again_is_lost():
    second = restarted()
    second(events.Tick(), after=10)
    assert second.emitted("worker.left") == []
    second(events.Tick(), after=15)
    assert [left["reason"] for left in second.emitted("worker.left")] == ["lost"]


def test_numbers_are_kept_by_what_is_on_disk_alone_too():
    first = Story()
    first(events.Prepared(0))
    first(events.Joined(1, "worker-1"))
    second = Story(kept=first.state.to_dict())  # killed before anybody's first step: no event tells of the number
    assert second.joins(1, "worker-1", number=0).number == 0
    assert second.joins(2, "worker-2", number=0).number == 1, "it is another's"


def test_a_run_that_fails_tells_where_and_sends_everybody_home():
    story = Story()
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    story(events.StepSeen(17))
    done = story(events.Failed("the disk is gone"))
    assert story.emitted("train.failed") == [{"run": "run-1", "reason": "the disk is gone", "step": 17}]
    assert events.Send(1, messages.Leave()) in done
    assert story.state.phase is Phase.ENDED
    assert story(events.Joined(2, "worker-2")) == [events.Send(2, messages.Leave())], "the run is not finished"


def test_a_failed_run_dismisses_workers_that_wait_for_its_next_phase():
    story = Story(phase_steps=(100,))
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    story(events.StepSeen(100))
    assert story(events.Joined(2, "worker-2")) == [], "another phase may follow"
    assert events.Send(2, messages.Leave()) in story(events.Failed("a callback failed"))


def test_nothing_follows_the_end_of_a_run_whose_loss_is_not_finite(monkeypatch: pytest.MonkeyPatch):
    story = Story()
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    monkeypatch.setattr(story.state._batches, "measured", lambda *_: [events.Persist()])
    lines = [{"worker": "worker-1", "step": step, "steps": 1, "loss": None} for step in (1, 2, 3)]
    done = [story(events.Heartbeat(1, line)) for line in lines][-1]
    assert isinstance(done[-1], events.Finish)


def test_a_synchronous_step_waits_for_those_that_train_and_are_heard():
    story = Story(mode="sync")
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    story.joins(2, "worker-2")
    story(events.Joined(3, "worker-3"))
    assert story.state.live(story.now) == 2
    story(events.Heartbeat(2), after=2.4)
    assert story.state.live(story.now + 0.2) == 1, "worker-1 was silent for more than two seconds and a half"
    assert restarted().state.live(0.0) == 0, "it is only remembered"


def test_on_a_vm_that_takes_the_place_of_the_chiefs_no_number_is_used_twice_either():
    first = Story()
    first(events.Prepared(0))
    first.joins(1, "worker-1")
    second = Story(first, {"next_number": 0})  # only the events came with it
    second(events.Prepared(40))
    assert second.joins(5, "worker-2").number == 1
    assert second.joins(6, "worker-1", number=0).number == 0
    assert [joined["number"] for joined in second.emitted("worker.joined")] == [1]


def test_silence_for_five_seconds_is_a_loss_and_a_thawed_worker_goes_on_under_its_number():
    story = Story()
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    story.joins(2, "worker-2")
    for _ in range(12):
        story(events.Heartbeat(1), after=0.5)
        story(events.Tick(), after=0)
    assert story.emitted("worker.left") == [
        {"run": "run-1", "worker": "worker-2", "number": 1, "active": 1, "reason": "lost"}
    ]
    assert kinds(story(events.Heartbeat(2))) == ["worker.joined"]
    assert story.state.active == 2
    for _ in range(12):
        story(events.Heartbeat(1), after=0.5)
        story(events.Tick(), after=0)
    assert [left["worker"] for left in story.emitted("worker.left")] == ["worker-2", "worker-2"], "frozen once more"


def test_a_thawed_worker_is_told_to_leave_when_its_place_is_taken():
    story = Story(max_workers=2)
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    story.joins(2, "worker-2")
    for _ in range(12):
        story(events.Heartbeat(1), after=0.5)
        story(events.Tick(), after=0)
    story.joins(3, "worker-3")
    assert story(events.Heartbeat(2)) == [events.Send(2, messages.Leave())]
    assert story.state.active == 2


def test_an_old_process_of_a_restarted_worker_cannot_push_its_successor_out():
    story = Story()
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    assert story.joins(2, "worker-1").number == 1
    assert story(events.Heartbeat(1)) == [events.Send(1, messages.Leave())]
    assert story(events.Joined(3, "worker-1", number=0)) == [events.Send(3, messages.Leave())]
    assert story.state.active == 1


def test_a_member_that_an_old_process_displaces_is_reported_although_the_old_process_is_dismissed():
    """After a move to another VM, a worker may have two numbers: of the run's events, and of this chief."""
    story = Story()
    story(events.Prepared(0))
    roster = Roster(joined={0: "worker-1", 1: "worker-1"}, training={0: "worker-1"})
    spec = story.state.spec
    story.state.succeed(roster, Judge(spec), Turns(spec), Epochs(spec), story.now)
    story.joins(1, "worker-2")
    story.state.members[3] = Member("worker-1", 3, 2, story.now, active=True, stepped=True)
    done = story(events.Joined(4, "worker-1", number=1))
    assert kinds(done) == ["worker.left"]
    assert done[-1] == events.Send(4, messages.Leave())
    assert [event["number"] for event in story.emitted("worker.left")] == [0]
    assert story.released() == [0]


def test_more_workers_than_allowed_are_sent_away():
    story = Story(max_workers=1)
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    assert story.joins(2, "worker-2") == messages.Leave()


def test_with_a_deadline_those_that_take_over_join_beside_those_that_work():
    story = Story(max_workers=1, finish_by=1e10)
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    assert story.joins(2, "worker-2").number == 1
    assert story.joins(3, "worker-3") == messages.Leave()


def test_everybody_hears_how_many_are_active():
    story = Story()
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    story(events.Joined(2, "worker-2"))
    told = [item for item in story(events.Stepping(2)) if isinstance(item, events.Send)]
    assert {(item.connection, item.message.active) for item in told} == {(1, 2), (2, 2)}


def test_checkpoints_come_every_so_many_steps_and_never_two_at_once():
    story = Story()
    assert events.Save() in story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    assert events.Save() not in story(events.StepSeen(39))
    assert events.Save() in story(events.StepSeen(40))
    assert events.Save() not in story(events.StepSeen(90))
    story(events.SaveDone(41, "checkpoints/model.ckpt-41", 0.1, 10))
    assert events.Save() in story(events.StepSeen(91))


def test_planned_checkpoints_are_as_far_apart_as_they_are_dear():
    story = Story(train_steps=10**6, checkpoint_steps=None, checkpoint_seconds=600, checkpoint_auto=True)
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.9, 10))
    assert story.emitted("train.checkpoint")[-1]["next_seconds"] == 90.0
    assert events.Save() not in story(events.StepSeen(100), after=89)
    assert events.Save() in story(events.StepSeen(101), after=1)
    story(events.SaveDone(101, "checkpoints/model.ckpt-101", 3.0, 10))
    assert events.Save() not in story(events.StepSeen(400), after=299)
    assert events.Save() in story(events.StepSeen(401), after=1)


def test_a_cluster_that_falls_behind_its_best_is_told_with_the_likely_reason():
    story = Story(train_steps=10**6, checkpoint_steps=None, alarm_below=0.8, alarm_after=5.0)
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    for connection in (1, 2):
        story.joins(connection, f"worker-{connection}")

    def train(seconds: int, steps: tuple[int, int]) -> None:
        for _ in range(seconds):
            for connection, count in enumerate(steps, 1):
                line = {"step": 9, "steps": count, "samples": 32 * count, "loss": 1.0, "compute_seconds": 1.0}
                story(events.Heartbeat(connection, line), after=0.5)
            story(events.Tick(), after=0)

    train(40, (10, 10))
    assert story.emitted("train.slow") == []
    train(40, (10, 2))
    (slow,) = story.emitted("train.slow")
    assert (slow["run"], slow["bottleneck"], slow["worker"]) == ("run-1", "worker", "worker-2")
    assert slow["speed"] < 0.8 * slow["expected"]
    assert story.emitted("train.recovered") == []
    train(40, (10, 10))
    assert story.emitted("train.recovered") == [{"run": "run-1", "speed": 640.0, "expected": 640.0}]


def test_the_chief_knows_at_which_step_something_is_due_next():
    story = Story(train_steps=100, checkpoint_steps=40, eval_steps=25)
    story(events.Prepared(0))
    story(events.SaveDone(0, "step-0", 0.1, 10))
    assert story.state.next_mark == 25
    story(events.StepSeen(30))  # which saves for the evaluation
    story(events.SaveDone(30, "step-30", 0.1, 10))
    assert story.state.next_mark == 50
    story(events.StepSeen(60))
    story(events.SaveDone(60, "step-60", 0.1, 10))
    assert story.state.next_mark == 75
    story(events.StepSeen(80))
    story(events.SaveDone(80, "step-80", 0.1, 10))
    assert story.state.next_mark == 100


def test_a_save_that_fails_is_tried_again_and_training_goes_on():
    story = Story()
    story(events.Prepared(0))
    assert kinds(story(events.SaveFailed("disk full"))) == ["train.unsaved"]
    assert events.Save() not in story(events.StepSeen(50))
    assert events.Save() in story(events.StepSeen(60), after=11)
    assert story(events.SaveFailed("disk full")) == [], "it is told once"
    story(events.SaveRequested())
    assert kinds(story(events.SaveFailed("disk full"))) == ["train.unsaved"], "and to who asked"
    story(events.StepSeen(61), after=11)
    story(saved(61))
    story(events.SaveRequested())
    assert kinds(story(events.SaveFailed("disk full"))) == ["train.unsaved"], "and when it begins anew"


def test_a_last_checkpoint_that_fails_is_tried_again_for_minutes_and_then_ends_the_run():
    story = Story()
    story(events.Prepared(15))
    story(events.StepSeen(100))
    assert story.done[-1] == events.Save()
    assert kinds(story(events.SaveFailed("disk full"))) == ["train.unsaved"]
    assert story(events.Tick()) == []
    assert story(events.Tick(), after=11) == [events.Save()]
    story(events.SaveFailed("disk full"))
    assert story(events.Tick(), after=11) == [events.Save()]
    assert story(saved(100))[-1] == events.Evaluate(100, last=True)
    assert story.emitted("train.failed") == []

    story = Story()
    story(events.Prepared(15))
    story(events.StepSeen(100))
    story(events.SaveFailed("disk full"))
    story(events.Tick(), after=LAST_SAVE_WITHIN)
    story(events.SaveFailed("disk full"))
    assert "disk full" in story.emitted("train.failed")[0]["reason"]


def test_a_chief_that_is_stopped_sends_nobody_away_and_fails_no_run_because_it_may_have_a_successor():
    """As where another parameter server's VM was lost: it can save no more, and workers come again while it tries."""
    story = Story()
    story(events.Prepared(15))
    story.joins(1, "worker-1")
    assert story(events.StopRequested()) == [events.Save()]
    story(events.Disconnected(1))
    assert story(events.Joined(2, "worker-1")) == []
    assert story(events.Heartbeat(2)) == []
    done = story(events.SaveFailed("a parameter server is lost"))
    assert (kinds(done), done[-1]) == (["train.unsaved"], events.Finish(0))
    assert story(events.Joined(3, "worker-1")) == []


def test_a_run_that_is_stopped_while_its_last_checkpoint_fails_tries_once_more():
    story = Story()
    story(events.Prepared(15))
    story(events.StepSeen(100))
    story(events.SaveFailed("disk full"))
    assert story(events.StopRequested()) == [events.Save()]
    assert story(saved(100))[-1] == events.Finish(0)


def test_an_evaluation_that_is_asked_for_saves_first_and_training_goes_on():
    story = Story()
    assert story(events.EvaluationRequested()) == []
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story(events.StepSeen(7))
    assert events.Save() in story(events.EvaluationRequested())
    assert story(events.EvaluationRequested()) == [], "it is being saved"
    assert events.Evaluate(7) in story(events.SaveDone(7, "checkpoints/model.ckpt-7", 0.1, 10))
    story(events.EvaluationDone(7, {"accuracy": 0.5}, batches=3, examples=300, complete=False, undefined=("loss",)))
    assert story.emitted("train.evaluated")[0] == {
        "run": "run-1", "step": 7, "metrics": {"accuracy": 0.5}, "batches": 3, "examples": 300, "complete": False,
        "undefined": ("loss",), "of": 0, "endless": False, "drawn": 0, "among": 0,
    }  # fmt: skip
    assert story.state.phase is Phase.TRAINING


def test_of_which_part_of_the_split_an_evaluation_is_goes_with_all_that_follows_from_it():
    story = Story(**{**JUDGED, "stop_when": "accuracy no better in 1 evaluation"})
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story.joins(1, "worker-1")
    part: dict[str, Any] = {"examples": 300, "complete": False, "of": 1000, "drawn": 300, "among": 1000}
    for step in (10, 20):
        story(events.StepSeen(step))
        story(events.SaveDone(step, f"checkpoints/model.ckpt-{step}", 0.1, 10))
        story(events.EvaluationDone(step, {"accuracy": 0.5}, **part))
    assert {name: story.emitted("train.evaluated")[0][name] for name in part} == part
    assert [item.seen for item in story.done if isinstance(item, events.KeepBest)] == ["300 of 1,000 examples"]
    story(events.StepSeen(21))
    assert story.state._judge.verdict.endswith("than 0.5 at step 10 (300 of 1,000 examples)")


def test_what_workers_say_of_their_examples_is_told_once():
    story = Story()
    story(events.Prepared(0))
    for connection, elements in ((1, 100), (2, 120)):
        story(events.Joined(connection, f"worker-{connection}"))
        story(events.Reading(connection, f"one of its first {elements} elements"))
    assert story.emitted("train.order") == [{"run": "run-1", "reason": "one of its first 100 elements"}]


def test_an_evaluation_that_fails_is_told_and_the_next_one_is_tried():
    story = Story(eval_steps=50, train_steps=120)
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story(events.StepSeen(50))
    story(events.SaveDone(50, "checkpoints/model.ckpt-50", 0.1, 10))
    story(events.EvaluationDone(50, reason="no dev split"))
    assert story.emitted("train.unevaluated") == [{"run": "run-1", "step": 50, "reason": "no dev split"}]
    assert story.state.phase is Phase.TRAINING
    assert events.Save() in story(events.StepSeen(100))
    assert events.Evaluate(100) in story(events.SaveDone(100, "checkpoints/model.ckpt-100", 0.1, 10))
    story(events.EvaluationDone(100, {"accuracy": 0.5}))
    assert len(story.emitted("train.evaluated")) == 1
    story(events.StepSeen(120))
    story(events.SaveDone(120, "checkpoints/model.ckpt-120", 0.1, 10))
    assert story(events.EvaluationDone(120, reason="no dev split"))[-1] == events.Finish(0)
    assert len(story.emitted("train.unevaluated")) == 2


def test_the_end_saves_evaluates_and_finishes_with_zero():
    story = Story()
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story.joins(1, "worker-1")
    assert events.Send(1, messages.Stop()) in story(events.StepSeen(100))
    assert events.Save() in story(events.Leaving(1, "finished"))
    assert not story.emitted("train.made"), "the last steps could still be lost"
    assert events.Evaluate(101, last=True) in story(events.SaveDone(101, "checkpoints/model.ckpt-101", 0.1, 10))
    assert story.emitted("train.made") == [{"run": "run-1", "step": 101}]
    done = story(events.EvaluationDone(101, {"accuracy": 0.95}))
    assert kinds(done) == ["train.evaluated", "train.finished"]
    assert done[-1] == events.Finish(0)
    assert story.emitted("train.finished")[0]["checkpoint"] == "checkpoints/model.ckpt-101"


def test_a_frozen_worker_does_not_hold_up_the_end():
    story = Story()
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story.joins(1, "worker-1")
    story(events.StepSeen(100))
    assert events.Save() in story(events.Tick(), after=6)


def test_the_end_during_a_save_and_an_evaluation_still_evaluates_the_last_checkpoint():
    story = Story(eval_steps=50)
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story(events.StepSeen(50))
    assert events.Evaluate(50) in story(events.SaveDone(50, "checkpoints/model.ckpt-50", 0.1, 10))
    assert not story.state.is_awaited, "steps go on"
    assert Story(eval_steps=50, study="s", judged_by="max accuracy").state.is_awaited, "it may be pruned"
    story(events.StepSeen(95))
    story(events.StepSeen(100))
    assert story.state.is_awaited, "nothing is left but to evaluate"
    story(events.SaveDone(95, "checkpoints/model.ckpt-95", 0.1, 10))
    story(events.SaveDone(100, "checkpoints/model.ckpt-100", 0.1, 10))
    assert events.Evaluate(100, last=True) in story(events.EvaluationDone(50, {"accuracy": 0.5}))
    assert story(events.EvaluationDone(100, {"accuracy": 0.9}))[-1] == events.Finish(0)


def test_the_end_waits_for_the_save_in_progress_and_saves_the_last_steps_once():
    story = Story()
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    story(events.StepSeen(100))
    story(events.Leaving(1, "finished"))
    assert story(events.Tick(), after=6) == [], "the first checkpoint is being written"
    assert events.Save() in story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    assert events.Evaluate(100, last=True) in story(events.SaveDone(100, "checkpoints/model.ckpt-100", 0.1, 10))
    assert story(events.Tick(), after=6) == [], "it is there; what is left is to evaluate it"
    assert story(events.EvaluationDone(100, {"accuracy": 0.9}))[-1] == events.Finish(0)


@pytest.mark.parametrize("said", [events.Noticed(1), events.Exhausted(1, 8), events.Heartbeat(1)])
def test_whatever_a_worker_says_is_a_sign_of_life(said: Any):
    story = Story()
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    story(said, after=4)
    story(events.Tick(), after=4)
    assert story.emitted("worker.left") == []


def test_nothing_is_saved_beside_a_save_for_an_evaluation():
    story = Story(eval_steps=10)
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    assert events.Save() in story(events.StepSeen(10))
    assert events.Save() not in story(events.SaveRequested())


def evaluated(story: Story, step: int, **metrics: float) -> list[Any]:
    """Save and evaluate at `step`."""
    story(events.StepSeen(step))
    done = story(events.SaveDone(step, f"checkpoints/model.ckpt-{step}", 0.1, 10))
    assert [item.step for item in done if isinstance(item, events.Evaluate)] == [step]
    return story(events.EvaluationDone(step, metrics))


def kept(story: Story) -> list[tuple[int, float]]:
    return [(item.best.step, item.best.value) for item in story.done if isinstance(item, events.KeepBest)]


JUDGED = {
    "eval_steps": 10, "train_steps": 1000, "checkpoint_steps": None, "keep_best": "max accuracy",
    "stop_when": "min loss no better in 2 evaluations",
}  # fmt: skip


def test_the_best_evaluation_is_kept_and_the_run_ends_when_none_gets_better():
    first = Story(**JUDGED)
    first(events.Prepared(0))
    first(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    evaluated(first, 10, accuracy=0.5, loss=2.0)
    evaluated(first, 20, accuracy=0.7, loss=1.0)
    evaluated(first, 30, accuracy=0.7, loss=1.0)
    assert kept(first) == [(10, 0.5), (20, 0.7)], "an equal one is no better"
    first.told.append({"kind": "train.best", "step": 20, "value": 0.7})

    other = Story(first, kept={"next_number": 0}, **JUDGED)  # on another VM, of what was brought home
    other(events.Prepared(20, best=Best("max accuracy", 0.7, 20)))
    other.joins(1, "worker-1")
    evaluated(other, 30, accuracy=0.6, loss=1.5)  # made once more, it counts once
    assert events.Send(1, messages.Stop()) not in other(events.StepSeen(31))
    evaluated(other, 40, accuracy=0.9, loss=1.5)
    assert kept(other) == [(40, 0.9)]
    assert events.Send(1, messages.Stop()) in other(events.StepSeen(41))
    other(events.Leaving(1, "finished"))
    other(events.SaveDone(42, "checkpoints/model.ckpt-42", 0.1, 10))
    assert other(events.EvaluationDone(42, {"accuracy": 0.8, "loss": 1.5}))[-1] == events.Finish(0)
    (finished,) = other.emitted("train.finished")
    assert (finished["step"], finished["reason"]) == (42, "loss was no better in 2 evaluations than 1 at step 20")


def test_an_evaluation_that_fails_is_judged_by_nobody_and_a_run_with_all_its_steps_ended_by_them():
    story = Story(**{**JUDGED, "train_steps": 30})
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story(events.EvaluationRequested())
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story(events.EvaluationDone(0, {}, reason="its disk is full"))
    assert story.emitted("train.unjudged") == []
    for step, loss in ((5, 1.0), (10, 2.0), (20, 2.0)):
        story(events.EvaluationRequested())
        evaluated(story, step, accuracy=0.5, loss=loss)
    story(events.StepSeen(30))
    story(events.Tick(), after=6)
    story(events.SaveDone(30, "checkpoints/model.ckpt-30", 0.1, 10))
    assert story(events.EvaluationDone(30, {"accuracy": 0.5, "loss": 2.0}))[-1] == events.Finish(0)
    (finished,) = story.emitted("train.finished")
    assert (finished["step"], finished["reason"]) == (30, "")


def test_what_is_judged_by_a_metric_that_is_not_there_is_told_once_and_trains_on():
    story = Story(**{**JUDGED, "stop_when": "", "keep_best": "max acuracy"})
    story(events.Prepared(0, best=Best("max accuracy", 0.7, 0)))  # of another objective
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    evaluated(story, 10, accuracy=0.5, loss=2.0)
    evaluated(story, 20, accuracy=0.5, loss=2.0)
    assert story.emitted("train.unjudged") == [
        {"run": "run-1", "step": 10, "metric": "acuracy", "metrics": ("accuracy", "loss")}
    ]
    assert (kept(story), story.state.phase) == ([], Phase.TRAINING)


def test_the_best_that_came_with_the_run_is_told_and_only_a_better_one_takes_its_place():
    story = Story(**JUDGED)
    story(events.Prepared(50, best=Best("max accuracy", 0.7, 40)))
    evaluated(story, 60, accuracy=0.6, loss=2.0)
    assert kept(story) == [(40, 0.7)]


@pytest.mark.parametrize("fatal", [True, False])
def test_the_same_error_three_times_fails_the_run_and_user_code_at_once(fatal: bool):
    story = Story()
    times = 1 if fatal else 3
    for _ in range(times):
        assert story.emitted("train.failed") == []
        story(events.Trouble(1, "cell line 3: NameError: x", fatal))
    assert story.emitted("train.failed") == [{"run": "run-1", "step": 0, "reason": "cell line 3: NameError: x"}]
    assert story.done[-1] == events.Finish(65)


def test_an_error_is_the_same_with_the_numbers_of_another_batch():
    story = Story()
    for labels in ("31 38", "4 30 39", "35 2"):
        assert story.emitted("train.failed") == []
        story(events.Trouble(1, f"Received a label value of 39 outside of [0, 10). Label values: {labels}", False))
    assert story.emitted("train.failed")[0]["reason"].endswith("Label values: 35 2")


def test_a_loss_that_is_no_number_fails_the_run():
    story = Story()
    story(events.Prepared(0))
    story.joins(1, "worker-1")
    for step in (1, 2, 3):
        story(events.Heartbeat(1, {"worker": "worker-1", "step": step, "steps": 1, "loss": None}))
    said = "the loss is not a number any more since step 1, first on worker-1: lower learning_rate"
    assert story.emitted("train.failed")[0]["reason"] == said


def test_a_run_that_is_stopped_saves_first():
    story = Story()
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story(events.StepSeen(20))
    assert events.Save() in story(events.StopRequested())
    assert story(events.SaveDone(20, "checkpoints/model.ckpt-20", 0.1, 10))[-1] == events.Finish(0)


def test_a_run_that_is_stopped_before_it_begins_ends_once():
    story = Story()
    assert [story(events.StopRequested()), story(events.StopRequested())] == [[events.Finish(0)], []]


def saved(step: int) -> events.SaveDone:
    return events.SaveDone(step, f"checkpoints/model.ckpt-{step}", 0.1, 10)


def test_a_stop_saves_steps_that_the_chief_has_not_seen_yet():
    """It looks at the step once a second."""
    story = Story()
    story(events.Prepared(15))
    assert story(events.StopRequested()) == [events.Save()]
    assert story(saved(18))[-1] == events.Finish(0)
    assert story.emitted("train.checkpoint")[-1]["step"] == 18


@pytest.mark.parametrize("first", [saved(40), events.SaveFailed("its disk is full")])
def test_a_stop_while_a_checkpoint_is_being_written_saves_what_that_lacks(first: Any):
    story = Story(chief="worker")
    story(events.Prepared(15))
    story.joins(1, "worker-1")
    assert story(events.StepSeen(60)) == [events.Send(1, messages.Save())]
    assert story(events.StopRequested()) == []
    assert story(first)[-1] == events.Save()  # by the chief itself: the workers are told to leave
    assert story(saved(66))[-1] == events.Finish(0)


def test_a_checkpoint_that_is_asked_for_has_every_step_before():
    story = Story()
    assert story(events.SaveRequested()) == []  # nothing lives yet
    assert story(events.Prepared(15))[1] == events.Save()
    story(saved(15))
    assert story.emitted("train.checkpoint")[-1]["asked"]
    story(events.StepSeen(60))
    assert story(events.SaveRequested()) == []  # one is being written
    assert story(saved(60))[1:] == [events.Save()]
    assert not story.emitted("train.checkpoint")[-1]["asked"]
    assert story(saved(66))[1:] == []
    assert story.emitted("train.checkpoint")[-1]["asked"]


anything = st.one_of(
    st.builds(
        events.Joined,
        st.integers(1, 6),
        st.sampled_from(["worker-1", "worker-2", "worker-3"]),
        st.just(""),
        st.one_of(st.none(), st.integers(0, 6)),
    ),
    st.builds(events.Stepping, st.integers(1, 6), st.just(1.0)),
    st.builds(events.Heartbeat, st.integers(1, 6)),
    st.builds(events.Noticed, st.integers(1, 6)),
    st.builds(events.Leaving, st.integers(1, 6), st.sampled_from(["revoked", "finished", "told to leave"])),
    st.builds(events.Disconnected, st.integers(1, 6)),
    st.builds(events.StepSeen, st.integers(0, 110)),
    st.builds(events.SaveDone, st.integers(0, 110), st.just("c"), st.just(0.1), st.just(1)),
    st.builds(events.SaveFailed, st.just("full")),
    st.builds(events.EvaluationDone, st.integers(0, 110), st.just({"accuracy": 0.5})),
    st.just(events.SaveRequested()),
    st.just(events.EvaluationRequested()),
    st.just(events.StopRequested()),
    st.just(events.Tick()),
)


@examples(300)
@given(st.lists(st.tuples(anything, st.floats(0, 7)), max_size=40))
def test_whatever_happens_the_events_agree_with_each_other(happenings: list[tuple[Any, float]]):
    story = Story(max_workers=2)
    story(events.Prepared(0))
    holders: dict[int, str] = {}
    training: set[str] = set()
    for event, after in happenings:
        for item in story(event, after):
            if (
                isinstance(item, events.Send)
                and isinstance(item.message, messages.Joined)
                and isinstance(event, events.Joined)
            ):
                assert holders.setdefault(item.message.number, event.name) == event.name
            if isinstance(item, events.Emit) and item.kind in ("worker.joined", "worker.left"):
                who = f"{item.values['worker']}/{item.values['number']}"
                assert (who in training) == (item.kind == "worker.left")
                training ^= {who}
                assert item.values["active"] == len(training)
    assert story.state.active == len(training) or story.state.phase is Phase.ENDED
    ends = [item for item in story.done if isinstance(item, events.Finish)]
    assert len(ends) == (story.state.phase is Phase.ENDED)


def resized(story: Story) -> list[tuple[str, int, int, str]]:
    emitted = story.emitted("worker.batch_resized")
    return [(each["worker"], each["old"], each["new"], each["reason"]) for each in emitted]


def batches(done: Iterable[Any]) -> dict[int, messages.Batch]:
    told = [item for item in done if isinstance(item, events.Send)]
    return {item.connection: item.message for item in told if isinstance(item.message, messages.Batch)}


def test_faster_gpus_take_more_examples_and_a_revocation_gives_them_to_the_others():
    story = Story(batching="static", workers=2)
    story(events.Prepared(0, batch=32))
    story(events.Joined(1, "worker-1"))
    story(events.Stepping(1, 2.0, speed=1.0))
    assert resized(story) == []
    story(events.Joined(2, "worker-2"))
    told = batches(story(events.Stepping(2, 2.0, speed=3.0)))
    assert told == {1: messages.Batch(size=16, share=0.5), 2: messages.Batch(size=48, share=1.5)}
    assert resized(story) == [("worker-1", 32, 16, "static"), ("worker-2", 32, 48, "static")]
    assert batches(story(events.Leaving(2, "revoked"))) == {1: messages.Batch(size=64, share=1.0)}
    story(events.Joined(3, "worker-3", accelerator="Tesla K80"))
    story(events.Stepping(3, 2.0))
    assert resized(story)[2:] == [
        ("worker-1", 16, 64, "revocation"), ("worker-1", 64, 32, "join"),
    ]  # fmt: skip


def test_sizes_follow_the_measured_speeds_and_exhausted_memory():
    story = Story(batching="dynamic", workers=2)
    story(events.Prepared(0, batch=32))
    for connection in (1, 2):
        story.joins(connection, f"worker-{connection}")
    for _ in range(24):
        for connection, seconds in ((1, 0.8), (2, 1.6)):
            line = {"worker": "", "step": 1, "steps": 8, "samples": 256, "batch_size": 32, "loss": 1.0}
            story(events.Heartbeat(connection, {**line, "compute_seconds": seconds}), after=0.5)
    assert resized(story) == [("worker-1", 32, 43, "dynamic"), ("worker-2", 32, 21, "dynamic")]
    story(events.Exhausted(1, 32))
    assert resized(story)[2:] == [("worker-1", 43, 32, "oom"), ("worker-2", 21, 32, "oom")]


def test_the_parameter_server_that_is_busiest_is_told_by_name():
    story = Story(train_steps=10**6, checkpoint_steps=None, alarm_below=0.8, alarm_after=5.0)
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story.joins(1, "worker-1")
    for second in range(80):
        line = {"step": 9, "steps": 10, "samples": 320 if second < 40 else 160, "loss": 1.0, "compute_seconds": 1.0}
        story(events.Heartbeat(1, line), after=1.0)
        for name, share in (("ps-0", 0.9), ("ps-1", 1.9)):
            story(events.ServerLoad(name, Load(share * second, 50.0 + second, 2)), after=0)
        story(events.Tick(), after=0)
    (slow,) = story.emitted("train.slow")
    assert (slow["bottleneck"], slow["server"]) == ("parameter server", "ps-1")


def test_a_replacement_beside_whom_it_replaces_makes_no_mini_batch_larger():
    story = Story(batching="static", workers=1)
    story(events.Prepared(0, batch=32))
    for connection in (1, 2):
        story(events.Joined(connection, f"worker-{connection}"))
        sizes = batches(story(events.Stepping(connection, 2.0, speed=1.0)))
    assert [size.size for size in sizes.values()] == [16, 16]
    bounded = Story(batching="static", workers=1, batch_least=40)
    bounded(events.Prepared(0, batch=32))
    bounded(events.Joined(1, "worker-1"))
    assert [size.size for size in batches(bounded(events.Stepping(1, 2.0, speed=1.0))).values()] == [40]


def test_a_restarted_chief_repeats_the_sizes():
    first = Story(batching="static", workers=2)
    first(events.Prepared(0, batch=32))
    for connection, speed in ((1, 1.0), (2, 3.0)):
        first(events.Joined(connection, f"worker-{connection}"))
        first(events.Stepping(connection, 2.0, speed=speed))
    second = Story(first, batching="static", workers=2)
    assert batches(second(events.Joined(7, "worker-2", number=1))) == {7: messages.Batch(size=48, share=1.5)}
    second(events.Prepared(40, batch=32))
    assert resized(second) == []
    second(events.Heartbeat(7), after=18)
    second(events.Tick(), after=3)
    assert resized(second) == [("worker-2", 48, 64, "revocation")]


def test_a_chief_that_was_killed_before_it_kept_the_sizes_divides_anew_for_its_successor():
    first = Story(batching="static", workers=2)
    first(events.Prepared(0, batch=32))
    first.joins(1, "worker-1")
    kept = first.state.to_dict()
    first.joins(2, "worker-2")
    second = Story(first, kept, batching="static", workers=2)
    for connection, number in ((1, 0), (2, 1)):
        second(events.Joined(connection, f"worker-{connection}", number=number))
    told = batches(second(events.Prepared(40, batch=32)))
    assert {connection: message.size for connection, message in told.items()} == {1: 32, 2: 32}


def test_uniform_batching_says_nothing():
    story = Story()
    story(events.Prepared(0, batch=32))
    story.joins(1, "worker-1")
    assert batches(story.done) == {}
    assert resized(story) == []
    assert "batches" not in story.state.to_dict()


def asked_to_save(done: Iterable[Any]) -> list[int]:
    return [item.connection for item in done if isinstance(item, events.Send) and item.message == messages.Save()]


def test_with_a_worker_as_chief_one_saves_for_as_long_as_it_trains_and_is_able_to():
    story = Story(chief="worker", checkpoint_steps=10)
    assert events.Save() in story(events.Prepared(0))  # nobody else is there yet
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story.joins(1, "worker-1")
    story.joins(2, "worker-2")
    assert asked_to_save(story(events.StepSeen(10))) == [1]
    story(events.SaveDone(11, "checkpoints/model.ckpt-11", 0.1, 10, "worker-1"))
    assert story.emitted("train.checkpoint")[-1]["worker"] == "worker-1"
    assert asked_to_save(story(events.StepSeen(21))) == [1]
    assert asked_to_save(story(events.SaveFailed("its disk is full"))) == []
    assert asked_to_save(story(events.StepSeen(22), after=11)) == [2]
    story(events.SaveDone(22, "checkpoints/model.ckpt-22", 0.1, 10, "worker-2"))
    assert asked_to_save(story(events.StepSeen(32))) == [2]
    assert asked_to_save(story(events.Leaving(2, "revoked"))) == [1]
    done = story(events.Disconnected(1))
    assert asked_to_save(done) == []
    assert events.Save() in done


def test_who_is_under_notice_trains_on_beside_a_replacement_and_gets_no_duty():
    story = Story(max_workers=2, chief="worker", checkpoint_steps=10)
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story.joins(1, "worker-1")
    story.joins(2, "worker-2")
    assert story(events.Joined(3, "worker-3"))[0].message.do == "leave", "there are as many as there may be"
    story(events.Noticed(1))
    assert story.joins(3, "worker-3").do == "joined"
    assert story.state.active == 3
    assert asked_to_save(story(events.StepSeen(10))) == [2]
    story(events.Leaving(1, "revoked"))
    assert story.state.active == 2
    assert story(events.Joined(4, "worker-4"))[0].message.do == "leave"
