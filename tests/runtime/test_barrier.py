"""When a synchronous step is complete, how often that is looked at, and whom it waits for."""

from __future__ import annotations

import pytest

from tests.runtime.test_chief_state import Story
from transient_magics.runtime.parameter_server.chief import events as events
from transient_magics.runtime.training.step_rules import PollSchedule, gradients_needed


@pytest.mark.parametrize(
    ("live", "backup", "gradients"), [(3, 0, 3), (2, 0, 2), (3, 1, 2), (1, 0, 1), (0, 0, 1), (2, 2, 1), (1, 5, 1)]
)
def test_a_step_takes_the_live_workers_but_the_backups_and_at_least_one(live: int, backup: int, gradients: int):
    assert gradients_needed(live, backup) == gradients


@pytest.mark.parametrize("seconds", [0.01, 0.25, 3.0])
def test_looks_are_few_and_come_late_by_a_tenth_of_a_step(seconds: float):
    looks = PollSchedule()
    for _ in range(40):
        times = looked(looks, seconds)
        looks.happened(times[-1])
    assert times[-1] - seconds <= 0.1 * seconds + 0.001
    assert len(times) <= 12 + seconds / 0.05


def test_a_step_that_is_suddenly_short_is_seen_soon():
    looks = PollSchedule()
    for _ in range(40):
        looks.happened(3.0)
    assert looked(looks, 0.1)[-1] <= 0.15 + 1e-6


def looked(looks: PollSchedule, seconds: float) -> list[float]:
    """When somebody looks for what happens after `seconds`."""
    times = [looks.pause(0.0)]
    while times[-1] < seconds:
        times.append(times[-1] + looks.pause(times[-1]))
    return times


def test_a_step_waits_for_those_that_train_and_can_be_heard():
    story = Story()
    story(events.Prepared(0))
    story(events.Joined(1, "worker-1"))
    assert story.state.live(story.now) == 0  # it still builds its graph
    story(events.Stepping(1, 2.0))
    story.joins(2, "worker-2")
    story.joins(3, "worker-3")
    assert story.state.live(story.now) == 3
    story(events.Disconnected(3))
    assert story.state.live(story.now) == 2
    for _ in range(3):  # worker-2 is frozen: not waited for long before it counts as lost
        story(events.Heartbeat(1), after=1.0)
    assert (story.state.live(story.now), story.state.active) == (1, 2)
    story(events.Heartbeat(2))
    assert story.state.live(story.now) == 2


def test_a_restarted_chief_waits_for_nobody_who_is_not_back():
    first = Story()
    first(events.Prepared(0))
    for connection in (1, 2):
        first.joins(connection, f"worker-{connection}")
    second = Story(first)
    second(events.Prepared(40))
    assert (second.state.live(second.now), second.state.active) == (0, 2)
    second(events.Joined(5, "worker-1", number=0))
    assert second.state.live(second.now) == 1
