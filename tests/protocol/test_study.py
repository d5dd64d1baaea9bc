"""What a study may be: spaces that are read as they are written, and one sentence for each that cannot be meant."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.protocol.machines import parse_machines, render_machines
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.space import Dimension, parse_space
from transient_magics.works.studies.sampling import point
from transient_magics.works.studies.spec import StudySpec

NUMBERS = st.floats(-1e15, 1e15, allow_nan=False).map(lambda value: value + 0.0)
WORDS = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)


@st.composite
def dimensions(draw: st.DrawFn, name: str) -> Dimension:
    kind = draw(st.sampled_from(["choice", "float", "log", "int"]))
    if kind == "choice":
        values = st.integers(-99, 99) | NUMBERS | WORDS
        return Dimension(name, "choice", tuple(draw(st.lists(values, min_size=1, max_size=5, unique=True))))
    numbers = {"float": NUMBERS, "log": st.floats(1e-9, 1e9), "int": st.integers(-99, 99).map(float)}[kind]
    low, high = sorted(draw(st.lists(numbers, min_size=2, max_size=2, unique=True)))
    return Dimension(name, kind, (), low, high)  # type: ignore[arg-type]


def why_refused(text: str) -> str:
    try:
        parse_space(text)
    except ValueError as error:
        return str(error)
    return ""


@given(st.lists(st.sampled_from(["lr", "batch_size", "units", "rate"]), min_size=1, unique=True), st.data())
def test_a_space_is_read_as_it_is_written(names: list[str], data: st.DataObject) -> None:
    space = tuple(data.draw(dimensions(name)) for name in names)
    assert parse_space(" ".join(map(str, space))) == space


@given(st.text(max_size=40))
def test_no_text_of_a_space_is_answered_with_anything_but_a_sentence(text: str) -> None:
    if said := why_refused(text):
        assert "\n" not in said
        assert len(said) < 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are no parameters"),
        ("lr", "'lr' has no values: write name=a,b,c or name=low:high, optionally followed by :log or :int"),
        ("lr=", "'lr=' has no values"),
        ("lr=0.1,,0.2", "lr: a value is empty"),
        ("lr=0.1:0.01", "lr: the range is empty: 0.1 is not below 0.01"),
        ("lr=0:1:log", "lr: the low end of a :log range must be greater than 0, not 0.0"),
        ("lr=1:2:lgo", "lr: unknown suffix 'lgo' of a range"),
        ("lr=a:b", "lr: 'a:b' is not a range"),
        ("units=1.5:8:int", "units: both ends of an :int range must be whole numbers"),
        ("lr=1,1.0", "lr: 1.0 occurs twice"),
        ("lr=1,2 lr=3,4", "lr occurs twice"),
        ("lr=1e999:2", "lr: '1e999' is too large"),
        ("import=1,2", "'import' is reserved by Python"),
        ("learning-rate=1,2", "'learning-rate' is not a name that a cell can read"),
    ],
)
def test_a_space_that_cannot_be_meant_is_refused_in_one_sentence(text: str, said: str) -> None:
    assert why_refused(text).startswith(said)


def study(**more: Any) -> StudySpec:
    run = RunSpec("lr", 100, **{"token": "secret", **more.pop("run", {})})
    given = {"space": parse_space("lr=1e-3:1e-1:log units=16,32"), "trials": 8, "sampler": "random", **more}
    return StudySpec("lr", run, "max accuracy", **given)


def test_a_study_is_read_back_as_it_was_written_without_the_token_of_a_run() -> None:
    written = json.loads(json.dumps(study(max_cost=2.0).to_dict()))
    assert "secret" not in json.dumps(written)
    assert StudySpec.from_dict(written) == study(max_cost=2.0, run={"token": ""})


def test_only_values_that_a_study_tries_are_those_of_a_trial_of_it() -> None:
    space = parse_space("lr=0.1:1 units=8,16 kind=a,b depth=1:4:int")
    spec = study(space=space)
    good = {"lr": 0.5, "units": 8, "kind": "a", "depth": 4}
    assert spec.tries(good)
    for wrong in ({"lr": 2.0}, {"lr": math.nan}, {"lr": "0.5"}, {"units": 9}, {"units": True}, {"units": 8.0},
                  {"kind": "a,hidden_size=1"}, {"depth": 2.5}, {"depth": 5}, {"more": 1}):  # fmt: skip
        assert not spec.tries({**good, **wrong}), wrong
    assert not spec.tries({"lr": 0.5})


def test_the_runs_of_a_trial_have_its_values_and_seeds_of_their_own() -> None:
    of_a_cell = study(repeat=2, seed=7).run_of(3, 1, {"lr": 0.01, "units": 16})
    assert (of_a_cell.name, of_a_cell.study, of_a_cell.trial, of_a_cell.repeat) == ("lr-3-1", "lr", 3, 1)
    assert (of_a_cell.params, of_a_cell.hparams, of_a_cell.seed) == ({"lr": 0.01, "units": 16}, "", 8)
    registered = study(run={"model": "resnet", "hparams": "batch_size=8"}).run_of(0, 0, {"lr": 0.01, "units": 16})
    assert (registered.name, registered.hparams, registered.seed) == ("lr-0", "batch_size=8,lr=0.01,units=16", None)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sampler": "grid"}, "sampler: grid needs choices or whole numbers, but lr is a range"),
        ({"sampler": "none"}, "sampler: none cannot be used with --over"),
        ({"space": ()}, "sampler: random needs values to try"),
        ({"space": (), "sampler": "none"}, "trials: without --over a study has only one point"),
        ({"repeat": 3, "pruner": "median", "run": {"eval_steps": 10}}, "pruner: median cannot be used with --repeat"),
        ({"pruner": "hyperband"}, "pruner: hyperband needs evaluations before the end"),
        ({"pruner": "median", "run": {"eval_steps": 100}}, "pruner: median needs an --eval-every that is less than"),
        ({"on": ("k80x1+p100x2", "p100x2+k80x1")}, "on: p100x2+k80x1 occurs twice"),
        ({"on": ("k80x1",), "workers": 2}, "workers: it cannot be used with --on"),
        ({"on": ("k80x1",), "space": parse_space("on=1,2")}, "on: a parameter cannot have the name 'on'"),
        ({"on": ("k80x1",), "space": (), "sampler": "none"}, "sampler: none cannot be used with --on"),
        ({"run": {"params": {"lr": 1}}}, "over: lr is also set by --param"),
    ],
)
def test_what_of_a_study_excludes_each_other_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        study(**more)


def test_a_configuration_is_one_more_dimension_and_a_run_takes_exactly_its_machines() -> None:
    spec = study(on=("k80x1", "k80x2+p100x1"), space=parse_space("lr=0.1,0.2"), sampler="grid", run={"model": "resnet"})
    assert StudySpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == replace(spec, run=replace(spec.run, token=""))
    points = [point(spec, number) for number in range(spec.points)]
    assert points == [{"on": on, "lr": lr} for on in spec.on for lr in (0.1, 0.2)], "one configuration after another"
    assert spec.tries({"on": "k80x1", "lr": 0.1})
    assert not any(map(spec.tries, ({"lr": 0.1}, {"on": "k80x8", "lr": 0.1})))
    run = spec.run_of(3, 0, points[3] or {})
    assert (run.machines, run.least_workers, run.most_workers, run.workers) == ("k80x2+p100x1", 3, 3, 3)
    assert (run.hparams, run.params) == ("lr=0.2", {"lr": 0.2}), "which no model has to know"
    with pytest.raises(ValueError, match="'k80' is not a GPU with a count: write GPUxCOUNT, such as k80x4"):
        StudySpec.from_dict({**spec.to_dict(), "on": ["k80"]})


MACHINES = st.dictionaries(
    st.sampled_from(["cpu", "k80", "a100-80gb", "rtx-pro-6000"]), st.integers(1, 250), min_size=1
)


@given(MACHINES)
def test_machines_are_read_as_they_are_written(machines: dict[str, int]) -> None:
    assert parse_machines(render_machines(machines)) == machines


@pytest.mark.parametrize(
    "text", ["", "k80", "k80x", "k80x0", "x4", "k80x4@us-west1-b", "K80x4", "k80 x4", "k80x1++k80x1"]
)
def test_what_says_no_machines_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a GPU with a count: write GPUxCOUNT, such as k80x4"):
        parse_machines(text)
