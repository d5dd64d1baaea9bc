"""Nested values by names: what input_fn gives, what a model takes, and the names of a model's
weights.

A structure is a value, or a dict, a tuple or a namedtuple of structures, as in `tf.nest` and
`keras.tree`. Its keys may be any texts or numbers, so they are no names of a graph's operations:
those are our own (`feature_0`, `label_1`), with a table beside them. Nothing here imports
TensorFlow.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import TrainingError

if TYPE_CHECKING:
    from numpy import ndarray

INPUTS = "inputs"
LABELS = "labels"
WEIGHTS = "sample_weight"
PARTS = (INPUTS, LABELS, WEIGHTS)
_KEYS = {INPUTS: "feature", LABELS: "label", WEIGHTS: "weight"}
Keys = tuple[Any, ...]

_NAMES = "names"
_TAKEN = frozenset((_NAMES, "file", "args", "kwds", "allow_pickle"))


def leaves(structure: Any, path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """All values of a structure with their paths, in its own order."""
    if isinstance(structure, Mapping):
        inner: Iterable[tuple[Any, Any]] = structure.items()
    elif is_named(structure):
        inner = structure._asdict().items()
    elif isinstance(structure, tuple):
        inner = enumerate(structure)
    else:
        yield path, structure
        return
    for key, value in inner:
        yield from leaves(value, (*path, key))


def mapped(function: Callable[[Keys, Any], Any], structure: Any, path: Keys = ()) -> Any:
    """The same structure with `function(path, value)` in place of each value."""
    if isinstance(structure, Mapping):
        return {key: mapped(function, value, (*path, key)) for key, value in structure.items()}
    if is_named(structure):
        values = structure._asdict().items()
        return type(structure)(*(mapped(function, value, (*path, key)) for key, value in values))
    if isinstance(structure, tuple):
        return tuple(
            mapped(function, value, (*path, number)) for number, value in enumerate(structure)
        )
    return function(path, structure)


def is_named(value: object) -> bool:
    """Whether it is a namedtuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def name_of(part: str, path: Keys) -> str:
    """What a user calls a value of an example: `age`, `address/street`, `inputs_1`, `labels/y`."""
    if not path:
        return part
    first, *inner = path
    if isinstance(first, int):
        return "/".join([f"{part}_{first}", *map(str, inner)])
    texts = list(map(str, path))
    return "/".join([part, *texts] if part in (LABELS, WEIGHTS) else texts)


class Layout:
    """What an example consists of: its values by our own keys, and those keys by what the user
    calls the values.
    """

    def __init__(self, example: Sequence[Any]) -> None:
        """`example`: features, labels and, if there are any, weights. Raises TrainingError for one
        without features.
        """
        self._keys: dict[tuple[str, Keys], str] = {}
        self.parts: dict[str, Any] = {}
        """The structure of each part, with keys in place of values."""
        self.names: dict[str, str] = {}
        """What the user calls each key's value."""
        for part, structure in zip(PARTS, example, strict=False):
            found = [path for path, _ in leaves(structure)]
            if not found:
                raise TrainingError(
                    f"input_fn gives no {_plural(part)}", fix="A dict or a tuple needs an entry."
                )
            for number, path in enumerate(found):
                if path:
                    key = f"{_KEYS[part]}_{number}"
                else:
                    key = part
                self._keys[part, path] = key
                self.names[key] = name_of(part, path)
            self.parts[part] = mapped(lambda path, _, part=part: self._keys[part, path], structure)
        self.names = dict(zip(self.names, unique(self.names.values()), strict=True))

    def keys(self, part: str) -> list[str]:
        """The keys of one part."""
        return [key for (whose, _), key in self._keys.items() if whose == part]

    def flat(self, *example: Any) -> dict[str, Any]:
        """The values of an example by their keys. Raises TrainingError where it has others than the
        first one.
        """
        found = {
            (part, path): value
            for part, structure in zip(PARTS, example, strict=False)
            for path, value in leaves(structure)
        }
        weighted = any(part == WEIGHTS for part, _ in found)  # an evaluation may do without weights
        expected = {place for place in self._keys if weighted or place[0] != WEIGHTS}
        if different := [
            place for place in (*self._keys, *found) if place in expected ^ found.keys()
        ]:
            part, path = different[0]
            only = "train" if different[0] in self._keys else "eval"
            what = f"input_fn gives {name_of(part, path)!r} for the mode {only!r} only"
            raise TrainingError(
                what, fix="Return the same features, labels and weights for both modes."
            )
        return {self._keys[place]: value for place, value in found.items()}

    def structured(self, values: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Features, labels and weights as input_fn gave them; None for a part of which no values
        are there.
        """
        parts = (self.parts.get(part) for part in PARTS)
        return tuple(  # type: ignore[return-value]
            None
            if structure is None or any(key not in values for _, key in leaves(structure))
            else mapped(lambda _, key: values[key], structure)
            for structure in parts
        )


def described(structure: Any) -> Any:
    """A structure of keys as JSON, which `rebuilt` reads."""
    if isinstance(structure, Mapping):
        return {"dict": [[key, described(value)] for key, value in structure.items()]}
    if is_named(structure):
        return {"named": [[key, described(value)] for key, value in structure._asdict().items()]}
    if isinstance(structure, tuple):
        return {"tuple": [described(value) for value in structure]}
    return structure


def rebuilt(description: Any, values: Mapping[str, Any]) -> Any:
    """The structure that `described` wrote, with values in place of its keys."""
    if not isinstance(description, Mapping):
        return values[description]
    ((kind, inner),) = description.items()
    if kind == "tuple":
        return tuple(rebuilt(each, values) for each in inner)
    found = {key: rebuilt(value, values) for key, value in inner}
    if kind == "dict":
        return found
    return namedtuple("Features", found)(**found)


def unique(names: Iterable[str]) -> list[str]:
    """Names that differ, in this order: the second `path` is `path_1`. Upper case makes no
    difference in a graph.
    """
    wanted = list(names)
    taken = set[str]()
    found = list[str]()
    reserved = {name.lower() for name in wanted}
    for name in wanted:
        fresh = name
        number = 0
        while fresh.lower() in taken or (number and fresh.lower() in reserved):
            number += 1
            fresh = f"{name}_{number}"
        taken.add(fresh.lower())
        found.append(fresh)
    return found


def weight_names(weights: Iterable[Any]) -> list[str]:
    """Names for the variables of a Keras model's weights, in their order: their paths, where a
    graph takes them.
    """
    return unique(
        re.sub(r"^(?![A-Za-z0-9.])", "w", re.sub(r"[^A-Za-z0-9_.\\/-]", "_", weight.path))
        for weight in weights
    )


def _plural(part: str) -> str:
    return {INPUTS: "features", LABELS: "labels"}.get(part, "sample weights")


# Arrays by any names in a file, between a program and who asked for its answer.
#
# In NumPy's files names are names of files, and parameters of its functions: those that cannot be are in a table.


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write the arrays; `path` ends in `.npz`."""
    import numpy

    if all(name.isidentifier() and name.isascii() and name not in _TAKEN for name in arrays):
        numpy.savez(path, **arrays)
        return
    numbered = {f"array_{number}": array for number, array in enumerate(arrays.values())}
    numpy.savez(path, **{_NAMES: numpy.array(list(arrays), dtype=str)}, **numbered)


def read_arrays(path: Path) -> dict[str, ndarray]:
    """The arrays that `write` wrote, in their order."""
    import numpy

    with numpy.load(path, allow_pickle=False) as file:
        if _NAMES not in file.files:
            return {name: file[name] for name in file.files}
        return {str(name): file[f"array_{number}"] for number, name in enumerate(file[_NAMES])}
