"""Plans as they are asked for: in Python and in a terminal, of published workloads and of runs; what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import transient_magics as tm
from tests.panels import stories
from tests.planner.test_learning import BEGAN, story
from transient_magics import places
from transient_magics.cli import arguments, verbs
from transient_magics.errors import DeclarationError, PlanError
from transient_magics.journal import Journal
from transient_magics.panels.offer import offer
from transient_magics.planner.plan import Plan

PUBLISHED = {"workload": "icac19/resnet-32", "train_steps": 64_000}


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    return tmp_path


def trained(name: str = "demo", **spec: str) -> None:
    """A cluster that trained run-1 as `story` tells."""
    history, rows = story(**spec)
    folder = places.private(places.cluster(name))
    run = places.private(folder / "runs" / "run-1")
    (folder / "spec.json").write_text(
        json.dumps(stories.declaration(name, declared_at=BEGAN).to_dict()), encoding="utf-8"
    )
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (run / "model.json").write_text(json.dumps({"parameters": 20_162, "gigaflops": 0.0015}), encoding="utf-8")
    with Journal(folder / "journal.jsonl") as journal:
        for event in history:
            journal.append(event)


def test_a_plan_is_what_the_surface_promises() -> None:
    plan = tm.plan("k80x2+p100", workload="icac19/resnet-32", train_steps=64_000, ps=1, revocations=0)
    assert isinstance(plan, Plan)
    low, high = plan.interval("hours", 0.9)
    assert low < plan.hours < high
    assert 0 < plan.dollars < plan.on_demand_dollars
    assert plan.line == "%transient_cluster k80x2+p100"
    assert plan.within(hours=high) == pytest.approx(0.95, abs=0.01)
    assert "64,000 steps of icac19/resnet-32" in str(plan)
    with pytest.raises(PlanError, match="interval"):
        plan.interval("minutes")


def test_plan_dry_run_and_panel_say_where_a_parameter_server_binds_from_the_first_step(home: Path) -> None:
    bound = tm.plan("v100x8", **PUBLISHED)
    more = tm.plan("v100x8", **PUBLISHED, ps=2)
    (said,) = [note for note in bound.notes if "holds the workers back from the first step" in note]
    assert f"{bound.steps_per_second:.3g} steps/s instead of" in said
    gain = more.steps_per_second / bound.steps_per_second - 1
    assert f"With --ps 2: {more.steps_per_second:.3g} steps/s, {gain:.0%} more." in said
    assert gain > 0.5
    assert not [note for note in tm.plan("k80x4", **PUBLISHED).notes if "hold" in note]

    trained()
    large = {"parameters": 5_000_000, "gigaflops": 0.8}
    (places.cluster("demo") / "runs" / "run-1" / "model.json").write_text(json.dumps(large), encoding="utf-8")
    said = "With the model of run-1: The parameter server holds the workers back from the first step"
    assert said in str(verbs.declare(dry_run=True, spec="k80x40", name="wide"))
    offered = offer({"groups": [{"gpu": "k80", "count": "40", "zone": ""}]})
    assert [note for note in offered["notes"] if note.startswith(said)]
    assert "hold" not in str(verbs.declare(dry_run=True, spec="k80x2", name="narrow"))


def test_a_run_of_ones_own_is_planned_with_what_it_was_measured_at() -> None:
    trained()
    plan = tm.plan("k80x2", workload="run-1", train_steps=7200, revocations="none")
    assert isinstance(plan, Plan)
    assert plan.steps_per_second == pytest.approx(4, rel=0.02)
    assert plan.hours > 0.5  # half an hour of steps, and the start of the VMs
    wide = tm.plan("t4x2", workload="run-1", train_steps=7200, revocations="none")
    assert isinstance(wide, Plan)
    guessed, measured = (np.ptp(each.interval("hours")) / each.hours for each in (wide, plan))
    assert guessed > 3 * measured


def test_steps_that_are_taken_together_are_not_planned_as_if_they_added_up() -> None:
    trained(mode="sync")
    with pytest.raises(PlanError, match="--mode sync"):
        tm.plan("k80x2", workload="run-1", train_steps=7200)


def test_what_if_the_steps_are_taken_together() -> None:
    def planned(spec: str, **more: object) -> Plan:
        found = tm.plan(spec, **PUBLISHED, mode="sync", revocations=0, **more)  # type: ignore[arg-type]
        assert isinstance(found, Plan)
        return found

    alone, four, mixed = planned("k80"), planned("k80x4"), planned("k80+p100x3")
    assert alone.hours < four.hours < 1.5 * alone.hours
    assert mixed.hours == pytest.approx(four.hours, rel=0.02)
    assert planned("k80+p100x3", backup_workers=1).hours < 0.6 * mixed.hours
    assert four.hours == pytest.approx(64_000 / four.steps_per_second / 3600, rel=0.02)
    assert "counts 4 mini-batches" in str(four)
    assert ("--batching dynamic" in str(mixed), "--batching dynamic" in str(four)) == (True, False)


def test_what_was_learnt_stays_when_the_cluster_is_gone(home: Path) -> None:
    trained()
    tm.plan("k80x2", workload="run-1", train_steps=100)
    places.cluster("demo").rename(home / "elsewhere")
    names = {"model": "resnet", "problem": "image_digits", "hparams_set": "resnet_digits"}
    plan = tm.plan("k80x2", train_steps=100, **names)  # type: ignore[arg-type]
    assert isinstance(plan, Plan)
    assert plan.workload.parameters == 20_162


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"workload": "icac19/resnet", "train_steps": 5}, "Did you mean icac19/resnet-32"),
        ({"workload": "run-7", "train_steps": 5}, "Unknown run or published workload 'run-7'"),
        ({"train_steps": 5}, "needs a workload"),
        ({"workload": "icac19/resnet-32"}, "either --train-steps or --target"),
        ({**PUBLISHED, "spec": "k80x4", "revocations": "some"}, "the number of workers that are lost"),
        ({**PUBLISHED, "spec": "k80x4", "revocations": 4}, "leave none of 4"),
        ({**PUBLISHED, "spec": "k80x4@us-east4-a"}, "K80s are not available in us-east4-a"),
        ({**PUBLISHED, "spec": "k80x4", "ps": 0}, "more than one worker needs a parameter server"),
        ({**PUBLISHED, "spec": "cpux4"}, "is unknown"),
        ({**PUBLISHED, "spec": "h100x4", "provisioning_model": "standard"}, "as Spot only"),
        ({**PUBLISHED, "gpus": ("t4", "h100"), "provisioning_model": "standard"}, "as Spot only"),
        ({"workload": "icac19/resnet-32", "target": "accuracy>=0.9"}, "no learning curve"),
        ({**PUBLISHED, "mode": "sync"}, "Give a SPEC"),
        ({**PUBLISHED, "spec": "k80x4", "backup_workers": 1}, "Add --mode sync"),
    ],
)
def test_a_mistake_is_one_sentence(asked: dict[str, object], said: str) -> None:
    with pytest.raises((DeclarationError, PlanError)) as error:
        tm.plan(**asked)  # type: ignore[arg-type]
    assert said in str(error.value)


def test_options_are_read_as_the_client_takes_them() -> None:
    command = arguments.parse("plan", arguments.split(
        "k80x2 + p100 --workload icac19/resnet-32 --train-steps 64000 --max-hours 90m --max-cost $3 --no-replace --ps 2"
    ))  # fmt: skip
    assert command.values == {
        "spec": "k80x2 + p100", "workload": "icac19/resnet-32", "train_steps": 64_000, "max_hours": 1.5,
        "max_cost": 3.0, "replace": False, "ps": 2,
    }  # fmt: skip
    assert isinstance(tm.plan(**command.values), Plan)
    for line, said in [
        ("k80x4 --train-steps 5", "needs --workload"),
        ("k80x4 --workload run-1", "--train-steps or --target"),
        ("k80y4 --workload run-1 --train-steps 5", "column 1"),
        ("--workload a/b --train-steps 5 --objective speed", "Unknown value 'speed' (--objective)"),
    ]:
        with pytest.raises(DeclarationError) as error:
            arguments.parse("plan", arguments.split(line))
        assert said in str(error.value)


@pytest.mark.slow
def test_the_program_prints_the_plan() -> None:
    program = [sys.executable, "-m", "transient_magics.cli.program", "plan"]
    words = ["k80x4", "--workload", "icac19/resnet-32", "--train-steps", "64000", "--revocations", "1"]
    said = subprocess.run([*program, *words], capture_output=True, text=True, check=True, encoding="utf-8").stdout
    assert said.splitlines()[0] == "%transient_cluster k80x4"
    assert "1 revocation, not replaced" in said
    refused = subprocess.run([*program, "k80x4"], capture_output=True, text=True, check=False, encoding="utf-8")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1


def test_without_numpy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("transient_magics.planner")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(PlanError, match=r'pip install "\.\[planning\]"'):
        tm.plan("k80x4", **PUBLISHED)  # type: ignore[arg-type]


def test_lifetimes_that_were_observed_count_as_soon_as_they_are_enough(tmp_path: Path) -> None:
    lives = tmp_path / "Lives.csv"
    lives.write_text("lifetime_hours,revoked\n" + "0.2,1\n" * 30 + "30,0\n" * 10, encoding="utf-8")
    calm, short = (tm.plan("k80x4", **PUBLISHED, revocations=how) for how in ("none", str(lives)))  # type: ignore[arg-type]
    assert short.hours > calm.hours * 1.1
    assert "Lives.csv" in str(short)
    with pytest.raises(PlanError, match="of your own"):
        tm.plan("k80x4", **PUBLISHED, revocations="own")  # type: ignore[arg-type]


@pytest.mark.parametrize("include", ["helper.py", ("helper.py",)])
def test_one_file_to_include_is_named_with_or_without_brackets(include: str | tuple[str, ...]) -> None:
    with pytest.raises(DeclarationError, match=r"'helper\.py' is neither a file nor a folder"):
        tm.plan("k80x2", source="import helper\n", include=include, train_steps=100)
