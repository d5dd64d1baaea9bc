"""Workers in another region than their parameter servers: what their distance costs, and how sure that is."""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from transient_magics.catalog.regions import apart
from transient_magics.client import plan
from transient_magics.planner.choices import Choice
from transient_magics.planner.forecast import expected
from transient_magics.planner.plan import Plan, make_plan
from transient_magics.planner.simulate import simulate
from transient_magics.planner.speeds import throughput
from transient_magics.planner.speeds.workloads import PUBLISHED, Estimate
from transient_magics.spec import WorkerGroup

STEP_TIMES = Path(__file__).parents[3] / "shared" / "data" / "cmdare" / "speed_data" / "speed_data_supertable.csv"
RESNET = PUBLISHED["icac19/resnet-32"]
HOME = "us-east1-c"


def choice(*groups: tuple[str, int, str], servers: int = 1) -> Choice:
    return Choice(tuple(WorkerGroup(*each) for each in groups), servers, server_zone=HOME)


def planned(spec: str, **more: object) -> Plan:
    values = {"workload": "icac19/resnet-32", "train_steps": 64_000, "revocations": 0, "ps_zone": HOME, **more}
    found = plan(spec, **values)  # type: ignore[arg-type]
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize(
    ("spec", "hours"),
    [("k80x3@us-east1-c+k80@us-central1-a", 1.074), ("p100x2@us-east1-c+p100x2@us-central1-c", 0.696)],
)
def test_the_hours_that_icac19_published_of_workers_in_two_regions_are_in_the_range(spec: str, hours: float) -> None:
    found = planned(spec)
    low, high = found.interval("hours")
    assert low < hours < high
    assert found.hours == pytest.approx(hours, rel=0.1)


def test_the_steps_that_cmdare_measured_at_30_ms() -> None:
    if not STEP_TIMES.exists():
        pytest.skip("CM-DARE's data set does not lie beside the project")
    seconds: dict[tuple[str, int, str], list[float]] = {}
    for row in csv.DictReader(STEP_TIMES.read_text(encoding="utf-8").splitlines()):
        key = row["GPU TFLOPS"], int(row["Number of Parameters"]), row["Latency (ms)"]
        seconds.setdefault(key, []).append(float(row["Step Time (s)"]))
    far = {key: statistics.fmean(found) for key, found in seconds.items() if key[2] == "30.3"}
    assert len(far) == 8
    for (gpu, parameters, _), measured in far.items():
        near = statistics.fmean(seconds[gpu, parameters, "0.3"])
        assert near + throughput.alone(0.0303, 8 * parameters) == pytest.approx(measured, rel=0.18)


def test_how_fast_a_distant_worker_is_follows_from_its_connection_and_is_as_uncertain_as_that() -> None:
    quick = replace(RESNET, compute={"h100": Estimate(0.001, 0.5, "measured")}, service_seconds=0.0005)
    far = choice(("h100", 1, "europe-west4-a"))
    alone = throughput.alone(far.round_trip(far.placed[0]), quick.bytes_per_step)
    assert far.steps_per_second(quick) < 1 / alone
    assert choice(("h100", 1, HOME)).steps_per_second(quick) > 10 / alone
    hours = simulate(replace(far.course(quick, 10_000), work_error=0.0), runs=2000).hours
    assert (hours < 1.02 * hours.min()).mean() < 0.01, "no limit without an error"
    added = far.added_seconds(quick, far.placed[0])
    twice = choice(("h100", 1, "europe-west4-a"), servers=2)
    halved = far.added_seconds(replace(quick, wire="bf16"), far.placed[0])
    assert halved < 0.6 * added
    assert twice.added_seconds(quick, twice.placed[0]) == pytest.approx(halved), "a connection to each server"


def test_the_error_of_a_distance_is_drawn_and_is_one_for_all_distant_workers() -> None:
    exact = replace(RESNET, speed_error=0.0, limit_error=0.0, scaling_error=0.0)

    def width(found: Plan) -> float:
        low, high = found.interval("hours")
        return (high - low) / found.hours

    near = make_plan(choice(("k80", 4, HOME)), exact, 64_000)
    one = make_plan(choice(("k80", 1, "us-central1-a")), exact, 64_000)
    four = make_plan(choice(("k80", 4, "us-central1-a")), exact, 64_000)
    two_places = make_plan(choice(("k80", 2, "us-central1-a"), ("k80", 2, "us-central1-c")), exact, 64_000)
    assert width(near) < 0.01
    assert width(one) > 1
    assert width(four) == pytest.approx(width(one), rel=0.1), "they are not each as lucky by themselves"
    assert width(two_places) == pytest.approx(width(four), rel=0.05)


def test_a_distance_is_called_an_estimate_and_the_range_a_guess() -> None:
    text = str(planned("k80x3@us-east1-c+k80@us-central1-a"))
    assert "a guess (no run was measured at this distance from its parameter servers)" in text.splitlines()[1]
    assert "us-central1-a to the parameter servers in us-east1-c is estimated, not measured: 26 ms" in text
    assert "which adds about 313 ms to a step. Most simulated courses draw between a sixth and six times that" in text
    near = str(planned("k80x4@us-east1-c"))
    assert "guess" not in near
    assert "distance" not in near
    within = str(planned("k80x3@us-east1-c+k80@us-east1-d"))
    assert "distance" not in within, "zones of one region"


def test_a_run_with_distant_workers_is_not_expected_to_be_as_fast_as_estimated() -> None:
    measured = replace(RESNET, guess="")
    assert expected(measured, choice(("k80", 4, HOME)))
    assert expected(measured, choice(("k80", 3, HOME), ("k80", 1, "us-central1-a"))) is None


def test_the_hourly_price_counts_the_data_of_the_steps_that_distant_workers_make() -> None:
    found = planned("k80x3@us-east1-c+k80@us-west1-b")
    vms = found.hourly - 3600 * found.steps_per_second * found.choice.shares(RESNET)[1] * (
        found.choice.transfer_dollars(RESNET, found.choice.placed[1])
    )
    assert vms == pytest.approx(4 * 0.256 + 0.143, rel=0.001)
    assert found.choice.shares(RESNET)[1] < 0.2


def test_a_region_that_is_not_on_the_map_is_not_near() -> None:
    assert apart("us-central1", "us-central1") == 0
    assert 10 < apart("us-central1", "us-east1") < 20
    assert 3 < apart("us-east1", "us-north9") < 40
    assert apart("europe-west1", "us-north9") > 40
    far = choice(("k80", 1, "us-north9-a"))
    assert far.far()
