"""What measured stalls make of plans: other machines, disks, links and caches, and what stays as it is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.planner.test_stalls import SECONDS, one, step, told
from transient_magics import client
from transient_magics.catalog import disk_speed
from transient_magics.errors import DeclarationError, StoreError
from transient_magics.planner.choices import Choice
from transient_magics.planner.model_store import ModelStore
from transient_magics.planner.plan import make_plan, prepared, stalled
from transient_magics.planner.search import search
from transient_magics.planner.speeds.workloads import Estimate, Workload
from transient_magics.planner.stalls.parts import Repeat, Stalls
from transient_magics.planner.stalls.terms import Change, StallMeasurement, VmResources, significant
from transient_magics.protocol.step_parts import MEASURES, Measure
from transient_magics.spec import WorkerGroup

ZONE = "us-central1-a"
SMALL = VmResources(4, disk_speed("", 4))
TIMES = some.floats(0.05, 20)
REPEATS = some.lists(some.fixed_dictionaries(dict.fromkeys(MEASURES, SECONDS)), min_size=3, max_size=5)


def terms(stalls: Stalls) -> StallMeasurement:
    """As measured on a T4 in its usual machine."""
    return StallMeasurement("stalls-1", stalls, SMALL, "own", workers=2)


def workload(stalls: Stalls | None = None, seconds: float = 0.15) -> Workload:
    return Workload(
        "w", {"t4": Estimate(seconds, 0.02, "measured in 2 runs")}, batch_size=32 if stalls else 0,
        stalls={"t4": terms(stalls)} if stalls else {},
    )  # fmt: skip


def choice(machine: str = "", disk: str = "") -> Choice:
    return Choice((WorkerGroup("t4", 2, ZONE),), machines={"t4": machine} if machine else {}, disk=disk)


@given(REPEATS, TIMES, TIMES, some.sampled_from(("cores", "disk", "link", "gpu", "ps")))
def test_more_of_anything_never_makes_a_step_longer(
    measured: list[Mapping[Measure, float]], least: float, most: float, what: str
) -> None:
    found = terms(one(told(measured)))
    less, more = (Change(**{what: each}) for each in sorted((least, most)))
    assert found.added_seconds(less, more)[0] <= 1e-9
    assert found.added_seconds(Change(), Change(cache=1.0))[0] <= 1e-9, "nor does a cache of all data"
    assert found.added_seconds(more, more) == (0.0, 0.0)


@given(some.floats(0.01, 0.09), some.floats(1, 20), some.floats(1, 20), some.floats(1, 20))
def test_where_no_stall_stands_out_nothing_makes_a_plan_faster(
    input: float, cores: float, disk: float, link: float
) -> None:
    quiet = one(told([step(warm=input / 2, cold=input)] * 5, noise=0.01))
    assert not quiet.stalled
    assert terms(quiet).added_seconds(Change(), Change(cores=cores, disk=disk, link=link)) == (0.0, 0.0)
    plain, measured = workload(), workload(quiet)
    for machine, size in (("", ""), ("n1-standard-16", ""), ("n1-standard-8", "1TB:ssd")):
        there = choice(machine, size)
        (group,) = there.groups
        known = plain.compute["t4"]
        assert there.step(measured, group).seconds == known.seconds
        assert stalled(there, measured) == []


@given(REPEATS)
def test_what_is_told_of_a_step_sums_to_it_and_what_is_kept_comes_back(measured: list[Mapping[Measure, float]]) -> None:
    found = terms(one(told(measured)))
    whole = sum(each.mean for each in found.parts(Change()).values())
    assert whole == pytest.approx(one(told(measured)).step.mean) or any(
        Repeat(each).seconds["S5"] < max(each["R4"], each["R5"], each["S3"], each["S4"]) for each in measured
    )
    assert StallMeasurement.from_dict("stalls-1", found.to_dict()) == found
    at = significant(found.stalls).seconds
    assert at["S0"] <= at["S1"] <= at["S2"] <= at["S3"] <= at["S4"] <= at["S5"]


@pytest.mark.parametrize(
    ("name", "value"), [("S0", 0.0), ("R5", -1.0), ("S3", math.nan), ("vcpus", 0), ("bytes", math.inf)]
)
def test_a_stored_measure_with_an_impossible_number_is_reported(tmp_path: Path, name: str, value: float) -> None:
    values = terms(one(told([step()] * 3))).to_dict()
    (values["repeats"][1] if name in MEASURES else values)[name] = value
    store = ModelStore("resnet", "image_digits", directory=tmp_path)
    store.keep_stalls("c/stalls-1@5", {"t4": terms(one(told([step()] * 3)))})
    kept = json.loads(store.path.read_text(encoding="utf-8"))
    kept["stalls"]["c/stalls-1@5"]["t4"] = values
    store.path.write_text(json.dumps(kept), encoding="utf-8")
    with pytest.raises(StoreError, match=name):
        store.stalls("own")


@pytest.mark.slow
def test_a_plan_says_what_a_step_waits_for_and_what_another_machine_and_disk_make_of_it() -> None:
    slow = one(told([step(0.1, network=0.02, warm=0.15, cold=0.3)] * 5, noise=0.002))
    known = workload(slow, 0.3)
    small, large, quick = choice(), choice("n1-standard-16"), choice("", "1TB:ssd")
    seconds = [each.step(known, each.groups[0]).seconds for each in (small, large, quick)]
    assert seconds[0] == 0.3
    # Prepared by 16 vCPUs in place of 4; from a disk that 240 MiB a second bound on so small a machine.
    assert seconds[1] == pytest.approx(0.3 - 0.15 * 3 / 4, rel=0.02)
    assert seconds[2] == pytest.approx(0.15 + 0.15 * 154 / 240, rel=0.02)
    (said,) = stalled(large, known)
    assert said.startswith("A step on the T4 in n1-standard-16: computing ")
    for part, least in (("network", 19), ("waiting for input", 66)):
        assert float(said.partition(f"{part} ")[2].split()[0]) == pytest.approx(least, abs=2)
    assert said.endswith("Measured by stalls-1 on 4 vCPUs in 5 repeats, and recomputed for this plan.")
    found = make_plan(large, known, 1000, runs=200)
    assert any("computed from the stalls that stalls-1 measured" in each for each in found.notes)
    assert 0 < large.step(known, large.groups[0]).error < 0.2
    waiting = replace(known, waits={"t4": terms(slow).input_wait_seconds}, preparation=4 * terms(slow).input_seconds)
    assert "wait for their mini-batches" in prepared(small, waiting)[0]
    machines = {plan.choice.machines.get("t4", "") for plan in search(known, 1000, gpus=["t4"], zones=[ZONE]).plans}
    assert len(machines) > 1, "a search looks at larger ones"


def test_links_and_caches_are_asked_for_and_a_cache_of_all_is_as_if_nothing_were_fetched() -> None:
    slow = one(told([step(0.1, network=0.1, warm=0.01, cold=0.4)] * 5, noise=0.002))
    known = workload(slow, 0.4)
    (group,) = choice().groups
    cached = choice().step(replace(known, asked=Change(cache=1.0)), group).seconds
    assert cached == pytest.approx(0.2, rel=0.02), "the step of computing and network is what is left"
    both = choice().step(replace(known, asked=Change(cache=1.0, link=4.0)), group).seconds
    assert both == pytest.approx(0.125, rel=0.02)


def test_a_model_whose_stalls_alone_were_measured_is_planned_and_says_so(tmp_path: Path) -> None:
    store = ModelStore("resnet", "image_digits", directory=tmp_path)
    store.keep_stalls("c/stalls-1@5", {"t4": terms(one(told([step(shared=0.05)] * 5, noise=0.01)))})
    found = store.workload("resnet", "own")
    assert choice().steps_per_second(found) == pytest.approx(2 / 0.15, rel=0.03)
    assert found.step("t4").source == "measured by stalls-1"
    assert found.batch_size == 32
    assert "never trained" in found.guess
    assert store.workload("resnet", "own", "fp32").stalls.keys() == {"t4"}
    other = ModelStore("resnet", "another", directory=tmp_path)
    with pytest.raises(Exception, match="has not trained long enough"):
        other.workload("resnet", "own")


def test_a_change_of_stalls_that_nobody_measured_is_refused() -> None:
    with pytest.raises(DeclarationError, match="The stalls of icac19/resnet-32 have not been measured"):
        client.plan("k80x4", workload="icac19/resnet-32", train_steps=100, what_if={"link": 2.0})
    with pytest.raises(DeclarationError, match="For cores, disks and servers use --machine-type"):
        client.plan("k80x4", workload="icac19/resnet-32", train_steps=100, what_if={"cores": 2.0})
