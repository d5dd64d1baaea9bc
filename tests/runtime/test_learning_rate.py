"""What the learning rate is divided by."""

from __future__ import annotations

import pytest

from transient_magics.runtime.learning_rate import divisor


@pytest.mark.parametrize(
    ("policy", "synchronous", "divisors"),
    [
        ("active", False, [1.0, 1.0, 2.0]),
        ("slots", False, [3.0, 3.0, 3.0]),
        ("fixed", False, [1.0, 1.0, 1.0]),
        ("active", True, [1.0, 1.0, 1.0]),
        ("slots", True, [3.0, 3.0, 3.0]),
        ("fixed", True, [1.0, 1.0, 1.0]),
    ],
)
def test_the_divisor_follows_those_who_train_or_is_what_was_declared(
    policy: str, synchronous: bool, divisors: list[float]
):
    found = [divisor(policy, synchronous=synchronous, active=active, slots=9) for active in (0, 1, 4)]
    assert found == divisors


def test_undeclared_slots_divide_by_one():
    assert divisor("slots", synchronous=False, active=4, slots=0) == 1.0
