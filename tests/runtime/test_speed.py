"""When a cluster counts as slower than its workers can be, and what is named as the reason."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from transient_magics.runtime.speed import Slow, SpeedAlarm

Second = tuple[int, float, float]
"""Steps of 32 examples, seconds of computing and of waiting, within one second."""


class Cluster:
    """Feeds an alarm second by second."""

    def __init__(self, below: float = 0.8, after: float = 30.0, cores: int = 2) -> None:
        self.alarm = SpeedAlarm(below, after, cores)
        self.now, self.cpu = 1000.0, 5.0

    def train(self, seconds: int, each: Mapping[str, Second], cpu: float = 0.2, disturbed: bool = False) -> list[Slow]:
        said = []
        for _ in range(seconds):
            self.now, self.cpu = self.now + 1, self.cpu + cpu
            for worker, (steps, computing, waiting) in each.items():
                line = {"steps": steps, "samples": 32 * steps, "compute_seconds": computing, "wait_seconds": waiting}
                self.alarm.heard(worker, line)
            said.append(self.alarm.look(each, self.cpu, self.now, disturbed))
        return [each for each in said if each]


FAST = {"worker-1": (10, 1.0, 0.0), "worker-2": (10, 1.0, 0.0), "worker-3": (10, 1.0, 0.0)}
HALF = dict.fromkeys(FAST, (5, 1.0, 0.0))


def test_a_cluster_that_goes_on_as_it_began_is_not_slow():
    assert Cluster().train(300, FAST) == []


def test_all_slower_than_they_were_is_the_network_or_the_parameter_server_when_that_is_busy():
    for cpu, bottleneck in ((0.2, "network"), (1.9, "parameter server")):
        cluster = Cluster()
        cluster.train(60, FAST)
        (slow,) = cluster.train(100, HALF, cpu)
        assert (slow.bottleneck, slow.worker) == (bottleneck, "")
        assert abs(slow.speed / slow.expected - 0.5) < 0.05


def test_one_that_fell_behind_is_named():
    cluster = Cluster()
    cluster.train(60, FAST)
    (slow,) = cluster.train(60, {**FAST, "worker-2": (1, 1.0, 0.0)})
    assert (slow.bottleneck, slow.worker) == ("worker", "worker-2")


def test_the_one_that_the_others_wait_for_is_named():
    at_the_barrier = {"worker-1": (5, 0.4, 0.6), "worker-2": (5, 1.0, 0.0), "worker-3": (5, 0.5, 0.5)}
    (slow,) = Cluster().train(120, at_the_barrier)
    assert (slow.bottleneck, slow.worker) == ("worker", "worker-2")


def test_it_is_said_once_and_again_after_it_was_well():
    cluster = Cluster()
    cluster.train(60, FAST)
    assert len(cluster.train(200, HALF)) == 1
    assert cluster.train(60, FAST) == []
    assert len(cluster.train(200, HALF)) == 1


def test_warming_up_disturbances_and_short_dips_are_passed_over():
    cluster = Cluster(after=60.0)
    cluster.train(29, FAST)
    assert cluster.train(25, HALF) == []  # nothing was expected of them yet
    cluster = Cluster()
    cluster.train(60, FAST)
    assert cluster.train(100, HALF, disturbed=True) == []
    cluster.train(30, FAST)
    assert cluster.train(9, HALF) == []
    assert cluster.train(60, FAST) == []


def test_a_worker_that_left_or_joined_changes_what_is_expected():
    cluster = Cluster()
    cluster.train(60, FAST)
    two = {name: FAST[name] for name in ("worker-1", "worker-2")}
    assert cluster.train(100, two) == []
    assert cluster.train(100, {**two, "worker-9": (3, 1.0, 0.0)}) == []


@given(st.lists(st.integers(0, 20), min_size=40, max_size=120))
def test_an_alarm_that_is_off_says_nothing(steps: list[int]):
    cluster = Cluster(below=0.0)
    for count in steps:
        assert cluster.train(3, {"worker-1": (count, 1.0 if count else 0.0, 0.0)}) == []
