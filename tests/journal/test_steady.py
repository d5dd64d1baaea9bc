"""The time of day without jumps: followed as it drifts, and believed where it has stayed elsewhere for long."""

from __future__ import annotations

from transient_magics.journal import SteadyClock
from transient_magics.journal.steady import BELIEVED_SECONDS

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
        assert machine.shows(BELIEVED_SECONDS - 10) == 0


def test_a_clock_that_is_set_right_by_and_by_is_followed() -> None:
    machine = Machine()
    for step in range(100):
        machine.wrong = 2.0 * step
        assert machine.shows(10) == machine.wrong


def test_a_jump_that_lasts_is_believed() -> None:
    machine = Machine()
    machine.wrong = -3600.0
    assert machine.shows(1) == 0
    assert machine.shows(BELIEVED_SECONDS) == -3600
    machine.wrong = 0.0
    assert machine.shows(1) == -3600
