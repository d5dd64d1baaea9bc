"""How long training may go on between two checkpoints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transient_magics.runtime.parameter_server.chief.saving import LONGEST, SHORTEST, seconds_between

COSTS = st.floats(0.0, 3600.0)


@given(COSTS)
def test_saving_takes_a_hundredth_of_the_time_unless_ten_minutes_would_be_at_risk(cost: float):
    seconds = seconds_between(cost)
    assert SHORTEST <= seconds <= LONGEST
    assert cost / seconds <= 0.01 + 1e-9 or seconds == LONGEST


@given(COSTS, COSTS)
def test_what_costs_more_is_done_no_more_often(one: float, other: float):
    cheap, dear = sorted((one, other))
    assert seconds_between(cheap) <= seconds_between(dear)
