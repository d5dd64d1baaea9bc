"""Values under numbers are as those of a dict, and one more of them costs no copy of all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.works.bags.numbered import Numbered


@given(st.lists(st.tuples(st.integers(0, 400), st.integers())), st.integers(0, 300))
def test_it_is_as_a_dict_and_what_was_is_not_changed(changes: list[tuple[int, int]], size: int) -> None:
    values, known = Numbered(range(size)), dict(enumerate(range(size)))
    for number, value in changes:
        before, was = values, dict(known)
        if number > len(known):
            with pytest.raises(KeyError):
                values.with_value(number, value)
            continue
        values, known[number] = values.with_value(number, value), value
        assert dict(before) == was
    assert values == known
    assert list(values.items()) == list(known.items())
    for missing in (-1, len(known)):
        assert missing not in values


def test_all_but_one_part_is_shared() -> None:
    values = Numbered(range(10_000))
    changed = values.with_value(5_000, 0)
    shared = [ours is theirs for ours, theirs in zip(values._blocks, changed._blocks, strict=True)]
    assert shared.count(False) == 1
