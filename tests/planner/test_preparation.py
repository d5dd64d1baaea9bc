"""What waiting for mini-batches says of other machines: step times, the word that suggests one, the search."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.test_learning import story
from transient_magics.catalog import accelerator, item_price, larger_shapes, shapes, worker_entry
from transient_magics.planner.choices import Choice
from transient_magics.planner.model_store import ModelStore
from transient_magics.planner.plan import make_plan
from transient_magics.planner.run_records import Record, record
from transient_magics.planner.search import search
from transient_magics.planner.speeds.throughput import Waits, gpu_of, kind_of, vcpus_of, waiting
from transient_magics.planner.speeds.workloads import Estimate, Workload
from transient_magics.spec import WorkerGroup

ZONE = "us-central1-a"


def bound(seconds: float = 0.5, waited: float = 0.3) -> Workload:
    """Of so many seconds on a T4 with 4 vCPUs, of which so many are waiting."""
    return Workload(
        "w", {"t4": Estimate(seconds, 0.0, "measured in 2 runs")}, waits={"t4": waited}, preparation=4 * seconds
    )


def test_a_kind_of_worker_is_its_gpu_and_a_machine_that_is_not_the_catalogs() -> None:
    assert [kind_of("t4"), kind_of("t4", "n1-standard-4"), kind_of("t4", "n1-standard-16")] == [
        "t4", "t4", "t4/n1-standard-16",
    ]  # fmt: skip
    assert kind_of("t4", "m9-future-4") == kind_of("gpu-9", "n1-standard-4").replace("gpu-9", "t4") == "t4"
    assert (gpu_of("t4/n1-standard-16"), vcpus_of("t4/n1-standard-16"), vcpus_of("v100")) == ("t4", 16, 8)


def test_larger_machines_have_more_vcpus_and_no_less_memory_and_one_stands_for_its_number() -> None:
    assert larger_shapes("t4") == ("n1-standard-8", "n1-standard-16", "n1-highcpu-32")
    assert larger_shapes("k80") == ("n1-standard-8",)
    assert larger_shapes("a100") == ()
    for gpu in ("t4", "p100", "v100", "l4", "cpu"):
        sizes = [worker_entry(gpu, name) for name in larger_shapes(gpu)]
        assert all(each.memory_gb >= accelerator(gpu).memory_gb for each in sizes)
        assert [each.vcpus for each in sizes] == sorted({each.vcpus for each in sizes})


def test_a_step_that_waits_is_shorter_on_more_vcpus_until_the_rest_of_it_is_longer() -> None:
    workload = bound()
    assert workload.step("t4").seconds == 0.5
    eight, sixteen = (workload.step("t4", f"n1-standard-{vcpus}") for vcpus in (8, 16))
    assert (eight.seconds, eight.error) == (pytest.approx(0.25), pytest.approx(0.2))
    assert eight.source == "from what preparing a mini-batch takes, on 8 vCPUs"
    assert (sixteen.seconds, sixteen.measured) == (pytest.approx(0.2), True), "what is not waiting stays"
    assert workload.step("v100").seconds == pytest.approx(0.25), "a faster GPU prepares no faster: 2 vCPU-s on 8"
    assert workload.step("v100", "n1-custom-12-46080").seconds == pytest.approx(2 / 12)
    assert workload.step("v100", "n1-highmem-2").seconds == pytest.approx(1.0)
    twice = Workload("w", workload.compute, waits=workload.waits, preparation=2.0, batch_size=32).with_batch(64)
    assert twice.step("t4", "n1-standard-8").seconds == pytest.approx(0.5)


@given(st.floats(0.01, 10), st.floats(0, 0.95), st.sampled_from(["t4", "v100", "l4", "p100"]), st.data())
def test_no_machine_is_slower_than_a_smaller_one_nor_faster_than_a_step_without_waiting(
    seconds: float, share: float, gpu: str, data: st.DataObject
) -> None:
    waits = {"t4": share * seconds} if share >= 0.05 else {}
    workload = Workload(
        "w", {"t4": Estimate(seconds, 0.0, "measured")}, waits=waits, preparation=4 * seconds if waits else 0.0
    )
    names = sorted(shapes(gpu), key=lambda name: worker_entry(gpu, name).vcpus)
    steps = [workload.step(gpu, name).seconds for name in names]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(steps))
    if gpu == "t4":
        assert steps[-1] >= (1 - share) * seconds * (1 - 1e-9)
        assert workload.step("t4").seconds == seconds


def test_without_a_wait_a_smaller_machine_is_not_known_to_be_as_fast() -> None:
    quick = Workload("w", {"v100": Estimate(0.1, 0.0, "measured in 2 runs")})
    small, large = quick.step("v100", "n1-standard-4"), quick.step("v100", "n1-custom-12-46080")
    assert (small.seconds, small.error, small.source) == (0.1, 0.3, "taken from that in n1-standard-8")
    assert (large.seconds, large.source) == (0.1, "measured in 2 runs, in n1-standard-8")


def told(share: float, *, machine: str = "") -> Record:
    """What `story` tells whose workers waited for that share of their steps."""
    history, rows = story()
    for row in rows:
        row["split"] = [share, 0.0, 1 - share, 0, 0, 0, 0, 0, 1 - share]
    if machine:
        history = [type(each)(**{**vars_of(each), "machine_type": machine}) if is_worker(each) else each
                   for each in history]  # fmt: skip
    return record(history, rows, "run-1", {"parameters": 100})


def is_worker(event: Any) -> bool:
    return event.kind == "vm.requested" and event.role == "worker"


def vars_of(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__dataclass_fields__ if name in event.values}


def test_runs_tell_for_how_long_their_workers_waited_by_kind() -> None:
    found = told(0.6)
    (waits,) = found.waits.values()
    assert list(found.waits) == ["k80"]
    assert (waits.share, waits.seconds / waits.steps) == (pytest.approx(0.6), pytest.approx(0.5))
    assert Record.from_dict(found.to_dict()) == found
    assert Record.from_dict({key: each for key, each in found.to_dict().items() if key != "waits"}).waits == {}
    larger = told(0.3, machine="n1-standard-8")
    assert list(larger.waits) == ["k80/n1-standard-8"]
    assert larger.observations[0].workers == {"k80/n1-standard-8": 4}
    assert waiting([{"t4": Waits(1.0, 2.0, 4)}, {"t4": Waits(1.0, 2.0, 4), "v100": Waits(0.01, 1.0, 10)}]) == (
        {"t4": 0.25}, 4 * 0.5,
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_that_waited_suggests_the_machine_and_the_search_looks_at_it(tmp_path: Path) -> None:
    store = ModelStore("resnet", "image_digits", directory=tmp_path)
    store.learn("demo/run-1@1", told(0.6))
    workload = store.workload("run-1", "emulated")
    choice = Choice((WorkerGroup("k80", 4, "us-west1-b"),))
    plan = make_plan(choice, workload, 10_000)
    more = 4 * item_price("n1-vcpu", "us-west1")[1] + 15 * item_price("n1-gb", "us-west1")[1]
    suggested = (
        "Steps on the K80 wait for their mini-batches for 60% of the time: with --machine-type n1-standard-8 they "
        f"would be 2 times as fast, for ${more:.3f} more per hour and worker, if preparation uses all its vCPUs."
    )
    assert suggested in str(plan)
    better = make_plan(Choice(choice.groups, machines={"k80": "n1-standard-8"}), workload, 10_000)
    assert better.line == "%transient_cluster k80x4@us-west1-b --machine-type n1-standard-8"
    assert better.steps_per_second == pytest.approx(2 * plan.steps_per_second, rel=0.02)
    assert "wait for their mini-batches" not in str(better)
    found = search(workload, 10_000, gpus=("k80",), zones=("us-west1-b",), models=("spot",))
    machines = {each.choice.machines.get("k80", "") for each in found.plans}
    assert machines == {"n1-standard-8"}, "twice as fast for a fifth more beats all others"
    named = search(workload, 10_000, gpus=("k80",), zones=("us-west1-b",), like=Choice((), disk="200GB:ssd"))
    assert "--disk 200GB:ssd" in named.best.line
    store.learn("demo/run-2@2", told(0.0, machine="n1-standard-8"))
    both = store.workload("run-1", "emulated")
    assert both.step("k80", "n1-standard-8").measured, "measured is measured"
    quiet = ModelStore("resnet", "quiet", directory=tmp_path)
    quiet.learn("demo/run-1@1", told(0.02))
    assert "mini-batches for" not in str(make_plan(choice, quiet.workload("run-1", "emulated"), 10_000))
    found = search(quiet.workload("run-1", "emulated"), 10_000, gpus=("k80",))
    assert {each.choice.line.find("--machine-type") for each in found.plans} == {-1}
