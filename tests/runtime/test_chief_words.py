"""What the chief says, word for word: whole stories, every instruction of every moment."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from tests.runtime.test_chief_state import Story, saved
from transient_magics.protocol import chief_messages, vm_events
from transient_magics.protocol.messages import kinds
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.parameter_server.chief import events as events
from transient_magics.runtime.parameter_server.chief.epochs import Epochs
from transient_magics.runtime.parameter_server.chief.progress import Judge
from transient_magics.runtime.parameter_server.chief.stall_turns import Turns
from transient_magics.runtime.parameter_server.chief.state import (
    FINISH_WITHIN,
    REJOIN_WITHIN,
    SILENCE,
    SILENCE_AT_THE_BARRIER,
    SILENCE_BEFORE_TRAINING,
    ChiefState,
    Phase,
)
from transient_magics.runtime.parameter_server.chief.workers import Roster
from transient_magics.runtime.parameter_server.server_load import Load


def told(kind: type[vm_events.Event], **fields: Any) -> events.Emit:
    return events.Emit(kind(run="run-1", **fields))


def joined(number: int, active: int) -> events.Emit:
    return told(vm_events.WorkerJoined, worker=f"worker-{number}", number=number, active=active)


def left(number: int, active: int, reason: str) -> events.Emit:
    return told(vm_events.WorkerLeft, worker=f"worker-{number}", number=number, active=active, reason=reason)


def written(step: int, **more: Any) -> events.Emit:
    name = f"checkpoints/model.ckpt-{step}"
    return told(vm_events.TrainCheckpoint, step=step, path=name, seconds=0.1, bytes=10, **more)


def made(step: int) -> events.Emit:
    return told(vm_events.TrainMade, step=step)


TO_WORKER = kinds(*get_args(chief_messages.ToWorker))


def tell(connection: int, do: str, **more: Any) -> events.Send:
    return events.Send(connection, TO_WORKER[do](**more))


def welcome(connection: int, number: int, active: int) -> events.Send:
    return tell(connection, "joined", number=number, active=active)


def go(connection: int) -> events.Send:
    return tell(connection, "leave", reason="told to leave")


def over(connection: int) -> events.Send:
    return tell(connection, "leave", reason="finished")


def plays(story: Story, *script: tuple[float, Any, list[Any]]) -> None:
    """Seconds from the start, what happens then, and all that is said to it."""
    for now, event, said in script:
        story.now = now
        assert story(event, after=0.0) == said, (now, event)


def training(*, workers: int = 0, **plan: Any) -> Story:
    """A run whose first checkpoint is written, with so many workers (on connection 1 and so on) that train at 0 s."""
    story = Story(**plan)
    story(events.Prepared(0), after=0.0)
    story(saved(0), after=0.0)
    for number in range(workers):
        story(events.Joined(number + 1, f"worker-{number}"), after=0.0)
        story(events.Stepping(number + 1, 2.0), after=0.0)
    return story


def test_a_run_from_its_first_step_to_its_last() -> None:
    line = {"worker": "worker-0", "step": 16, "steps": 15, "samples": 480, "loss": 1.5}
    progress = {"loss": 1.25, "active": 2}
    plays(
        Story(eval_steps=50),
        (0, events.Prepared(0), [told(vm_events.TrainStarted, step=0), events.Save()]),
        (1, saved(0), [written(0)]),
        (2, events.Joined(1, "worker-0"), [events.Persist(), welcome(1, 0, 1)]),
        (3, events.Stepping(1, 2.0, 32), [joined(0, 1), events.Persist(), tell(1, "active", active=1)]),
        (3, events.Joined(2, "worker-1"), [events.Persist(), welcome(2, 1, 1)]),
        (
            3, events.Stepping(2, 1.75, 32),
            [joined(1, 2), events.Persist(), tell(1, "active", active=2), tell(2, "active", active=2)],
        ),
        (3, events.Joined(3, "worker-2"), [events.Persist(), welcome(3, 2, 2)]),
        (3, events.Disconnected(3), [events.Release(2)]),
        (4, events.Heartbeat(1), []),
        (4, events.Heartbeat(1, line), [events.Record(line)]),
        (4, events.Heartbeat(2, {**line, "loss": 1.25}), [events.Record({**line, "loss": 1.25})]),
        (
            5, events.StepSeen(33),
            [told(vm_events.TrainProgress, step=33, steps_per_second=16.0, samples_per_second=512.0, **progress)],
        ),
        (6, events.StepSeen(39), []),
        (7, events.StepSeen(40), [events.Save()]),
        (
            8, events.StepSeen(50),  # an evaluation is due, and that checkpoint is to do
            [told(vm_events.TrainProgress, step=50, steps_per_second=round(17 / 3, 3), **progress)],
        ),
        (9, saved(50), [written(50), events.Evaluate(50)]),
        (
            10, events.EvaluationDone(50, {"accuracy": 0.5}, batches=3, examples=300, undefined=("loss",)),
            [told(vm_events.TrainEvaluated, step=50, metrics={"accuracy": 0.5}, batches=3, examples=300,
                  undefined=("loss",))],
        ),
        (
            11, events.Leaving(2, "revoked"),
            [left(1, 1, "revoked"), events.Release(1), events.Persist(), tell(1, "active", active=1)],
        ),
        (
            12, events.StepSeen(100),
            [
                told(vm_events.TrainProgress, step=100, loss=1.25, active=1, steps_per_second=12.5),
                tell(1, "stop"),
            ],
        ),
        (13, events.Joined(4, "worker-3"), [over(4)]),
        (13, events.StepSeen(101), []),
        (14, events.Leaving(1, "finished"), [left(0, 0, "finished"), events.Persist(), events.Save()]),
        (15, saved(101), [written(101), made(101), events.Evaluate(101, last=True)]),
        (
            16, events.EvaluationDone(101, {"accuracy": 0.9}),
            [
                told(vm_events.TrainEvaluated, step=101, metrics={"accuracy": 0.9}),
                told(vm_events.TrainFinished, step=101, loss=1.25, checkpoint="checkpoints/model.ckpt-101"),
                events.Finish(0),
            ],
        ),
        (17, events.Joined(5, "worker-4"), [over(5)]),
        (17, events.Stepping(5, 2.0), []),
        (17, events.Tick(), []),
    )  # fmt: skip


def test_who_does_not_leave_in_time_is_lost_at_the_end_one_after_the_other() -> None:
    story = training(workers=4)
    story(events.Joined(5, "worker-4"), after=0.0)  # it makes no step any more
    plays(
        story,
        (1, events.StepSeen(100), [
            told(vm_events.TrainProgress, step=100, loss=2.0, steps_per_second=99.0, active=4),
            *(tell(connection, "stop") for connection in (1, 2, 3, 4, 5)),
        ]),
        (2, events.Leaving(1, "finished"), [
            left(0, 3, "finished"), events.Persist(), *(tell(each, "active", active=3) for each in (2, 3, 4, 5)),
        ]),
        (2, events.Disconnected(4), [
            left(3, 2, "lost"), events.Persist(), *(tell(each, "active", active=2) for each in (2, 3, 5)),
        ]),
        (2, events.Disconnected(5), []),
        (2, events.Heartbeat(2), []),
        (2, events.Heartbeat(3), []),
        (FINISH_WITHIN + 0.9, events.Tick(), []),
        (FINISH_WITHIN + 1, events.Tick(), [left(1, 1, "lost"), left(2, 0, "lost"), events.Save()]),
        (8, events.SaveFailed("no room"), [told(vm_events.TrainUnsaved, step=100, reason="no room")]),
        (17.9, events.Tick(), []),
        (18, events.Tick(), [events.Save()]),
        (19, saved(99), [
            written(99),
            told(vm_events.TrainFailed, step=100,
                 reason="the last steps were lost with a parameter server; the run can be resumed from step 99"),
            go(2), go(3), events.Finish(65),
        ]),
    )  # fmt: skip
    assert story.state.phase is Phase.ENDED


def test_whoever_is_silent_is_lost_to_the_second() -> None:
    story = training(workers=2)
    story(events.Joined(3, "worker-2"), after=0.0)
    gone = [left(0, 1, "lost"), events.Persist(), *(tell(each, "active", active=1) for each in (1, 2, 3))]
    plays(
        story,
        (2, events.Heartbeat(2), []),
        (SILENCE - 0.1, events.Tick(), []),
        (SILENCE, events.Tick(), gone),
        (SILENCE + 1, events.Tick(), []),
        (SILENCE + 2, events.Tick(), [
            left(1, 0, "lost"), events.Persist(), *(tell(each, "active", active=1) for each in (1, 2, 3)),
        ]),
        (8, events.Heartbeat(2), [
            joined(1, 1), events.Persist(), *(tell(each, "active", active=1) for each in (1, 2, 3)),
        ]),
    )  # fmt: skip
    assert not story.state.members[2].lost
    for now in (40, 80, SILENCE_BEFORE_TRAINING - 0.1):
        plays(story, (now, events.Heartbeat(2), []), (now, events.Tick(), []))
        assert not story.state.members[2].lost, "it builds its graph"
    plays(story, (SILENCE_BEFORE_TRAINING, events.Tick(), []))
    assert story.state.members[2].lost


def test_two_may_be_lost_at_once() -> None:
    plays(training(workers=2), (SILENCE, events.Tick(), [
        left(0, 1, "lost"), events.Persist(), tell(1, "active", active=1), tell(2, "active", active=1),
        left(1, 0, "lost"), events.Persist(), tell(1, "active", active=1), tell(2, "active", active=1),
    ]))  # fmt: skip


def test_who_thaws_before_its_first_step_does_not_count_until_it_makes_one() -> None:
    story = training()
    plays(
        story,
        (1, events.Joined(1, "worker-0"), [events.Persist(), welcome(1, 0, 1)]),
        (200, events.Tick(), []),
        (201, events.Heartbeat(1), []),
        (202, events.Stepping(1, 2.0), [joined(0, 1), events.Persist(), tell(1, "active", active=1)]),
        (203, events.Stepping(1, 2.0), []),
    )


def test_a_place_is_free_while_its_worker_is_silent_and_only_then() -> None:
    story = training(workers=2, max_workers=2)
    plays(
        story,
        (1, events.Joined(3, "worker-2"), [go(3)]),
        (4, events.Heartbeat(2), []),
        (5, events.Tick(), [
            left(0, 1, "lost"), events.Persist(), tell(1, "active", active=1), tell(2, "active", active=1),
        ]),
        (6, events.Joined(3, "worker-2"), [events.Persist(), welcome(3, 2, 1)]),
        (7, events.Heartbeat(1), [go(1)]),
        (8, events.Heartbeat(1), [go(1)]),
        (8, events.Disconnected(1), []),
    )  # fmt: skip
    assert sorted(story.state.members) == [1, 2]


def test_a_worker_that_comes_again_is_welcomed_as_whom_it_claims_to_be_and_nobody_elses_number_is_given() -> None:
    story = training(workers=1)
    plays(
        story,
        (1, events.Joined(5, "worker-0", number=0), [welcome(5, 0, 1)]),
        (1, events.Heartbeat(5), []),
        (2, events.Joined(6, "worker-0"), [
            left(0, 0, "lost"), events.Release(0), events.Persist(), events.Persist(), welcome(6, 1, 1),
        ]),
        (2, events.Heartbeat(5), [go(5)]),
        (3, events.Joined(7, "worker-9", number=0), [events.Persist(), welcome(7, 2, 1)]),
        (4, events.Joined(8, "worker-0", number=0), [go(8)]),
        (5, events.Joined(9, "worker-0", number=1), [welcome(9, 1, 1)]),
    )  # fmt: skip
    # Frozen before its first step and taken for lost, it comes under its number again and has all its time anew.
    plays(
        story,
        (200, events.Tick(), []),
        (201, events.Joined(10, "worker-0", number=1), [events.Persist(), welcome(10, 1, 1)]),
        (202, events.Tick(), []),
    )
    assert story.state.members[1].seen_at == 201


def test_a_restarted_chief_waits_for_those_it_knew_and_then_lets_them_go() -> None:
    known = Roster(joined={0: "worker-0", 1: "worker-1", 4: "worker-4"}, training={0: "worker-0", 1: "worker-1"})
    story = Story(eval_steps=None)
    story.state = ChiefState(RunSpec("run-1", 100, max_workers=2), {}, 1000.0, known)
    plays(
        story,
        (1000, events.Prepared(40), [told(vm_events.TrainStarted, step=40)]),
        (1001, events.Joined(3, "worker-1", number=1), [welcome(3, 1, 2)]),
        (1002, events.Stepping(3, 2.0), []),
        (1003, events.Joined(4, "worker-7"), [events.Persist(), welcome(4, 5, 2)]),
        (1000 + REJOIN_WITHIN - 0.5, events.Heartbeat(3), []),
        (1000 + REJOIN_WITHIN - 0.1, events.Tick(), []),
        (1000 + REJOIN_WITHIN, events.Tick(), [
            left(0, 1, "lost"), events.Release(0), events.Persist(), tell(3, "active", active=1),
            tell(4, "active", active=1),
        ]),
    )  # fmt: skip
    assert story.state.to_dict() == {
        "next_number": 6, "given": {"0": "worker-0", "1": "worker-1", "4": "worker-4", "5": "worker-7"},
    }  # fmt: skip
    first = Story(kept={"next_number": 3, "given": {}})
    plays(first, (1, events.Joined(1, "worker-9"), [events.Persist(), welcome(1, 3, 1)]))
    fresh = ChiefState(RunSpec("run-1", 100), {}, 0.0, Roster())
    assert fresh.to_dict() == {"next_number": 0, "given": {}}
    assert (fresh.step, fresh.phase, fresh.active, fresh.next_mark) == (0, Phase.PREPARING, 0, 100)


def test_a_chief_that_has_stood_by_goes_on_behind_the_one_before() -> None:
    story = Story(kept={"next_number": 101, "given": {}}, eval_steps=None)
    plays(
        story,
        (0, events.Joined(1, "worker-2"), [events.Persist(), welcome(1, 101, 1)]),
        (1, events.Joined(2, "worker-3"), [events.Persist(), welcome(2, 102, 1)]),
        (2, events.Heartbeat(1), []),
    )
    told_there = Roster(joined={0: "worker-0", 1: "worker-1"}, training={1: "worker-1"})
    spec = story.state.spec
    story.state.succeed(told_there, Judge(spec), Turns(spec), Epochs(spec), 3.0)
    plays(
        story,
        (3, events.Prepared(40), [told(vm_events.TrainStarted, step=40)]),
        (4, events.Joined(3, "worker-2", number=101), [welcome(3, 101, 1)]),
        (5, events.Joined(4, "worker-4"), [events.Persist(), welcome(4, 103, 1)]),
    )
    assert story.state.to_dict()["given"] == {
        "0": "worker-0", "1": "worker-1", "101": "worker-2", "102": "worker-3", "103": "worker-4",
    }  # fmt: skip
    assert story.state.active == 1, "who has not said goodbye may still come back"


def test_a_step_waits_for_whom_it_heard_of_less_than_so_long_ago() -> None:
    story = training(workers=2)
    story.now = 1.0
    story(events.Heartbeat(2), after=0.0)
    assert story.state.live(SILENCE_AT_THE_BARRIER - 0.1) == 2
    assert story.state.live(SILENCE_AT_THE_BARRIER) == 1
    assert story.state.live(SILENCE_AT_THE_BARRIER + 1) == 0


def test_a_run_that_is_stopped_ends_as_soon_as_its_steps_are_saved() -> None:
    plays(Story(), (0, events.StopRequested(), [events.Finish(0)]), (1, events.Joined(1, "worker-0"), []))
    plays(
        training(workers=1),
        (1, events.StopRequested(), [events.Save()]),
        (2, events.Leaving(1, "told to leave"), [left(0, 0, "told to leave"), events.Persist()]),
        (3, saved(9), [written(9), events.Finish(0)]),
    )
    # One that is being written lacks the last steps, whatever becomes of it.
    for first, said in (
        (saved(40), [written(40), events.Save()]),
        (events.SaveFailed("no room"), [told(vm_events.TrainUnsaved, step=60, reason="no room"), events.Save()]),
    ):
        story = training()
        plays(story, (1, events.StepSeen(60), [events.Save()]), (2, events.StopRequested(), []), (3, first, said))
        plays(story, (4, saved(60), [written(60), events.Finish(0)]))
    # The last one has them all, and is not written twice; nor is anything after it evaluated.
    for last, said in (
        (saved(100), [written(100), events.Finish(0)]),
        (events.SaveFailed("x"), [told(vm_events.TrainUnsaved, step=100, reason="x"), events.Finish(0)]),
    ):
        story = training()
        plays(story, (1, events.StepSeen(100), [events.Save()]), (2, events.StopRequested(), []), (3, last, said))
    story = training()
    said = [written(100), made(100), events.Evaluate(100, last=True)]
    plays(story, (1, events.StepSeen(100), [events.Save()]), (2, saved(100), said))
    plays(story, (3, events.StopRequested(), [events.Finish(0)]))


def test_a_last_checkpoint_is_tried_again_for_so_long_from_its_first_failure_on() -> None:
    unsaved = told(vm_events.TrainUnsaved, step=100, reason="disk full")
    story = training()
    plays(story, (1, events.StepSeen(100), [events.Save()]), (2, events.SaveFailed("disk full"), [unsaved]))
    for again in range(12, 302, 10):
        plays(story, (again, events.Tick(), [events.Save()]), (again, events.SaveFailed("disk full"), []))
    reason = "the last checkpoint could not be written: disk full"
    plays(
        story,
        (302, events.Tick(), [events.Save()]),
        (302, events.SaveFailed("disk full"), [
            told(vm_events.TrainFailed, step=100, reason=reason), events.Finish(65),
        ]),
    )  # fmt: skip


def test_who_asks_for_a_checkpoint_hears_of_it_even_where_it_is_known_that_none_can_be_written() -> None:
    plays(
        training(workers=1, chief="worker"),
        (1, events.SaveRequested(), [tell(1, "save")]),
        (2, events.SaveFailed("no room"), [told(vm_events.TrainUnsaved, step=0, reason="no room")]),
        (3, events.StepSeen(45), [
            told(vm_events.TrainProgress, step=45, loss=2.0, steps_per_second=round(44 / 3, 3), active=1),
        ]),
        (5, events.StepSeen(49), []),
        (12, events.StepSeen(50), [
            told(vm_events.TrainProgress, step=50, loss=2.0, steps_per_second=round(5 / 9, 3), active=1),
            tell(1, "save"),
        ]),
        (13, events.SaveRequested(), []),
        (14, events.SaveFailed("no room"), [tell(1, "save")]),
        (15, events.SaveFailed("no room"), [told(vm_events.TrainUnsaved, step=50, reason="no room")]),
        (16, events.SaveRequested(), [tell(1, "save")]),
        (17, saved(51), [written(51, asked=True)]),
        (18, events.SaveRequested(), [tell(1, "save")]),
        (19, events.Disconnected(1), [left(0, 0, "lost"), events.Release(0), events.Persist(), events.Save()]),
    )  # fmt: skip


def test_a_checkpoint_that_a_leaving_worker_was_writing_is_begun_anew_and_at_the_end_by_the_chief() -> None:
    plays(
        training(workers=3, chief="worker"),
        (0.5, events.StepSeen(40), [tell(1, "save")]),
        (0.6, events.Leaving(2, "revoked"), [
            left(1, 2, "revoked"), events.Release(1), events.Persist(), tell(1, "active", active=2),
            tell(3, "active", active=2),
        ]),
        (1, events.StepSeen(100), [
            told(vm_events.TrainProgress, step=100, loss=2.0, steps_per_second=99.0, active=2), tell(1, "stop"),
            tell(3, "stop"),
        ]),
        (2, events.Leaving(1, "finished"), [
            left(0, 1, "finished"), events.Persist(), tell(3, "active", active=1), events.Save(),
        ]),
        (3, events.Leaving(3, "finished"), [left(2, 0, "finished"), events.Persist()]),
        (4, saved(98), [written(98), events.Save()]),
    )  # fmt: skip


def test_a_checkpoint_is_due_so_many_seconds_after_the_one_that_was_restored() -> None:
    plays(
        Story(checkpoint_steps=None, checkpoint_seconds=600.0),
        (100, events.Prepared(40), [told(vm_events.TrainStarted, step=40)]),
        (699.9, events.StepSeen(41), []),
        (700, events.StepSeen(42), [events.Save()]),
    )
    plays(
        Story(checkpoint_steps=40),
        (1, events.Prepared(40), [told(vm_events.TrainStarted, step=40)]),
        (2, events.StepSeen(79), []),
        (3, events.StepSeen(80), [events.Save()]),
    )


def test_an_evaluation_is_not_begun_twice_and_the_next_one_is_of_the_next_checkpoint() -> None:
    evaluated = told(vm_events.TrainEvaluated, step=9, metrics={})
    plays(
        Story(checkpoint_steps=None, chief="worker"),
        (0, events.EvaluationRequested(), []),
        (1, events.Prepared(7), [told(vm_events.TrainStarted, step=7)]),
        (2, events.EvaluationRequested(), [events.Save()]),
        (3, saved(9), [written(9), events.Evaluate(9)]),
        (4, events.EvaluationRequested(), [events.Save()]),
        (5, saved(12), [written(12)]),
        (6, events.EvaluationDone(9), [evaluated]),
        (7, events.SaveRequested(), [events.Save()]),
        (8, saved(13), [written(13, asked=True), events.Evaluate(13)]),
        (9, events.EvaluationDone(13, reason="no dev split"), [
            told(vm_events.TrainUnevaluated, step=13, reason="no dev split"),
        ]),
        (9, events.SaveRequested(), [events.Save()]),
        (9, saved(14), [written(14, asked=True)]),
        (10, events.StepSeen(101), [events.Save()]),
        (11, events.EvaluationRequested(), []),
        (12, saved(101), [written(101), made(101), events.Evaluate(101, last=True)]),
        (13, events.EvaluationDone(9), [evaluated, events.Evaluate(101, last=True)]),
    )  # fmt: skip


def test_only_an_error_that_nobody_else_trains_in_spite_of_ends_a_run() -> None:
    story = training(workers=2)
    said = "Received a label of 39. Labels: 31 38"
    for _ in range(5):
        plays(story, (1, events.Trouble(1, said, fatal=False), []))
    plays(
        story,
        (2, events.Leaving(2, "revoked"), [
            left(1, 1, "revoked"), events.Release(1), events.Persist(), tell(1, "active", active=1),
        ]),
        (2, events.Joined(3, "worker-2"), [events.Persist(), welcome(3, 2, 1)]),
        (3, events.Trouble(1, "another", fatal=False), []),
        (4, events.Trouble(1, said, fatal=False), [
            told(vm_events.TrainFailed, step=0, reason=said), go(1), go(3), events.Finish(65),
        ]),
    )  # fmt: skip
    story = training(workers=2)
    plays(story, (1, events.Trouble(1, said, fatal=True), [
        told(vm_events.TrainFailed, step=0, reason=said), go(1), go(2), events.Finish(65),
    ]))  # fmt: skip


def test_a_loss_that_is_no_number_is_told_with_its_step_and_what_to_do() -> None:
    story = training(workers=1)
    lines = [{"worker": "worker-0", "step": 1200 + step, "steps": 1, "loss": None} for step in range(3)]
    for line in lines[:2]:
        plays(story, (1, events.Heartbeat(1, line), [events.Record(line)]))
    reason = "the loss is not a number any more since step 1,200, first on worker-0: lower learning_rate"
    plays(story, (2, events.Heartbeat(1, lines[2]), [
        events.Record(lines[2]), told(vm_events.TrainFailed, step=0, reason=reason), go(1), events.Finish(65),
    ]))  # fmt: skip


def test_what_the_chief_does_not_know_is_an_error_of_ours() -> None:
    with pytest.raises(TypeError, match=r"^not an event of the chief: 'surprise'$"):
        training().state.handle("surprise", 1.0)


def slowed(meanwhile: Any = None, **plan: Any) -> list[dict[str, Any]]:
    """What is told of a run that makes half of what it made before, from when `meanwhile` happens on."""
    plan = {"train_steps": 10**6, "checkpoint_steps": None, "alarm_below": 0.8, "alarm_after": 5.0, **plan}
    story = training(workers=1, **plan)
    for second in range(80):
        line = {"step": 9, "steps": 10, "samples": 331 if second < 40 else 150, "compute_seconds": 1.07}
        story(events.Heartbeat(1, {**line, "loss": 1.0}), after=0.93)
        story(events.ServerLoad("ps-0", Load(1.9 * second, 50.0 + second, 2)), after=0.0)
        if meanwhile and second == 40:
            story(meanwhile, after=0.0)
            if isinstance(meanwhile, events.EvaluationRequested):
                story(saved(9), after=0.0)
        story(events.Tick(), after=0.0)
    return story.emitted("train.slow")


def test_a_slow_run_is_told_in_tenths_but_not_where_it_was_disturbed() -> None:
    assert slowed() == [{
        "run": "run-1", "speed": 161.3, "expected": 309.3, "bottleneck": "parameter server", "worker": "", "server": "",
        "servers": 0, "with_servers": 0.0,
    }]  # fmt: skip
    assert slowed(alarm_below=0.0) == []
    assert slowed(events.EvaluationRequested()) == [], "while an evaluation goes on, it is no wonder"
    assert slowed(events.SaveRequested()) == [], "nor while a checkpoint is being written"
    assert slowed(events.StepSeen(10**6)) == [], "nor at the end"


@pytest.mark.parametrize(("mode", "bottleneck", "worker"), [("sync", "worker", "worker-1"), ("async", "network", "")])
def test_where_workers_wait_for_each_other_the_one_that_all_wait_for_is_named(
    mode: str, bottleneck: str, worker: str
) -> None:
    story = training(
        workers=2, mode=mode, train_steps=10**6, checkpoint_steps=None, alarm_below=0.8, alarm_after=5.0
    )  # fmt: skip
    for second in range(80):
        slow = second >= 40
        for connection, waits in ((1, 0.5 if slow else 0.0), (2, 0.0)):
            computes = 0.5 if waits or not slow else 1.0
            line = {"step": 9, "steps": 10, "samples": 160, "compute_seconds": computes, "wait_seconds": waits}
            story(events.Heartbeat(connection, {**line, "loss": 1.0}), after=0.5 if slow else 0.25)
        story(events.Tick(), after=0.0)
    (said,) = story.emitted("train.slow")
    assert (said["bottleneck"], said["worker"]) == (bottleneck, worker)


@pytest.mark.parametrize("batching", ["static", "dynamic"])
def test_mini_batches_are_told_to_all_whom_they_concern(batching: str) -> None:
    def batch(connection: int, size: int, share: float) -> events.Send:
        return tell(connection, "batch", size=size, share=share)

    def resized(number: int, old: int, new: int, reason: str) -> events.Emit:
        return told(vm_events.WorkerBatchResized, worker=f"worker-{number}", old=old, new=new, reason=reason)

    grown = "static" if batching == "static" else "join"
    plays(
        Story(batching=batching, workers=2),
        (0, events.Prepared(0, batch=32), [told(vm_events.TrainStarted, step=0), events.Save()]),
        (1, events.Joined(1, "worker-0", accelerator="Tesla K80"), [events.Persist(), welcome(1, 0, 1)]),
        (1, events.Stepping(1, 2.0, speed=1.0), [
            joined(0, 1), batch(1, 32, 1.0), events.Persist(), tell(1, "active", active=1),
        ]),
        (2, events.Joined(2, "worker-1"), [events.Persist(), welcome(2, 1, 1)]),
        (2, events.Heartbeat(2), []),
        (2, events.Stepping(2, 2.0, speed=3.0), [
            joined(1, 2), resized(0, 32, 16, grown), resized(1, 32, 48, grown), events.Persist(), batch(1, 16, 0.5),
            batch(2, 48, 1.5), events.Persist(), tell(1, "active", active=2), tell(2, "active", active=2),
        ]),
        (3, events.Joined(7, "worker-1", number=1), [welcome(7, 1, 2), batch(7, 48, 1.5)]),
        (4, events.Exhausted(7, 24), [
            resized(0, 16, 40, "oom"), resized(1, 48, 24, "oom"), events.Persist(), batch(1, 40, 1.25),
            batch(7, 24, 0.75),
        ]),
        (5, events.Heartbeat(1), []),
        (5, events.Exhausted(9, 24), [go(9)]),
        (5.5, events.Tick(), []),
        (6, events.Leaving(7, "revoked"), [
            left(1, 1, "revoked"), events.Release(1), resized(0, 40, 64, "revocation"), events.Persist(),
            batch(1, 64, 1.0), events.Persist(), tell(1, "active", active=1),
        ]),
        (7, events.StopRequested(), []),
        (8, events.Disconnected(1), [left(0, 0, "lost"), events.Persist()]),
    )  # fmt: skip


def test_where_workers_tell_no_speed_the_names_of_their_gpus_do() -> None:
    story = Story(batching="static", workers=2)
    story(events.Prepared(0, batch=32))
    for connection, gpu in ((1, "Tesla K80"), (2, "Tesla V100-SXM2-16GB")):
        story(events.Joined(connection, f"worker-{connection}", gpu))
        story(events.Heartbeat(connection))
        said = story(events.Stepping(connection, 2.0))
    assert {each.connection: each.message.size for each in said if hasattr(getattr(each, "message", None), "size")} == {
        1: 14, 2: 50,
    }, "as 1 to 3.42"  # fmt: skip
