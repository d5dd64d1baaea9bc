"""The points of a grid and of chance: a pure function of the declaration and the trial's number.

So a study whose controller is killed asks for exactly the same trials again. Optuna has samplers for both, too; theirs
draw from a state that is lost with the process.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from ..protocol.run import Value
from ..protocol.study import Dimension, StudySpec


def point(spec: StudySpec, number: int) -> dict[str, Value] | None:
    """The `number`-th point of a study; None where it depends on the trials before. Raises ValueError where a grid has
    none."""
    match spec.sampler:
        case "none":
            return {}
        case "grid":
            return grid_point(spec.dimensions, spec.first + number)
        case "random":
            return random_point(spec.dimensions, spec.seed, number)
        case _:
            return None


def grid_point(space: Sequence[Dimension], number: int) -> dict[str, Value]:
    """The `number`-th point of all, from 0 on, of which the last parameter changes fastest. Raises ValueError where
    there is none."""
    point: dict[str, Value] = {}
    for dimension in reversed(space):
        values = _values(dimension)
        number, place = divmod(number, len(values))
        point[dimension.name] = values[place]
    if number:
        raise ValueError("the grid has no such point")
    return {dimension.name: point[dimension.name] for dimension in space}


def random_point(space: Sequence[Dimension], seed: int, number: int) -> dict[str, Value]:
    """A point that is drawn, each parameter by itself."""
    return {
        dimension.name: _drawn(dimension, random.Random(f"{seed} {number} {dimension.name}")) for dimension in space
    }


def _values(dimension: Dimension) -> Sequence[Value]:
    if dimension.kind == "choice":
        return dimension.choices
    if dimension.kind != "int":
        raise ValueError(f"{dimension.name} is a range")
    return range(int(dimension.low), int(dimension.high) + 1)


def _drawn(dimension: Dimension, chance: random.Random) -> Value:
    match dimension.kind:
        case "choice":
            return chance.choice(dimension.choices)
        case "int":
            return chance.randint(int(dimension.low), int(dimension.high))
        case "log":
            value = math.exp(chance.uniform(math.log(dimension.low), math.log(dimension.high)))
        case _:
            value = chance.uniform(dimension.low, dimension.high)
    return min(max(value, dimension.low), dimension.high)
