"""The published workloads: fitted from the published cells, and met by the plans that are made with them."""

from __future__ import annotations

import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from tests.catalog.published import published
from transient_magics.cli.options import WORKLOADS
from transient_magics.client import plan
from transient_magics.errors import PlanError
from transient_magics.planner.plan import Plan, make_plan
from transient_magics.planner.speeds.fitting import Cell, fit
from transient_magics.planner.speeds.throughput import families, leave_one_out, line
from transient_magics.planner.speeds.workloads import PUBLISHED

ROOT = Path(__file__).parents[2]
STEPS = 64_000
SECONDS = {
    ("k80", 1): (6961, 4730, 3464, 2739, 2318, 1955, 1774), ("k80", 2): (6617, 4408, 3342, 2676, 2222, 1907, 1716),
    ("v100", 1): (2423, 1840, 1623, 1503, 1514, 1372, 1424), ("v100", 2): (1960, 1358, 1070, 967, 871, 840, 812),
}  # fmt: skip
HOURS = [
    ("k80", 1, 3.911), ("k80", 2, 1.992), ("k80", 4, 0.995), ("k80", 8, 0.508), ("k80", 2, 1.962), ("k80", 4, 0.976),
    ("k80", 8, 0.507), ("p100", 1, 1.505), ("v100", 1, 1.232), ("p100", 4, 0.470), ("v100", 4, 0.433),
]  # fmt: skip


def planned(spec: str, **more: object) -> Plan:
    values = {"workload": "icac19/resnet-32", "train_steps": STEPS, "revocations": 0, **more}
    found = plan(spec, **values)  # type: ignore[arg-type]
    assert isinstance(found, Plan)
    return found


def icac_cells() -> list[Cell]:
    cells = [Cell({gpu: n}, ps, STEPS / took) for (gpu, ps), row in SECONDS.items() for n, took in enumerate(row, 2)]
    return cells + [Cell({gpu: count}, 1, STEPS / hours / 3600) for gpu, count, hours in HOURS]


def test_the_figures_of_icac19() -> None:
    alone = planned("k80", ps=0, provisioning_model="standard")
    four = planned("k80x4")
    assert alone.hours == pytest.approx(3.91, rel=0.02)
    assert alone.dollars == pytest.approx(2.83, rel=0.02)
    assert four.hours == pytest.approx(0.98, rel=0.02)
    assert alone.hours / planned("k80x8").hours == pytest.approx(7.7, rel=0.05)
    assert 1 - planned("k80x4", revocations=1).dollars / alone.dollars == pytest.approx(0.591, abs=0.01)
    assert planned("v100x8").hours / planned("v100x8", ps=2).hours == pytest.approx(1.75, rel=0.03)
    assert planned("k80x4", provisioning_model="standard").dollars == pytest.approx(four.on_demand_dollars, rel=0.01)


@pytest.mark.slow
def test_every_hour_and_bill_that_was_published_is_met_as_the_pages_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import bench_plan  # type: ignore[import-not-found]

    assert bench_plan.SERVERS == SECONDS
    errors = [abs(error) for error in bench_plan.icac19()]
    promise = r"all (\d+) durations and costs in the tables differ by at most ([\d.]+)% \(([\d.]+)% on average\)"
    found = f"{100 * max(errors):.1f}", f"{100 * statistics.fmean(errors):.1f}"
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert re.findall(promise, " ".join(page.split())) == [(str(len(errors)), *found)]


def test_the_workload_is_the_fit_of_those_cells() -> None:
    found, known = fit(icac_cells()), PUBLISHED["icac19/resnet-32"]
    assert found.compute_seconds == pytest.approx({g: each.seconds for g, each in known.compute.items()}, rel=0.01)
    assert found.service_seconds == pytest.approx(known.service_seconds, rel=0.01)
    assert found.scaling == pytest.approx(known.scaling, rel=0.01)
    assert found.error == pytest.approx(known.speed_error, rel=0.02)


@pytest.mark.slow
def test_cells_that_were_left_out_are_met() -> None:
    cells = icac_cells()
    errors = [
        fit(cells[:index] + cells[index + 1 :]).predict(cell) / cell.steps_per_second - 1
        for index, cell in enumerate(cells)
    ]
    assert statistics.fmean(map(abs, errors)) < 0.05


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("ResNet-15", "cmdare/resnet-15"),
        ("ResNet-32", "cmdare/resnet-32"),
        ("ShakeShake-Small", "cmdare/shake-shake-small"),
        ("ShakeShake-Big", "cmdare/shake-shake-big"),
    ],
)
def test_cm_dares_clusters(model: str, name: str) -> None:
    rows = [row for row in published("derived/cmdare_cluster_speed_steps_per_s.csv") if row["model"] == model]
    cells = [
        Cell({row["gpu"].lower(): int(row["workers"])}, int(row["num_ps"]), float(row["speed_mean"])) for row in rows
    ]
    found, known = fit(cells), PUBLISHED[name]
    assert abs(found.errors).max() < 0.08
    assert found.compute_seconds == pytest.approx({g: known.compute[g].seconds for g in ("k80", "p100")}, rel=0.01)
    assert (found.service_seconds, found.scaling) == pytest.approx((known.service_seconds, known.scaling), rel=0.02)
    assert found.error == pytest.approx(known.speed_error, rel=0.02)


def test_unseen_networks_are_met_by_their_family() -> None:
    errors = [abs(p / s - 1) for family in families() for gpu in ("k80", "p100")
              for _, s, p in leave_one_out(family, gpu)]  # fmt: skip
    assert len(errors) == 40
    assert statistics.median(errors) < 0.08
    assert line("resnet", "v100") is None


def test_one_more_workload_can_be_completed() -> None:
    assert set(WORKLOADS) == set(PUBLISHED)


def test_a_gpu_nobody_measured_is_estimated_and_said_to_be() -> None:
    known = PUBLISHED["icac19/resnet-32"]
    assert known.step("v100").measured
    guessed = known.step("a100")
    assert not guessed.measured
    assert guessed.seconds < known.step("v100").seconds
    assert guessed.error > 0.25
    assert any("not measured" in note for note in planned("a100x2").notes)
    with pytest.raises(PlanError, match="is unknown"):
        known.step("cpu")


def test_larger_batches_take_longer_but_not_in_proportion() -> None:
    known = PUBLISHED["icac19/resnet-32"]
    double = known.with_batch(256).step("k80").seconds / known.step("k80").seconds
    assert 1.6 < double < 2


def test_traffic_between_zones_is_in_the_bill() -> None:
    """8 bytes per parameter and step (4 with bf16), at a cent per GiB between the zones of a region."""
    near, far = planned("v100x2@us-west1-a"), planned("v100@us-west1-a+v100@us-west1-b")
    gib = 8 * 1_857_722 * STEPS / 2 / 2**30
    hourly = (2 * 0.861 + 0.143) * far.hours
    assert far.dollars - hourly == pytest.approx(0.01 * gib, rel=0.01)
    assert near.dollars == pytest.approx((2 * 0.861 + 0.143) * near.hours, rel=0.001)
    assert any("Data between" in note for note in far.notes)
    distant = planned("v100@us-west1-a+v100@us-east1-b")
    assert distant.hours > 1.3 * near.hours
    assert distant.dollars > 2 * near.dollars


def test_how_far_off_the_steps_are_is_in_hours_and_dollars() -> None:
    exact = replace(PUBLISHED["icac19/resnet-32"], speed_error=0.0, limit_error=0.0)
    choice = planned("k80x4").choice
    for unsure, width in ((exact, 0.0), (replace(exact, steps_error=0.2), 2 * 1.645 * 0.2)):
        found = make_plan(choice, unsure, 64_000)
        for what, mean in (("hours", found.hours), ("dollars", found.dollars)):
            low, high = found.interval(what)
            assert (high - low) / mean == pytest.approx(width, abs=0.05)


def test_preemptible_vms_end_after_a_day() -> None:
    day = {"train_steps": 8_000_000, "revocations": "published", "workload": "icac19/resnet-32"}
    spot, preemptible = (plan("k80x4@us-west1-b", provisioning_model=model, **day)  # type: ignore[arg-type]
                         for model in ("spot", "preemptible"))  # fmt: skip
    assert isinstance(spot, Plan)
    assert isinstance(preemptible, Plan)
    assert preemptible.hours > 100
    assert preemptible.revocations > 4 * 4
    assert spot.revocations < preemptible.revocations


def test_a_cluster_on_demand_saves_nothing_against_itself_however_uncertain_its_speed() -> None:
    guessed = planned("a100x2", provisioning_model="standard", revocations=0)
    assert guessed.workload.step("a100").error > 0.25
    assert guessed.saved == pytest.approx(0.0, abs=1e-9)
    assert guessed.on_demand_hours == pytest.approx(guessed.hours)
