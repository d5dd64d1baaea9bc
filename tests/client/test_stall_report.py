"""What a measure of stalls says of its circumstances: other runs, VMs that shrank, and equal VMs that are not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.panels.stories import requested
from tests.planner.test_stalls import step, told
from transient_magics.journal import ClusterState, RunState, Works, bill, events, replay
from transient_magics.journal.power import Stretch
from transient_magics.panels import view
from transient_magics.protocol.machines import WHOLE, Share
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.step_parts import MEASURES
from transient_magics.protocol.vm_events import TrainMeasured, TrainStarted
from transient_magics.works.runs.stalls.report import Report, report, terms
from transient_magics.works.runs.stalls.view import stalls_html

WORKERS = ("worker-1", "worker-2", "worker-3")


def measured(measures: list[TrainMeasured], **changes: object) -> tuple[ClusterState, RunState]:
    """A cluster whose workers took these, from the second 100 to 200."""
    state = replay([requested(name, slot) for slot, name in enumerate(("ps-0", *WORKERS))])
    spec = RunSpec("stalls-1", 40, "resnet", "resnet_digits", "image_digits", stalls=5)
    run = RunState("stalls-1", spec, phase="finished", started_at=100.0, ended_at=200.0, measured=tuple(measures))
    run = replace(run, **changes)  # type: ignore[arg-type]
    return replace(state, works=Works([run])), run


def quiet() -> tuple[ClusterState, RunState]:
    return measured(told([step(network=0.05)] * 5, WORKERS, noise=0.01))


def test_a_measure_alone_on_whole_vms_is_kept_for_plans_with_where_it_was_taken() -> None:
    state, run = quiet()
    said = report(state, run)
    assert said.notes == ()
    (kept,) = terms(state, run, {"parameters": 7, "gigaflops": 0.5}).values()
    assert (kept.workers, kept.servers, kept.parameters, kept.stalls) == (3, 1, 7, said.bars[0].stalls)


@pytest.mark.parametrize(
    ("began", "ended", "beside"), [(50.0, 150.0, True), (150.0, 0.0, True), (10.0, 99.0, False), (201.0, 0.0, False)]
)
def test_a_run_that_trained_beside_it_is_named_and_plans_do_not_use_it(
    began: float, ended: float, beside: bool
) -> None:
    state, run = quiet()
    other = replace(run, name="run-7", measured=(), started_at=began, ended_at=ended)
    state = replace(state, works=state.works.with_work(other))
    said = str(report(state, run))
    assert ("run-7 ran on this cluster at the same time" in said) == beside
    assert ("Plans do not use this measure" in said) == beside == (not terms(state, run))


@pytest.mark.parametrize(
    ("vm", "shares", "said"),
    [
        ("worker-2", ((150.0, Share(0.5, 1.0)), (180.0, WHOLE)), "worker-2 had 50% of its CPU"),
        ("ps-0", ((10.0, Share(1.0, 0.25)),), "ps-0 had 25% of its network"),
        ("worker-2", ((10.0, Share(0.5, 1.0)), (50.0, WHOLE)), ""),
        ("worker-2", ((201.0, Share(0.5, 1.0)),), ""),
    ],
)
def test_a_vm_that_was_deflated_meanwhile_is_named(vm: str, shares: tuple, said: str) -> None:
    state, run = quiet()
    state.vms[vm] = replace(state.vms[vm], shares=shares)
    found = report(state, run)
    assert bool(found.notes) == bool(said)
    assert said in str(found)
    assert bool(terms(state, run)) != bool(said)


def rented_and_became(since: float) -> tuple[Stretch, ...]:
    """What a VM was that has become a smaller machine since then."""
    stopped = Stretch(since - 5.0, "n1-standard-4", 0.01, 0.01, runs=False)
    return Stretch(10.0, "n1-standard-4", 0.25, 0.75), stopped, Stretch(since, "n1-standard-1", 0.125, 0.25, 0.25)


@pytest.mark.parametrize(
    ("since", "kind", "hourly"),
    [(50.0, "k80/n1-standard-1", 0.125), (300.0, "k80", 0.25), (207.0, "k80", 0.25), (150.0, "", 0.125)],
)
def test_a_vm_counts_as_the_machine_that_it_was_when_it_was_measured(since: float, kind: str, hourly: float) -> None:
    state, run = measured(told([step(network=0.05)] * 5, ("worker-1",), noise=0.01))
    was = rented_and_became(since)
    now = {"machine_type": was[-1].machine_type, "hourly": was[-1].hourly}
    state.vms["worker-1"] = replace(state.vms["worker-1"], powered=was, **now)  # type: ignore[arg-type]
    assert [*terms(state, run)] == ([kind] if kind else [])
    said = report(state, run)
    assert said.bars[0].hourly == hourly
    assert ("worker-1 was stopped and started again while it was measured" in str(said)) == (not kind)


def test_of_few_repeats_it_says_that_more_are_needed_and_advises_nothing() -> None:
    found = report(*measured(told([step(network=0.05)] * 2, WORKERS, noise=0.01)))
    assert found.notes == ("Three repeats are needed before anything is claimed.",)
    assert "larger than the noise" not in str(found)
    drawn = stalls_html(found)
    assert "Three repeats are needed" in drawn
    assert drawn.count("<b>") == 1, "its name alone"


def test_measures_are_no_news_that_crowd_out_what_happened_on_the_cluster() -> None:
    state, run = quiet()
    taken = [replace(each, run=run.name) for each in told([step()] * 5, WORKERS)]
    begun = [
        events.WorkDeclared(of="run", work=run.name, spec=run.spec.to_dict()),
        TrainStarted(run=run.name, step=0),
    ]
    after = replay([*begun, *taken], replace(state, works=Works()))
    said = [each["text"] for each in view(after, bill(after, 1.0), 1.0)["events"]]
    assert said[:2] == ["stalls-1 started", "stalls-1 was declared"]
    assert after.of(RunState)[run.name].measured, "they are kept all the same"


def test_on_the_panel_of_its_cluster_it_counts_measures_and_has_no_loss_and_no_checkpoint() -> None:
    state, run = measured([], phase="running", step=15, workers=WORKERS)
    now = 150.0
    training = view(state, bill(state, now), now, run.name)["training"]
    assert training
    assert training["counted"] == "15 of 40 measures"
    assert dict(training["facts"]) == {"workers": "3"}
    assert training["words"] == "measure 15 of 40 taken, 3 workers"


def test_equal_vms_that_differ_are_named_in_the_answer() -> None:
    slow = dict.fromkeys(MEASURES, 0.03)
    found: Report = report(*measured(told([step()] * 5, WORKERS, noise=0.01, slower={"worker-2": slow})))
    assert re.search(r"worker-2: its computing takes 3\d% of a step longer than that of its equals\.", str(found))


def test_a_measure_whose_run_ended_before_it_was_taken_once_says_how_it_ended_and_claims_nothing() -> None:
    first = [each for each in told([step()], WORKERS) if each.measure in ("S0", "S1")]
    found = report(*measured(first, stopped=True, step=2))
    assert found.bars == ()
    assert "stopped at measure 2 of 40" in str(found)
    state, run = measured([], phase="failed", reason="no records of image_digits are in /data", step=0)
    assert "failed at step 0: no records of image_digits are in /data" in str(report(state, run))
    assert terms(state, run) == {}
