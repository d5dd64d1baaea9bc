"""Random faults against the controller's core: it ends in the declared cluster, with nothing lost or doubled."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from simulated_cloud import World

from transient_magics.journal import events

SEQUENCES = 400  # benchmarks/bench_faults.py runs ten thousand


@pytest.mark.parametrize("part", range(4))
def test_after_any_faults_the_declared_cluster_runs_and_nothing_else(part: int) -> None:
    for seed in range(part * SEQUENCES // 4, (part + 1) * SEQUENCES // 4):
        world = run(seed)
        check(world, seed)


def run(seed: int) -> World:
    """One sequence: a while of faults, then none."""
    chance = random.Random(seed)
    world = World(chance, rate=chance.choice([0.05, 0.3, 0.7]))
    for _ in range(chance.randint(10, 120)):
        world.step(chance.choice([1.0, 5.0, 30.0]))
        never_doubled(world, seed)
    world.settle()
    return world


def never_doubled(world: World, seed: int) -> None:
    """At no moment two VMs in one place, beside one that is leaving."""
    present = Counter((vm.role, vm.slot) for vm in world.state.living if vm.state != "leaving")
    assert max(present.values(), default=0) <= 1, f"seed {seed}: a place was filled twice"


def check(world: World, seed: int) -> None:
    """The declared cluster, and nothing else."""
    present = sorted((vm.role, vm.slot) for vm in world.state.living)
    assert present == [("ps", 0), *(("worker", slot) for slot in range(4))], f"seed {seed}"
    assert set(world.instances) == {vm.name for vm in world.state.living}, f"seed {seed}: a VM leaked"
    assert all(vm.running_at for vm in world.state.living), f"seed {seed}"
    assert len(world.names) == len(set(world.names)), f"seed {seed}: a name was used twice"


def test_a_deleted_cluster_leaves_nothing_whatever_happened() -> None:
    for seed in range(SEQUENCES // 4):
        chance = random.Random(seed)
        world = World(chance, rate=0.5)
        for _ in range(chance.randint(1, 60)):
            world.step(chance.choice([1.0, 5.0, 30.0]))
        world.happens(events.ClusterDeleting(reason="asked"))
        world.settle()
        assert world.state.living == []
        assert world.instances == {}, f"seed {seed}: a VM leaked"
