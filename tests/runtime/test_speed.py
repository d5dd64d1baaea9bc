"""When a cluster counts as slower than its workers can be, and what is named as the reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.protocol.step_parts import StepParts
from transient_magics.runtime.parameter_server.chief.speed_alarm import Recovered, Slow, SpeedAlarm
from transient_magics.runtime.parameter_server.server_load import Load

Second = tuple[int, float, float] | tuple[int, float, float, StepParts]
"""Steps of 32 examples, seconds of computing and of waiting, within one second; where they went."""


class Cluster:
    """Feeds an alarm second by second."""

    def __init__(self, below: float = 0.8, after: float = 30.0, cores: int = 2, sync: bool = False) -> None:
        self.alarm, self.cores = SpeedAlarm(below, after, sync), cores
        self.now, self.cpu = 1000.0, dict[str, float]()

    def train(
        self, seconds: int, each: Mapping[str, Second], *cpus: float, disturbed: bool = False, saving: bool = False
    ) -> list[Slow | Recovered]:
        """`cpus`: of each parameter server's cores, how many it takes (one server, 0.2)."""
        said = []
        for _ in range(seconds):
            self.now += 1
            for index, cpu in enumerate(cpus or (0.2,)):
                name = f"ps-{index}"
                self.cpu[name] = self.cpu.get(name, 5.0) + cpu
                if not index or self.now % 2:  # the others' word comes over the network, and later
                    self.alarm.add_load(name, Load(self.cpu[name], 77.0 * (1 + index) + self.now, self.cores))
            for worker, (steps, computing, waiting, *parts) in each.items():
                line = {"steps": steps, "samples": 32 * steps, "compute_seconds": computing, "wait_seconds": waiting}
                line |= {"split": parts[0].rounded} if parts else {}
                self.alarm.add_metrics(worker, line, self.now)
            said.append(self.alarm.check(each, self.now, disturbed, saving))
        return [each for each in said if each]

    def slow(self, seconds: int, each: Mapping[str, Second], *cpus: float) -> Slow:
        """What is told in these seconds, which is one alarm."""
        (told,) = self.train(seconds, each, *cpus)
        assert isinstance(told, Slow)
        return told


FAST = {"worker-1": (10, 1.0, 0.0), "worker-2": (10, 1.0, 0.0), "worker-3": (10, 1.0, 0.0)}
HALF = dict.fromkeys(FAST, (5, 1.0, 0.0))


def test_a_cluster_that_goes_on_as_it_began_is_not_slow():
    assert Cluster().train(300, FAST) == []


def test_all_slower_than_they_were_is_the_network_or_the_parameter_server_when_that_is_busy():
    for cpu, bottleneck in ((0.2, "network"), (1.9, "parameter server")):
        cluster = Cluster()
        cluster.train(60, FAST)
        slow = cluster.slow(100, HALF, cpu)
        assert (slow.bottleneck, slow.worker, slow.server) == (bottleneck, "", "")
        assert abs(slow.speed / slow.expected - 0.5) < 0.05


@pytest.mark.parametrize(
    ("cpus", "bottleneck", "server"),
    [
        ((0.2, 1.9, 0.3), "parameter server", "ps-1"),
        ((1.8, 0.3, 1.9), "parameter server", "ps-2"),
        ((1.9, 0.3), "parameter server", "ps-0"),
        ((1.0, 1.5), "network", ""),
    ],
)
def test_of_several_parameter_servers_the_busiest_is_named(cpus: tuple[float, ...], bottleneck: str, server: str):
    cluster = Cluster()
    cluster.train(60, FAST, *cpus)
    slow = cluster.slow(100, HALF, *cpus)
    assert (slow.bottleneck, slow.worker, slow.server) == (bottleneck, "", server)


def test_a_parameter_server_that_is_not_heard_any_more_is_not_blamed():
    cluster = Cluster()
    cluster.train(60, FAST, 0.2, 1.9)
    assert cluster.slow(100, HALF, 0.2).bottleneck == "network"


@pytest.mark.parametrize("from_the_first_step", [True, False])
def test_an_input_pipeline_that_is_too_slow_is_named_also_from_the_first_step_on(from_the_first_step: bool):
    cluster = Cluster()
    if not from_the_first_step:
        cluster.train(60, dict.fromkeys(FAST, (10, 1.0, 0.0, StepParts(input=0.02, compute=0.98))))
    slow = cluster.slow(100, dict.fromkeys(FAST, (5, 1.0, 0.0, StepParts(input=0.5, compute=0.5))))
    assert slow.bottleneck == "input pipeline"
    assert slow.speed / slow.expected == pytest.approx(0.5, abs=0.03)
    (well,) = cluster.train(60, dict.fromkeys(FAST, (10, 1.0, 0.0, StepParts(input=0.02, compute=0.98))))
    assert isinstance(well, Recovered)


@pytest.mark.parametrize(("servers", "faster"), [(1, 1 / 0.6), (2, 1 / (1 - 0.8 / 3))])
def test_a_parameter_server_at_its_limit_from_the_first_step_on_is_told_with_what_one_more_would_give(
    servers: int, faster: float
):
    bound = dict.fromkeys(FAST, (10, 1.0, 0.0, StepParts(pull=0.5, compute=0.2, push=0.3)))
    slow = Cluster().slow(100, bound, *servers * [1.9])
    assert (slow.bottleneck, slow.servers) == ("parameter server", servers + 1)
    assert slow.with_servers / slow.speed == slow.expected / slow.speed == pytest.approx(faster)
    assert Cluster().train(100, bound) == [], "it has CPU to spare, so another would not help"
    little = dict.fromkeys(FAST, (10, 1.0, 0.0, StepParts(pull=0.1, compute=0.8, push=0.1)))
    assert Cluster().train(100, little, 1.9) == []


def test_one_that_fell_behind_is_named():
    cluster = Cluster()
    cluster.train(60, FAST)
    slow = cluster.slow(60, {**FAST, "worker-2": (1, 1.0, 0.0)})
    assert (slow.bottleneck, slow.worker) == ("worker", "worker-2")


def test_the_one_that_the_others_wait_for_is_named():
    at_the_barrier = {"worker-1": (5, 0.4, 0.6), "worker-2": (5, 1.0, 0.0), "worker-3": (5, 0.5, 0.5)}
    slow = Cluster(sync=True).slow(120, at_the_barrier)
    assert (slow.bottleneck, slow.worker) == ("worker", "worker-2")


def test_seconds_between_steps_blame_nobody_where_workers_do_not_wait_for_each_other():
    cluster = Cluster()
    cluster.train(60, FAST)
    slow = cluster.slow(60, {**FAST, "worker-2": (1, 0.1, 0.9), "worker-3": (1, 0.1, 0.9)})
    assert slow.worker == ""


def test_it_is_said_once_taken_back_and_said_again():
    cluster = Cluster()
    cluster.train(60, FAST)
    for _ in range(2):
        assert isinstance(cluster.slow(200, HALF), Slow)
        (well,) = cluster.train(200, FAST)
        assert isinstance(well, Recovered)
        assert well.speed == pytest.approx(well.expected)


def test_another_reason_is_told_too_but_not_one_that_comes_and_goes():
    cluster = Cluster()
    cluster.train(60, FAST)
    behind = {**FAST, "worker-2": (1, 1.0, 0.0)}
    assert cluster.slow(60, HALF).bottleneck == "network"
    assert cluster.train(10, behind) == []
    assert cluster.train(60, HALF) == []
    assert cluster.slow(60, behind).worker == "worker-2"


def test_the_slow_one_is_revoked_and_all_is_well_again():
    cluster = Cluster()
    cluster.train(60, FAST)
    assert cluster.slow(60, {**FAST, "worker-2": (1, 1.0, 0.0)}).worker == "worker-2"
    (well,) = cluster.train(60, {name: FAST[name] for name in ("worker-1", "worker-3")})
    assert isinstance(well, Recovered)


def test_nothing_is_taken_back_before_those_who_are_left_have_been_seen():
    cluster = Cluster()
    cluster.train(60, FAST)
    cluster.slow(60, HALF)
    assert cluster.train(29, {"worker-9": (10, 1.0, 0.0)}) == []
    assert len(cluster.train(60, {"worker-9": (10, 1.0, 0.0)})) == 1


def test_a_standstill_is_slow():
    cluster = Cluster()
    cluster.train(60, FAST)
    assert cluster.slow(60, dict.fromkeys(FAST, (0, 0.0, 0.0))).speed == 0


def test_steps_that_take_longer_than_a_window_are_no_standstill():
    cluster = Cluster()
    long = [{name: (int(second % 25 == 0), 25.0, 0.0) for name in FAST} for second in range(1, 400)]
    assert [told for each in long for told in cluster.train(1, each)] == []


@given(st.lists(st.floats(0.5, 1.6), min_size=200, max_size=200))
def test_the_published_gap_is_found_however_irregularly_lines_come(gaps: list[float]):
    alarm, now, told = SpeedAlarm(0.933, 30.0), 0.0, list[Slow | Recovered]()
    alarm.check(["worker-1"], now)
    for gap in gaps:
        now += gap
        samples = round(gap * (100_000 if now < 60 else 90_000))  # since the last line
        alarm.add_metrics("worker-1", {"steps": 10, "samples": samples, "compute_seconds": gap}, now)
        if verdict := alarm.check(["worker-1"], now + 0.2):
            assert now > 60
            told.append(verdict)
    (slow,) = told
    assert isinstance(slow, Slow)
    assert slow.speed == pytest.approx(0.9 * slow.expected, rel=0.01)


def test_a_run_that_saves_every_few_seconds_is_judged_by_the_others():
    cluster = Cluster()
    told = []
    for each in (*20 * [FAST], *20 * [HALF]):
        stopped = dict.fromkeys(FAST, (0, 0.0, 0.0))
        told += cluster.train(1, stopped, saving=True) + cluster.train(3, each)
    (slow,) = told
    assert isinstance(slow, Slow)
    assert slow.speed / slow.expected == pytest.approx(0.5)


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
