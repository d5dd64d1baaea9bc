"""The time of day without jumps: followed as it drifts, and believed where it has stayed elsewhere for long."""

from __future__ import annotations

import pytest

from transient_magics.journal import SteadyClock

BEGIN = 1_700_000_000.0


class Machine:
    """A machine whose wall clock is `wrong` by some seconds."""

    def __init__(self) -> None:
        self.up, self.wrong = 100.0, 0.0
        self.clock = SteadyClock(lambda: BEGIN + self.up + self.wrong, lambda: self.up)

    def shows(self, after: float) -> float:
        """What the steady clock shows so many seconds later, less the true time."""
        self.up += after
        return round(self.clock.now() - BEGIN - self.up, 3)


def test_a_clock_that_jumps_back_and_forth_moves_nothing() -> None:
    machine = Machine()
    for wrong in (3600.0, -7200.0, 0.0, 86_400.0 * 365, -30.0, 0.0):
        machine.wrong = wrong
        assert machine.shows(1) == 0
        assert machine.shows(590) == 0


def test_a_clock_that_is_set_right_by_and_by_is_followed() -> None:
    machine = Machine()
    for step in range(100):
        machine.wrong = 2.0 * step
        assert machine.shows(10) == machine.wrong


@pytest.mark.parametrize("seconds", [-3600.0, -30.0, 30.0, 86_400.0])
def test_a_jump_is_believed_after_ten_minutes_and_not_before(seconds: float) -> None:
    machine = Machine()
    machine.wrong = seconds
    assert machine.shows(1) == 0  # The jump is first seen here.
    for minute in range(1, 10):
        assert machine.shows(60) == 0, f"after {minute} min"
    assert machine.shows(59) == 0
    assert machine.shows(1) == seconds


def test_a_clock_that_is_set_right_after_a_believed_jump_is_believed_after_ten_minutes_again() -> None:
    machine = Machine()
    machine.wrong = -3600.0
    machine.shows(1)
    assert machine.shows(600) == -3600
    machine.wrong = 0.0
    assert machine.shows(1) == -3600
    assert machine.shows(599) == -3600
    assert machine.shows(1) == 0
