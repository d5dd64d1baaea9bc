"""Who gets which mini-batch: the arithmetic, with simulated workers."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from transient_magics.catalog import accelerator
from transient_magics.runtime.training.batching import (
    _PEAKS,
    LARGEST,
    SMALLEST,
    BatchController,
    Cost,
    MiniBatch,
    Rule,
    accelerator_speed,
    divide,
    whole,
)


class Workers:
    """Simulated workers: a step of n examples takes (fixed + n * each) / speed seconds, with some noise."""

    def __init__(self, speeds: Mapping[int, float], fixed: float = 0.0, noise: float = 0.0, seed: int = 1) -> None:
        self.speeds, self.fixed, self.noise = dict(speeds), fixed, noise
        self._random = random.Random(seed)

    def seconds(self, worker: int, size: int) -> float:
        exact = (self.fixed + size / 100) / self.speeds[worker]
        return exact * (1 + self._random.gauss(0, self.noise))

    def imbalance(self, sizes: Mapping[int, int]) -> float:
        """The longest step over the mean one."""
        times = [(self.fixed + sizes[worker] / 100) / speed for worker, speed in self.speeds.items()]
        return max(times) * len(times) / sum(times)

    def train(self, controller: BatchController, steps: int) -> int:
        """All make so many steps; returns how often the sizes changed."""
        changes = 0
        for _ in range(steps):
            for worker in self.speeds:
                size = controller.sizes[worker]
                controller.observe(worker, size, self.seconds(worker, size))
            total = sum(controller.sizes.values())
            changes += bool(controller.decide())
            assert sum(controller.sizes.values()) == total
        return changes


def controller_of(policy: str, batch: int, speeds: Mapping[int, float], rule: Rule | None = None) -> BatchController:
    controller = BatchController(policy, batch, len(speeds), rule=rule)
    controller.members(speeds)
    return controller


def test_static_division_is_the_published_one() -> None:
    controller = controller_of("static", 64, {0: 9, 1: 12, 2: 18})
    assert list(controller.sizes.values()) == [44, 59, 89]
    assert controller.decide() == {}


def test_gpus_have_their_published_speeds() -> None:
    assert accelerator_speed("Tesla K80") == accelerator_speed("") == accelerator_speed("Something else") == 1
    assert accelerator_speed("Tesla P100-PCIE-16GB") == pytest.approx(12.19 / 4.56)
    assert accelerator_speed("Tesla V100-SXM2-16GB") == pytest.approx(15.61 / 4.56)


@pytest.mark.parametrize(
    ("model", "entry"),
    [
        ("Tesla T4", "t4"), ("Tesla P4", "p4"), ("NVIDIA L4", "l4"), ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA H100 80GB HBM3", "h100"),
    ],
)  # fmt: skip
def test_gpus_of_which_nobody_published_steps_have_the_speed_of_their_peak(model: str, entry: str) -> None:
    teraflops, memory = _PEAKS["A100" if entry == "a100-80gb" else entry.upper()]
    assert teraflops == accelerator(entry).teraflops, "VMs do not have the catalog"
    assert accelerator_speed(model) == pytest.approx((teraflops / 4.113 * memory / 240) ** 0.5) != 1


def test_gpus_that_nobody_measured_are_ranked_as_their_memory_and_peak_say() -> None:
    order = ["P4", "T4", "P100", "L4", "V100", "A100", "H100"]
    assert sorted(order, key=accelerator_speed) == order
    measured = {"P100": (9.526, 732, 12.19), "V100": (14.1, 900, 15.61)}
    for teraflops, memory, steps in measured.values():
        assert (teraflops * memory / (4.113 * 240)) ** 0.5 == pytest.approx(steps / 4.56, rel=0.06)


@pytest.mark.parametrize("fixed", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("slow", [0.5, 0.3])
def test_unequal_workers_are_balanced_within_three_adjustments(slow: float, fixed: float, noise: float) -> None:
    speeds = {0: 1.0, 1: slow}
    workers, controller = Workers(speeds, fixed, noise), controller_of("dynamic", 32, dict.fromkeys(speeds, 0.0))
    assert workers.imbalance(controller.sizes) > 1.25
    assert 1 <= workers.train(controller, 200) <= 3
    assert workers.imbalance(controller.sizes) < 1.1
    assert sum(controller.sizes.values()) == 64


def test_two_sizes_tell_the_fixed_part_so_that_the_second_adjustment_is_exact() -> None:
    workers = Workers({0: 1.0, 1: 0.3, 2: 0.6}, fixed=0.5)
    controller = controller_of("dynamic", 64, dict.fromkeys(workers.speeds, 0.0))
    assert workers.train(controller, 13) == 1  # the first step of a size does not count, ten after it do
    assert workers.imbalance(controller.sizes) > 1.1
    assert workers.train(controller, 13) == 1
    assert workers.imbalance(controller.sizes) < 1.01
    assert workers.train(controller, 100) == 0


def test_the_published_rule_takes_every_step_for_proportional_and_needs_more_adjustments() -> None:
    published = Rule(step_time="proportional")
    workers = Workers({0: 1.0, 1: 0.3, 2: 0.6}, fixed=0.5)
    controller = controller_of("dynamic", 64, dict.fromkeys(workers.speeds, 0.0), published)
    assert workers.train(controller, 13) == 1
    times = [(0.5 + 0.64) / speed for speed in workers.speeds.values()]
    rule = [64 * sum(times) / 3 / time for time in times]
    assert list(controller.sizes.values()) == [round(192 * size / sum(rule)) for size in rule]
    workers.train(controller, 13)
    assert workers.imbalance(controller.sizes) > 1.03  # the other model is exact here
    assert workers.train(controller, 200) >= 1
    assert workers.imbalance(controller.sizes) < 1.1


def test_the_dead_band_and_the_bounds_are_as_told() -> None:
    workers = Workers({0: 1.0, 1: 0.8})
    assert workers.train(controller_of("dynamic", 32, {0: 1.0, 1: 1.0}, Rule(deadband=0.2)), 100) == 0
    assert workers.train(controller_of("dynamic", 32, {0: 1.0, 1: 1.0}, Rule(deadband=0.1)), 100) == 1
    assert controller_of("static", 32, {0: 4.0, 1: 1.0}, Rule(least=20)).sizes == {0: 44, 1: 20}
    assert controller_of("static", 32, {0: 4.0, 1: 1.0}, Rule(most=40)).sizes == {0: 40, 1: 24}
    assert Rule().bounds(32) == (SMALLEST, LARGEST * 32)
    assert Rule(least=10**6).bounds(32) == (LARGEST * 32, LARGEST * 32)


def test_a_worker_knows_what_a_mini_batch_of_text_weighs_in_the_mean() -> None:
    batch = MiniBatch(256)
    assert batch.expected(256) == 0
    batch.record(256, 100.0)
    batch.record(128, 92.0)
    assert batch.expected(512) == pytest.approx(256.0)


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("noise", [0.01, 0.05])
@pytest.mark.parametrize("seed", range(2))
def test_equal_workers_are_left_alone_however_noisy_they_are(count: int, noise: float, seed: int) -> None:
    speeds = dict.fromkeys(range(count), 1.0)
    workers, controller = Workers(speeds, 0.05, noise, seed), controller_of("dynamic", 32, speeds)
    assert workers.train(controller, 200) == 0


@pytest.mark.parametrize("seed", range(3))
def test_noise_that_lasts_is_no_difference_of_speed(seed: int) -> None:
    """Eight equal workers whose step times wander by 5 %, half of it gone after seven observations."""
    dice, kept = random.Random(seed), 0.9
    controller = controller_of("dynamic", 32, dict.fromkeys(range(8), 1.0))
    off = [dice.gauss(0, 0.05) for _ in range(8)]
    for _ in range(400):
        for worker in range(8):
            off[worker] = kept * off[worker] + (1 - kept**2) ** 0.5 * dice.gauss(0, 0.05)
            controller.observe(worker, controller.sizes[worker], 5 * (1 + off[worker]), 5)
        assert controller.decide() == {}


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_becomes_much_slower_gets_less_on_a_noisy_machine_too(seed: int) -> None:
    workers = Workers({0: 1.0, 1: 1.0}, fixed=0.05, noise=0.3, seed=seed)
    controller = controller_of("dynamic", 64, {0: 1.0, 1: 1.0})
    assert workers.train(controller, 200) == 0
    workers.speeds[1] = 0.2
    workers.train(controller, 60)
    assert controller.sizes[1] < 32


def test_a_worker_that_becomes_slower_gets_less_and_again_more_when_it_recovers() -> None:
    workers = Workers({0: 1.0, 1: 1.0}, fixed=0.05, noise=0.02)
    controller = controller_of("dynamic", 32, {0: 1.0, 1: 1.0})
    assert workers.train(controller, 50) == 0
    workers.speeds[1] = 0.4
    assert 1 <= workers.train(controller, 100) <= 3
    assert workers.imbalance(controller.sizes) < 1.1
    workers.speeds[1] = 1.0
    workers.train(controller, 100)
    assert workers.imbalance(controller.sizes) < 1.1


def test_the_share_of_a_leaving_worker_goes_to_the_others_and_comes_back() -> None:
    controller = BatchController("static", 32, 3)
    controller.members({0: 1.0})
    assert controller.sizes == {0: 32}
    controller.members({0: 1.0, 1: 1.0})
    assert controller.sizes == {0: 32, 1: 32}  # the cluster fills up
    controller.members({0: 1.0, 1: 1.0, 2: 2.0})
    assert controller.sizes == {0: 24, 1: 24, 2: 48}
    controller.members({0: 1.0, 1: 1.0})
    assert controller.sizes == {0: 48, 1: 48}
    controller.members({0: 1.0, 1: 1.0, 7: 1.0, 8: 1.0})
    assert controller.sizes == {0: 24, 1: 24, 7: 24, 8: 24}  # more than declared: B stays
    assert controller.members({0: 1.0, 1: 1.0, 7: 1.0, 8: 1.0}) == {}


def test_what_was_measured_counts_when_others_join_or_leave() -> None:
    workers = Workers({0: 1.0, 1: 0.5})
    controller = BatchController("dynamic", 30, 3)
    controller.members({0: 0.0, 1: 0.0})
    workers.train(controller, 30)
    assert controller.sizes == {0: 40, 1: 20}
    controller.members({0: 0.0, 1: 0.0, 2: 0.0})  # a new one is taken for an average one
    assert sum(controller.sizes.values()) == 90
    assert controller.sizes[0] == pytest.approx(2 * controller.sizes[1], abs=2)
    assert controller.sizes[1] < controller.sizes[2] < controller.sizes[0]


def test_a_worker_gets_slower_altogether_and_is_not_asked_again() -> None:
    class Thrashing(Workers):
        def seconds(self, worker: int, size: int) -> float:
            return super().seconds(worker, size) * (3 if worker == 0 and size > 40 else 1)

    workers = Thrashing({0: 1.0, 1: 0.25, 2: 0.25})
    controller = controller_of("dynamic", 32, dict.fromkeys(workers.speeds, 0.0))
    workers.train(controller, 60)
    assert controller.sizes == {0: 32, 1: 32, 2: 32}


def test_exhausted_memory_is_a_bound_and_the_others_take_over() -> None:
    controller = controller_of("static", 32, {0: 3.0, 1: 1.0})
    assert controller.sizes == {0: 48, 1: 16}
    assert controller.exhausted(0, 32) == {0: 32, 1: 32}
    assert controller.exhausted(5, 32) == {}


def test_a_size_that_turned_out_to_be_too_much_is_not_kept_for_being_near() -> None:
    controller = BatchController("dynamic", 6, 2)
    controller.members({1: 5.0, 2: 1.0})
    assert controller.sizes == {1: 10, 2: 2}

    def observe(seconds: float) -> dict[int, int]:
        for turn in range(16):
            for number, size in controller.sizes.items():
                controller.observe(number, size, seconds * (1.1 if turn % 2 else 0.9), 10)
        return controller.decide()

    assert observe(1.0) == {}
    controller.members({1: 5.0})
    assert controller.sizes == {1: 12}
    assert observe(2.0) == {1: 10}, "two examples are within the noise, but the twelve take twice as long"


def test_a_worker_goes_back_to_what_fitted() -> None:
    batch = MiniBatch(32)
    assert batch.next(None) == (32, 1.0)
    batch.record(32)
    assert batch.next((48, 1.5)) == (48, 1.5)
    assert batch.shrink(48)
    assert batch.next((48, 1.5)) == (32, 1.0)
    assert batch.shrink(32)
    assert batch.fits == 16
    assert not MiniBatch(2).shrink(2)


def test_a_restarted_chief_goes_on_with_the_same_sizes() -> None:
    first = controller_of("static", 64, {0: 9, 1: 12, 2: 18})
    second = BatchController("static", 64, 3, first.to_dict())
    assert second.sizes == first.sizes
    assert second.members({0: 0, 1: 0, 2: 0}) == {}
    assert second.to_dict() == first.to_dict()


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(1e-4, 10), st.integers(SMALLEST, 500)), min_size=1, max_size=12),
    st.integers(1, 3000),
)
def test_sizes_add_up_and_keep_the_bounds(costs: list[tuple[float, float, int]], total: int) -> None:
    known = {key: Cost(*cost) for key, cost in enumerate(costs)}
    largest = {key: cost.largest for key, cost in known.items()}
    wanted = divide(total, known)
    sizes = whole(wanted, total, largest)
    assert sum(sizes.values()) == min(max(total, SMALLEST * len(known)), sum(largest.values()))
    assert all(SMALLEST <= size <= largest[key] for key, size in sizes.items())
    assert all(abs(size - wanted[key]) < 1 + 1e-3 for key, size in sizes.items())


@examples(30)
@given(st.data())
def test_the_global_batch_stays_whatever_happens(data: st.DataObject) -> None:
    batch, declared = data.draw(st.integers(2, 64)), data.draw(st.integers(1, 6))
    policy = data.draw(st.sampled_from(["static", "dynamic"]))
    controller, most, bounds = BatchController(policy, batch, declared), 0, dict[int, int]()
    for _ in range(data.draw(st.integers(1, 12))):
        present = data.draw(st.sets(st.integers(0, 8), min_size=1, max_size=7))
        speeds = {number: data.draw(st.sampled_from([0.0, 1.0, 2.67, 3.42])) for number in present}
        controller.members(speeds)
        most = max(most, min(len(present), declared))
        bounds = {number: bounds.get(number, LARGEST * batch) for number in present}
        if data.draw(st.booleans()):
            victim = data.draw(st.sampled_from(sorted(present)))
            bounds[victim] = min(bounds[victim], max(controller.sizes[victim] // 2, SMALLEST))
            controller.exhausted(victim, controller.sizes[victim] // 2)
        for _ in range(15):
            for number in present:
                seconds = data.draw(st.sampled_from([0.5, 1.0, 1.1])) if number % 2 else 1.0
                controller.observe(number, controller.sizes[number], seconds)
            controller.decide()
            learnt = [controller._times[number].largest for number in present]
            assert sum(controller.sizes.values()) == min(max(batch * most, 2 * len(present)), sum(learnt))
            assert all(SMALLEST <= size <= bounds[number] for number, size in controller.sizes.items())
            assert sum(map(controller.share, present)) == pytest.approx(len(present))


def test_the_mean_of_the_weighted_gradients_is_the_gradient_of_all_examples() -> None:
    controller = controller_of("static", 64, {0: 9, 1: 12, 2: 18})
    random_numbers = np.random.default_rng(3)
    inputs = random_numbers.normal(size=(controller.total, 5)).astype(np.float32)
    targets = random_numbers.normal(size=controller.total).astype(np.float32)
    weights = random_numbers.normal(size=5).astype(np.float32)

    def gradient(rows: slice) -> np.ndarray:
        error = inputs[rows] @ weights - targets[rows]
        return (inputs[rows].T @ error) / np.float32(error.size)

    pushed, begin = [], 0
    for worker, size in controller.sizes.items():
        pushed.append(np.float32(controller.share(worker)) * gradient(slice(begin, begin + size)))
        begin += size
    assert np.mean(pushed, axis=0) == pytest.approx(gradient(slice(0, None)), abs=1e-6)
