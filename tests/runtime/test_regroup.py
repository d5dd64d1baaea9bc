"""Mini-batches of any size out of batches that are made already."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from transient_magics.runtime.training.examples import AHEAD, Regrouped

DECLARED = 64


def batch(rows: int, length: int, first: int = 0) -> dict[str, Any]:
    """Rows of that length, each of which holds a number of its own."""
    numbers = numpy.arange(first, first + rows, dtype=numpy.int32)
    return {"targets": numpy.repeat(numbers[:, None], length, 1)[..., None, None], "task": numpy.int32(3)}


def numbers(taken: Any) -> list[int]:
    return taken["targets"][:, 0, 0, 0].tolist()


def test_the_declared_size_gives_the_batches_as_they_came():
    regrouped = Regrouped(DECLARED)
    for rows, length in ((8, 8), (4, 16)):
        regrouped.add(batch(rows, length))
    assert [regrouped.take(DECLARED)["targets"].shape[:2] for _ in range(2)] == [(8, 8), (4, 16)]


def test_smaller_mini_batches_are_cut_and_larger_ones_joined_of_alike_batches_and_filled_up():
    regrouped = Regrouped(DECLARED)
    regrouped.add(batch(8, 7, first=10))
    assert numbers(regrouped.take(DECLARED // 2)) == [10, 11, 12, 13]
    regrouped.add(batch(4, 16, first=100))
    regrouped.add(batch(8, 8, first=20))
    taken = regrouped.take(3 * DECLARED // 2)
    assert numbers(taken) == [*range(14, 18), *range(20, 28)]
    assert taken["targets"].shape == (12, 8, 1, 1)
    assert taken["targets"][0, :, 0, 0].tolist() == [14] * 7 + [0]
    assert taken["task"] == 3
    assert numbers(regrouped.take(DECLARED)) == [100, 101, 102, 103]


def test_what_whole_rows_miss_is_made_up_for():
    regrouped = Regrouped(DECLARED)
    for _ in range(10):
        regrouped.add(batch(5, 12))
    assert [len(numbers(regrouped.take(DECLARED // 2))) for _ in range(6)] == [2, 3, 2, 3, 2, 3]
    assert len(numbers(regrouped.take(2))) == 1  # no mini-batch is empty


@examples(60)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True).flatmap(
        lambda rows: st.permutations([each for each in rows for _ in range(8)])
    ),
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_every_example_comes_once_with_others_of_its_kind(batches: list[int], sizes: list[float]):
    """Sizes go from the least to the largest that there is enough of each kind for."""
    regrouped, kinds, came = Regrouped(DECLARED), {}, list[int]()
    for rows in batches:
        made = batch(rows, 1 + len(kinds) % 9, first=len(kinds))
        kinds |= dict.fromkeys(numbers(made), rows)
        regrouped.add(made)
    for share in sizes:
        left = Counter(kinds[each] for each in kinds.keys() - set(came))
        largest = min((left[rows] - 1) * DECLARED // rows for rows in set(batches))
        if largest < 2:
            break
        size = round(2 + share * (largest - 2))
        taken = numbers(regrouped.take(size))
        (rows,) = {kinds[each] for each in taken}
        assert abs(len(taken) - size / DECLARED * rows) < 1 or len(taken) == 1
        came += taken
    assert came
    assert len(set(came)) == len(came)


def test_reading_waits_while_enough_is_there_and_who_waits_hears_of_errors():
    regrouped = Regrouped(DECLARED)
    for _ in range(AHEAD):
        assert regrouped.add(batch(8, 8), wait=5)
    assert not regrouped.add(batch(8, 8), wait=0.01)
    for _ in range(AHEAD):
        regrouped.take(DECLARED)
    adding = threading.Timer(0.05, regrouped.add, [batch(8, 8)])
    adding.start()
    assert numbers(regrouped.take(DECLARED)) == list(range(8))
    threading.Timer(0.05, regrouped.fail, [OSError("the session was lost")]).start()
    with pytest.raises(OSError, match="session was lost"):
        regrouped.take(DECLARED)
    regrouped.resume()
    regrouped.add(batch(8, 8))
    assert numbers(regrouped.take(DECLARED)) == list(range(8))
