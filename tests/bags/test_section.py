"""Sections through a surrogate: what it says itself, nothing outside of the results, and clear refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from transient_magics.errors import PlanError
from transient_magics.protocol.space import parse_space
from transient_magics.works.bags.surrogate.cube import all_inside, inside
from transient_magics.works.bags.surrogate.model import Surrogate, learn
from transient_magics.works.bags.surrogate.section import sections

from .test_surrogate import SPACE, computed

MIXED = parse_space("x=0.001:10:log n=1:6:int salt=0:1 b=1,2,5")


def of_four() -> tuple[Surrogate, list[Any]]:
    from transient_magics.works.bags.surrogate.cube import Cube

    points = Cube(MIXED).filling(24, 0)
    results = [(point, {"energy": float(np.log(point["x"]) * point["n"]), "heat": point["salt"]}) for point in points]  # type: ignore[operator]
    return learn(MIXED, results), results


@pytest.fixture(scope="module")
def four() -> tuple[Surrogate, list[Any]]:
    return of_four()


@pytest.mark.slow
def test_over_two_parameters_it_is_what_the_surrogate_says_and_blank_where_that_is_silent() -> None:
    results = computed(40)[4:]  # without the corners
    surrogate = learn(SPACE, results)
    (section,) = sections(surrogate, results)
    across, up = section.places
    assert (len(across), len(up)) == (40, 40)
    assert across[0] == pytest.approx(0.3 + 0.6 / 80), "the middle of the first cell"
    silent = 0
    for line, column in itertools.product(range(1, 40, 6), range(1, 40, 6)):
        mean, sd = section.means[line][column], section.sds[line][column]
        point = {"density": across[column], "temperature": up[line]}
        if mean is None:
            silent += 1
            with pytest.raises(PlanError, match="is outside of the computed points"):
                surrogate(**point)
        else:
            said: Any = surrogate(**point)
            assert (mean, sd) == pytest.approx((said.value, said.sd))
    assert 0 < silent < 25
    assert section.results == tuple(
        ((point["density"], point["temperature"]), returned["pressure"], returned["pressure_error"])
        for point, returned in results
    )


@pytest.mark.slow
def test_of_more_parameters_two_are_axes_and_the_others_are_held(four: tuple[Surrogate, list[Any]]) -> None:
    surrogate, results = four
    energy, heat = sections(surrogate, results, (), ("x", "n"), {"salt": 0.3, "b": 2})
    assert (energy.output, heat.output) == ("energy", "heat")
    assert energy.places[1] == (1, 2, 3, 4, 5, 6), "each whole number is a cell"
    assert energy.places[0][0] == pytest.approx(0.001 * 10 ** (4 / 80))
    assert energy.results == (), "none has exactly these values"
    (line,) = sections(surrogate, results, ("heat",), ("b",), {"salt": 0.3, "x": 0.2, "n": 3})
    assert (line.places, len(line.means)) == (((1, 2, 5),), 1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "4 parameters have no value. Write plot\\(over=\\('x', 'n'\\), salt=…, b=…\\)"),
        (
            {"over": ("x", "n")},
            "'salt' is neither an axis nor has a value. Write plot\\(over=\\('x', 'n'\\), salt=…, b=…\\)",
        ),
        ({"over": ("x", "q")}, "'q' is not a parameter of this bag. Its parameters are x, n, salt, b"),
        (
            {"over": ("x", "x"), "fixed": {"n": 1, "salt": 0.5, "b": 1}},
            "'x' is given twice. Name it once",
        ),
        ({"over": ("x",), "fixed": {"x": 1, "n": 1, "salt": 0.5, "b": 1}}, "'x' is given twice"),
        ({"fixed": {"n": 1, "salt": 3, "b": 1}}, "salt=3 is outside of the space of this bag. Use salt=0.0:1.0"),
        ({"fixed": {"n": 1, "salt": 0.5, "b": 3}}, "b=3 is outside of the space of this bag. Use b=1,2,5"),
        ({"fixed": {"n": 1, "salt": "none", "b": 1}}, "salt=none is outside of the space of this bag"),
        ({"outputs": ("q",), "over": ("x",)}, "'n' is neither an axis"),
        (
            {"outputs": ("q",), "fixed": {"n": 1, "salt": 0.5, "b": 1}},
            "'q' is not an output of this bag. Its outputs are energy, heat",
        ),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_sentence(
    four: tuple[Surrogate, list[Any]], asked: dict[str, Any], said: str
) -> None:
    surrogate, results = four
    with pytest.raises(PlanError, match=said):
        sections(surrogate, results, **asked)


@examples(25)
@given(st.integers(1, 3), st.integers(0, 2**16), st.booleans())
def test_many_places_are_inside_as_each_one_is(dimensions: int, seed: int, flat: bool) -> None:
    random = np.random.default_rng(seed)
    data = random.random((8, dimensions))
    if flat:
        data[:, -1] = 0.5  # on a line, or in a plane
    rows = np.vstack([random.random((6, dimensions)), random.dirichlet(np.ones(8), 4) @ data])
    assert all_inside(data, rows).tolist() == [inside(data, row) for row in rows]
    corners = np.array(list(itertools.product((0.0, 1.0), repeat=dimensions)))
    assert all_inside(np.vstack([data, corners]), rows).all()
