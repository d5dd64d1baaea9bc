"""What the chief makes of workers that fail over and over, and of servers that are lost at the very end."""

from __future__ import annotations

from tests.runtime.test_chief_state import Story
from transient_magics.runtime.parameter_server.chief import events as events
from transient_magics.runtime.parameter_server.chief.state import SILENCE_BEFORE_TRAINING


def test_one_sick_worker_does_not_fail_a_run_that_others_train():
    story = Story()
    story(events.Prepared(0))
    for connection, name in ((1, "worker-1"), (2, "worker-2")):
        story.joins(connection, name)
    for connection in range(3, 9):
        story(events.Joined(connection, "worker-2"))
        story(events.Trouble(connection, "no space left on device"))
        story(events.Leaving(connection, "lost"))
    assert story.emitted("train.failed") == []
    story(events.Leaving(1, "revoked"))
    story(events.Joined(9, "worker-2"))
    story(events.Trouble(9, "no space left on device"))
    assert story.emitted("train.failed") == [{"run": "run-1", "step": 0, "reason": "no space left on device"}]


def test_a_worker_that_thaws_before_its_first_gradient_does_not_count_yet():
    story = Story()
    story(events.Prepared(0))
    story(events.Joined(1, "worker-1"))
    story(events.Tick(), after=SILENCE_BEFORE_TRAINING + 1)
    story(events.Heartbeat(1))
    assert story.emitted("worker.joined") == []
    story(events.Stepping(1, 0.5, 8))
    assert [joined["active"] for joined in story.emitted("worker.joined")] == [1]


def test_a_last_checkpoint_without_the_last_steps_is_no_success():
    story = Story()
    story(events.Prepared(0))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 10))
    story(events.StepSeen(100))
    story(events.SaveDone(60, "checkpoints/model.ckpt-60", 0.1, 10))
    assert story.emitted("train.finished") == []
    assert "resumed from step 60" in story.emitted("train.failed")[0]["reason"]
    assert story.done[-1] == events.Finish(65)
