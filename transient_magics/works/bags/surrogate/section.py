"""Sections through a surrogate along one or two parameters, with the others fixed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....errors import PlanError
from ....protocol.literals import as_number
from ....protocol.outputs import ERROR
from ....protocol.run import Value
from ....protocol.space import Dimension
from .cube import all_inside
from .model import Result, Surrogate

_ALONG = 120
_CELLS = 40
"""Number of places along each of two parameters; `_ALONG` is for one."""


@dataclass(frozen=True, slots=True)
class Section:
    """One output `over` one or two parameters; `fixed` are the values of the others.

    `places` are the values of each parameter: all choices, a few whole numbers, or an even range.
    `means` and `sds` have a row for each place of the second parameter (one row without it), with
    None outside of the results. `results` are those on the section: the values of `over`, the
    returned value, and its error (None: not returned).
    """

    output: str
    over: tuple[Dimension, ...]
    fixed: Mapping[str, Value]
    places: tuple[tuple[Value, ...], ...]
    means: tuple[tuple[float | None, ...], ...]
    sds: tuple[tuple[float | None, ...], ...]
    results: tuple[tuple[tuple[Value, ...], float, float | None], ...]


def sections(
    surrogate: Surrogate,
    results: Sequence[Result],
    outputs: Sequence[str] = (),
    over: Sequence[str] = (),
    fixed: Mapping[str, Value] | None = None,
) -> tuple[Section, ...]:
    """Return a section for each of the `outputs` over the parameters `over`.

    By default, these are all outputs and all parameters that are not held. Raises PlanError for
    unknown names, for values outside of the space, and for more than two parameters.
    """
    fixed = fixed or {}
    chosen = _over(surrogate, over, fixed)
    names = outputs or list(surrogate.models)
    if lost := next((name for name in names if name not in surrogate.models), None):
        raise PlanError(
            f"'{lost}' is not an output of this bag",
            fix=f"Its outputs are {', '.join(surrogate.models)}.",
        )
    places = tuple(
        _places(dimension, _ALONG if len(chosen) == 1 else _CELLS, cells=len(chosen) > 1)
        for dimension in chosen
    )
    parameters = [dimension.name for dimension in chosen]
    points = [
        {**fixed, **dict(zip(parameters, at[::-1], strict=True))}
        for at in itertools.product(*places[::-1])
    ]
    width = len(places[0])
    is_inside = all_inside(surrogate.rows, surrogate.cube.rows(points))
    found = {name: pair for name, pair in surrogate.predict(points).items() if name in names}

    def rows(values: Sequence[float]) -> tuple[tuple[float | None, ...], ...]:
        shown = [
            float(value) if inside else None
            for value, inside in zip(values, is_inside, strict=True)
        ]
        return tuple(tuple(shown[begin : begin + width]) for begin in range(0, len(shown), width))

    on = [
        (point, returned)
        for point, returned in results
        if all(point[name] == fixed[name] for name in fixed)
    ]
    return tuple(
        Section(
            name,
            chosen,
            fixed,
            places,
            rows(found[name][0].tolist()),
            rows(found[name][1].tolist()),
            tuple(
                (
                    tuple(point[dimension.name] for dimension in chosen),
                    returned[name],
                    returned.get(name + ERROR),
                )
                for point, returned in on
            ),
        )
        for name in names
    )


def _over(
    surrogate: Surrogate, over: Sequence[str], fixed: Mapping[str, Value]
) -> tuple[Dimension, ...]:
    """Return the parameters of the axes. Raises PlanError."""
    space = {dimension.name: dimension for dimension in surrogate.space}
    if lost := next((name for name in (*over, *fixed) if name not in space), None):
        raise PlanError(
            f"'{lost}' is not a parameter of this bag",
            fix=f"Its parameters are {', '.join(space)}.",
        )
    names = list(over) or [name for name in space if name not in fixed]
    if twice := next((name for name in names if names.count(name) > 1 or name in fixed), None):
        raise PlanError(
            f"'{twice}' is given twice", fix=f"Name it once, either in over or as {twice}=VALUE."
        )
    if not 1 <= len(names) <= 2:
        few = list(space)[:2]
        others = ", ".join(f"{name}=…" for name in space if name not in few)
        raise PlanError(
            f"A plot must have 1 or 2 axes, but {len(names)} parameters have no value",
            fix=f"Write plot(over={tuple(few)!r}, {others}).",
        )
    if left := [name for name in space if name not in names and name not in fixed]:
        values = ", ".join(f"{name}=…" for name in left)
        raise PlanError(
            f"'{left[0]}' is neither an axis nor has a value",
            fix=f"Write plot(over={tuple(names)!r}, {values}).",
        )
    if wrong := next((name for name, value in fixed.items() if not _may(space[name], value)), None):
        raise PlanError(
            f"{wrong}={fixed[wrong]} is outside of the space of this bag",
            fix=f"Use {space[wrong]}.",
        )
    return tuple(space[name] for name in names)


def _may(dimension: Dimension, value: Value) -> bool:
    if dimension.kind == "choice":
        return value in dimension.choices
    return dimension.low <= as_number(value) <= dimension.high  # never so for NaN


def _places(dimension: Dimension, count: int, *, cells: bool) -> tuple[Value, ...]:
    """Return `count` values from end to end, or with `cells` the centres of equal cells."""
    low = dimension.low
    high = dimension.high
    if dimension.kind == "choice":
        return dimension.choices
    if dimension.kind == "int" and high - low < count:
        return tuple(range(int(low), int(high) + 1))
    shares = [(index + 0.5) / count if cells else index / (count - 1) for index in range(count)]
    if dimension.kind == "log":
        return tuple(
            min(max(low * math.exp(share * math.log(high / low)), low), high) for share in shares
        )
    return tuple(low + share * (high - low) for share in shares)
