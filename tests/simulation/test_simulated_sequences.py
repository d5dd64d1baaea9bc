"""Sequences of faults against the controller's core: it heals in time, and nothing is lost, doubled or left."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import SEQUENCES
from tests.simulation.story import sequence

FIRST_SEEDS = 32  # benchmarks/bench_simulation.py runs ten thousand


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 8))])
def test_whatever_fails_no_promise_is_broken(part: int) -> None:
    broken = {seed: list(sequence(seed).observer.broken) for seed in range(part, FIRST_SEEDS, 8)}
    assert not {seed: what for seed, what in broken.items() if what}


@pytest.mark.slow
@pytest.mark.parametrize("found", SEQUENCES)
def test_what_was_found_once_stays_away(found: str) -> None:
    assert not sequence(SEQUENCES[found]).observer.broken
