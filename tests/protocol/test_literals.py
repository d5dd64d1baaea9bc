"""Values of parameters: Python literals in, and equal values of the same types out of text and JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.protocol.literals import parse_value, same, split, value_text
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.space import Dimension, parse_space
from transient_magics.works.studies.spec import StudySpec

PLAIN = st.booleans() | st.none() | st.integers() | st.floats() | st.text(max_size=12)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
                      max_leaves=5)  # fmt: skip


def through_json(spec: Any) -> Any:
    return type(spec).from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False)))


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_values_come_through_option_text_and_json_as_they_were(values: list[Any]) -> None:
    distinct = [value for place, value in enumerate(values) if value not in values[:place]
                and not any(same(value, other) for other in values[:place])]  # fmt: skip
    (dimension,) = parse_space(str(Dimension("x", "choice", tuple(distinct))))
    study = StudySpec("s", RunSpec("s", 10), "min loss", (dimension,), trials=len(distinct), sampler="grid")
    for number, (value, choice) in enumerate(zip(distinct, through_json(study).space[0].choices, strict=True)):
        run = through_json(study.run_of(number, 0, {"x": choice}))
        assert same(run.params["x"], value)


@given(VALUES)
def test_a_value_reads_as_python_reads_its_text(value: Any) -> None:
    assert same(parse_value(value_text(value)), value)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("True,False", [True, False]),
        ("None,0.1", [None, 0.1]),
        ("[64,32],[128]", [[64, 32], [128]]),
        ("(64, 32), (128,), ()", [(64, 32), (128,), ()]),
        ("'adam, amsgrad',sgd", ["adam, amsgrad", "sgd"]),
        ('"it\'s", \'say "x"\'', ["it's", 'say "x"']),
        ("1_000,0x10,0b11", [1000, 16, 3]),
        ("-3,+4,-.5,1e-3", [-3, 4, -0.5, 0.001]),
        ("inf,-inf", [math.inf, -math.inf]),
        ("[nan, inf, None, 'a:b']", None),
        ("0,0.1", [0, 0.1]),
        ("1000.0,10", [1000.0, 10]),
        ("'True',True", ["True", True]),
        ("relu,resnet50,gs,a-b", ["relu", "resnet50", "gs", "a-b"]),
        ("123456789012345678901234567890", [123456789012345678901234567890]),
        ("[[1, [2]], 'x']", [[[1, [2]], "x"]]),
        ("'a:b'", ["a:b"]),
    ],
)
def test_choices_are_python_literals(text: str, values: list[Any] | None) -> None:
    (dimension,) = parse_space(f"x={text}")
    assert dimension.kind == "choice"
    if values is None:
        values = [[math.nan, math.inf, None, "a:b"]]
    assert len(dimension.choices) == len(values)
    assert all(map(same, dimension.choices, values)), dimension.choices


def test_blanks_and_separators_within_quotes_and_brackets_belong_to_the_value() -> None:
    space = parse_space("layers = [64, 32] , [8]   opt='a = b: c'  lr=1e-3 : 1e-1:log")
    assert [(each.name, each.choices) for each in space] == [
        ("layers", ([64, 32], [8])), ("opt", ("a = b: c",)), ("lr", ())
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[64,32", "has no closing ]"),
        ("64,32]", "has a ] without an opening bracket"),
        ("(1,2]", "has a ] without an opening bracket"),
        ("'adam", "has an opening quote ' without a closing one"),
        ("it's", "has an opening quote ' without a closing one"),
        ("true,False", "'true' is ambiguous: write True"),
        ("none,l2", "'none' is ambiguous: write None"),
        ("-Infinity,1", "'-Infinity' is ambiguous: write -inf"),
        ("3x3,5", "'3x3' is not a Python literal"),
        ("1/3,1", "'1/3' is not a Python literal"),
        ("007,1", "'007' is not a Python literal"),
        ("[relu,tanh],1", "'[relu,tanh]' is not a Python literal"),
        ("Adam(1),1", "'Adam(1)' is not a Python literal"),
        ("'a'1,2", "is not a Python literal"),
        ("{'a': 1},2", "has the type dict, but a value must be True, False, None"),
        ("b'a',2", "has the type bytes"),
        ("2j,1", "has the type complex"),
        ("1e999,1", "'1e999' is too large"),
        ("5#x,1", "'5#x' is not a Python literal"),
        ("1e3,10", "1e3 is a float among whole numbers: write 1000, or 1000.0"),
        ("nan,nan", "nan occurs twice"),
        ("[1],[1]", "[1] occurs twice"),
        ("nan:1", "is not a range"),
        ("True:2", "is not a range"),
    ],
)
def test_malformed_literals_are_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        parse_space(f"x={text}")
    assert str(caught.value).startswith("x: ") or "quote" in said or "]" in said
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="[](){}'\"\\,a1 :=", max_size=20))
def test_splitting_loses_nothing_or_is_refused(text: str) -> None:
    try:
        parts = split(text, ",")
    except ValueError:
        return
    assert ",".join(parts).replace(" ", "") == text.replace(" ", "")


def test_a_run_of_tensor2tensor_has_the_values_as_text() -> None:
    space = parse_space("filters=[64,32],[128] activation=relu,'a b' use_bias=True,False lr=1e-3,0.1")
    run = RunSpec("s", 10, model="resnet", hparams_set="a", problem="b", hparams="x=1")
    study = StudySpec("s", run, "min loss", space, trials=16, sampler="grid")
    point = {"filters": [64, 32], "activation": "a b", "use_bias": True, "lr": 0.001}
    assert study.run_of(0, 0, point).hparams == "x=1,filters=[64, 32],activation=a b,use_bias=True,lr=0.001"


def test_json_of_earlier_versions_and_of_foreign_ones_is_read_or_refused() -> None:
    assert RunSpec.from_dict({"name": "a", "train_steps": 1, "params": {"x": 0.1, "y": "a"}}).params == {
        "x": 0.1, "y": "a"
    }  # fmt: skip
    for wrong in (
        {"literal": "__import__('os')"},
        {"literal": 5},
        {},
        {"literal": "[" * 4000},
    ):
        with pytest.raises(ValueError, match="params"):
            RunSpec.from_dict({"name": "a", "train_steps": 1, "params": {"x": wrong}})


def test_scalars_of_numpy_are_numbers_and_truths() -> None:
    numpy = pytest.importorskip("numpy")
    given = {"a": numpy.int64(3), "b": numpy.float32(0.5), "c": numpy.bool_(True), "d": [numpy.float64(0.1)]}
    run = through_json(RunSpec.from_dict({"name": "a", "train_steps": 1, "params": given}))
    assert repr(run.params) == repr({"a": 3, "b": 0.5, "c": True, "d": [0.1]})
    with pytest.raises(ValueError, match=r"params: .* has the type ndarray"):
        RunSpec.from_dict({"name": "a", "train_steps": 1, "params": {"a": numpy.zeros(2)}})
