"""Pauses between attempts: doubled, bounded, and not the same for all."""

from __future__ import annotations

import pytest

from transient_magics.protocol.backoff import backoff


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (1000, 3.0)])
def test_a_pause_is_doubled_after_each_failure_up_to_the_longest(failures: int, seconds: float) -> None:
    pauses = {backoff(failures, first=0.5, longest=3.0) for _ in range(50)}
    assert all(0.8 * seconds <= pause <= 1.2 * seconds for pause in pauses)
    assert len(pauses) > 1
