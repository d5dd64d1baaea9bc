"""Models that never ran: what FLOPs say of each GPU of the catalog, how far off that may be, where it is a guess."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.catalog import ACCELERATORS
from transient_magics.errors import PlanError
from transient_magics.planner.choices import Choice
from transient_magics.planner.plan import make_plan
from transient_magics.planner.search import search
from transient_magics.planner.speeds import throughput
from transient_magics.planner.speeds.workloads import counted_workload
from transient_magics.spec import WorkerGroup

RESNET_32 = {"gigaflops": 1.659, "parameters": 1_857_722, "batch_size": 128}
GPUS = [name for name in ACCELERATORS if name != "cpu"]


@pytest.mark.parametrize(("family", "error"), [("resnet", 0.1), ("shake-shake", 0.2), ("", 0.35)])
def test_every_gpu_of_the_catalog_has_an_estimate_and_says_how_far_off_it_may_be(family: str, error: float) -> None:
    workload = counted_workload("new", {**RESNET_32, "gigaflops": 4.0}, family)
    for gpu in GPUS:
        step = workload.step(gpu)
        assert step.seconds > 0
        assert not step.measured
        assert (step.error < error) == (gpu in throughput.GPUS), gpu
    assert workload.step("h100").seconds < workload.step("v100").seconds < workload.step("k80").seconds
    assert bool(workload.guess) == (not family)


@pytest.mark.parametrize("gpu", throughput.GPUS)
@pytest.mark.parametrize("family", [*throughput.families(), throughput.ALL])
def test_models_that_were_left_out_of_a_line_are_met_as_far_as_its_error_says(family: str, gpu: str) -> None:
    line = throughput.line(family, gpu)
    assert line
    missed = [abs(predicted / seconds - 1) for _, seconds, predicted in throughput.leave_one_out(family, gpu)]
    assert sum(each <= 2 * line.error for each in missed) >= 0.85 * len(missed)
    workload = counted_workload("new", RESNET_32, "" if family == throughput.ALL else family)
    whole = workload.step(gpu).seconds + workload.service_seconds
    assert whole == pytest.approx(line.seconds(1.659))


def test_resnet_32_comes_out_as_cm_dare_measured_it() -> None:
    workload = counted_workload("new", RESNET_32, "resnet")
    assert workload.step("k80").seconds + workload.service_seconds == pytest.approx(0.2193, rel=0.03)
    assert workload.step("p100").seconds + workload.service_seconds == pytest.approx(0.0820, rel=0.1)
    assert workload.service_seconds == pytest.approx(0.0214, rel=0.1)


@given(st.floats(1e-6, 1e4), st.floats(1.0, 10.0), st.sampled_from(["", "resnet", "shake-shake"]))
def test_more_flops_take_no_less_and_nothing_is_as_sure_beyond_what_was_measured(
    gigaflops: float, times: float, family: str
) -> None:
    less, more = (
        counted_workload("new", {**RESNET_32, "gigaflops": each}, family) for each in (gigaflops, times * gigaflops)
    )
    least, most = throughput.extent(family or throughput.ALL)
    for gpu in ("p100", "k80", "l4"):
        assert less.step(gpu).seconds <= more.step(gpu).seconds * (1 + 1e-9)
        assert less.step(gpu).error <= 1.05
    if not least <= gigaflops <= most:
        line = throughput.line(family or throughput.ALL, "p100")
        assert line
        assert less.step("p100").error > line.error
        assert "beyond those that were measured" in less.guess


@pytest.mark.parametrize(
    ("parameters", "tokens", "times"),
    [(5e7, 4096, 1.0), (2.1e8, 4096, 40.32 / 22.865), (1e9, 65_536, 3072 / 22.865), (1e6, 128, 0.631 / 0.006)],
)
def test_the_flops_of_a_mini_batch_decide_whether_a_model_is_beyond_what_was_measured(
    parameters: float, tokens: int, times: float
) -> None:
    found = counted_workload("new", {"parameters": parameters, "batch_size": tokens, "tokens": 1.0})
    line = throughput.line(throughput.ALL, "p100")
    assert line
    expected = min(math.hypot(line.error, 0.35 * math.log(times)), 1.0)
    assert found.step("p100").error == pytest.approx(expected, rel=1e-3)
    assert ("beyond those that were measured" in found.guess) == (times > 1)


def test_a_plan_and_a_search_say_what_they_rest_on() -> None:
    workload = counted_workload("the cell's model", {**RESNET_32, "gigaflops": 2.0})
    plan = make_plan(Choice((WorkerGroup("t4", 2, "us-central1-a"),)), workload, 10_000)
    said = str(plan)
    assert "estimates and their ranges that are a guess (its family was never measured)" in said
    assert (
        "The cell's model was never measured on Compute Engine: 2 GFLOPs for an example, 1,857,722 parameters, counted."
        in said
    )
    assert "The T4's step time is not measured but from P100's, by peak TFLOPS: it may be" in said
    found = search(workload, 10_000, zones=("us-central1-a",))
    gpus = {group.accelerator for each in found.plans for group in each.choice.groups}
    assert "k80" not in gpus, "which nobody can rent"
    assert gpus & {"t4", "l4", "v100"}
    with pytest.raises(PlanError, match=r"The FLOPs of new cannot be counted.*Train it for a minute"):
        counted_workload("new", {"parameters": 5, "batch_size": 4})


def test_what_stands_in_for_texts_that_are_not_made_yet_is_said() -> None:
    counts = {"parameters": 5e7, "batch_size": 4096, "tokens": 1.0, "vocabulary": 32_768.0}
    found = counted_workload("transformer", counts)
    said = " ".join(found.notes)
    assert "0.3 GFLOPs for a token, taken as 6 FLOPs for each parameter. Kaplan et al. (2020) count 6" in said
    assert "outside of the embeddings, so with a large vocabulary this is too high" in said
    assert found.guess
    assert "one of 32,768 entries stands in, the size that the problem declares" in said
    assert "stands in" not in " ".join(counted_workload("new", RESNET_32).notes)
    with pytest.raises(PlanError, match="cannot be counted"):
        counted_workload("new", {"parameters": 5e7, "batch_size": 4096})
