"""Nested values by name: examples of input_fn, inputs and weights of a model, arrays in a file.

A structure is a value, or a dict, a tuple or a namedtuple of structures, as in `tf.nest` and
`keras.tree`. Its keys may be any texts or numbers, which a graph does not accept as names of
operations. So graphs use keys of ours (`feature_0`, `label_1`), and a table maps them to the user's
names. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import TrainingError
from ....files import replacing

if TYPE_CHECKING:
    from numpy import ndarray

INPUTS = "inputs"
LABELS = "labels"
WEIGHTS = "sample_weight"
PARTS = (INPUTS, LABELS, WEIGHTS)
_KEYS = {INPUTS: "feature", LABELS: "label", WEIGHTS: "weight"}
Keys = tuple[Any, ...]

_NAMES = "names"
_RESERVED = frozenset((_NAMES, "file", "args", "kwds", "allow_pickle"))


def leaves(structure: Any, path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield all values of a structure with their paths, in the structure's order."""
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
    """Return the structure with `function(path, value)` in place of each value."""
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
    """Return whether `value` is a namedtuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_text(array: Any) -> bool:
    """Return whether all values of an array are texts, as `str` or `bytes`."""
    if array.dtype.kind != "O":
        return array.dtype.kind in "SU"
    return all(isinstance(value, str | bytes) for value in array.flat)


def name_of(part: str, path: Keys) -> str:
    """Return the user's name of a value: `age`, `address/street`, `inputs_1`, `labels/y`."""
    if not path:
        return part
    first, *inner = path
    if isinstance(first, int):
        return "/".join([f"{part}_{first}", *map(str, inner)])
    texts = list(map(str, path))
    if part in (LABELS, WEIGHTS):
        texts.insert(0, part)
    return "/".join(texts)


class Layout:
    """The values of an example by our keys, and the user's names of these keys."""

    def __init__(self, example: Sequence[Any]) -> None:
        """Read the layout of one example.

        Parameters
        ----------
        example
            Features, labels and optional weights.

        Raises
        ------
        TrainingError
            For an example without features.
        """
        self._keys: dict[tuple[str, Keys], str] = {}
        self.parts: dict[str, Any] = {}
        """The structure of each part, with keys in place of values."""
        self.names: dict[str, str] = {}
        """The user's name of each key's value."""
        for part, structure in zip(PARTS, example, strict=False):
            found = [path for path, _ in leaves(structure)]
            if not found:
                raise TrainingError(
                    f"input_fn returns no {_plural(part)}", fix="Add an entry to the dict or tuple."
                )
            for number, path in enumerate(found):
                if path:
                    key = f"{_KEYS[part]}_{number}"
                else:
                    key = part
                self._keys[part, path] = key
                self.names[key] = name_of(part, path)
            self.parts[part] = mapped(partial(self._key, part), structure)
        self.names = dict(zip(self.names, unique(self.names.values()), strict=True))

    def _key(self, part: str, path: Keys, _: Any) -> str:
        return self._keys[part, path]

    def keys(self, part: str) -> list[str]:
        """Return the keys of one part."""
        return [key for (own_part, _), key in self._keys.items() if own_part == part]

    def flat(self, *example: Any) -> dict[str, Any]:
        """Return the values of an example by key.

        Raises TrainingError if its values are not those of the first example.
        """
        found = {
            (part, path): value
            for part, structure in zip(PARTS, example, strict=False)
            for path, value in leaves(structure)
        }
        # An evaluation may have no weights.
        weighted = any(part == WEIGHTS for part, _ in found)
        expected = {place for place in self._keys if weighted or place[0] != WEIGHTS}
        if different := [
            place for place in (*self._keys, *found) if place in expected ^ found.keys()
        ]:
            part, path = different[0]
            only = "train" if different[0] in self._keys else "eval"
            what = f"input_fn returns {name_of(part, path)!r} only for the mode {only!r}"
            raise TrainingError(
                what, fix="Return the same features, labels and weights for both modes."
            )
        return {self._keys[place]: value for place, value in found.items()}

    def structured(self, values: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Return features, labels and weights in the form of input_fn.

        A part is None if any of its values is missing.
        """
        features, labels, weights = (self._part(part, values) for part in PARTS)
        return features, labels, weights

    def _part(self, part: str, values: Mapping[str, Any]) -> Any:
        structure = self.parts.get(part)
        if structure is None or any(key not in values for _, key in leaves(structure)):
            return None
        return mapped(lambda _, key: values[key], structure)


def described(structure: Any) -> Any:
    """Return a structure of keys as a JSON value, which `rebuilt` reads."""
    if isinstance(structure, Mapping):
        return {"dict": [[key, described(value)] for key, value in structure.items()]}
    if is_named(structure):
        return {"named": [[key, described(value)] for key, value in structure._asdict().items()]}
    if isinstance(structure, tuple):
        return {"tuple": [described(value) for value in structure]}
    return structure


def rebuilt(description: Any, values: Mapping[str, Any]) -> Any:
    """Return the structure that `described` wrote, with values in place of its keys."""
    if not isinstance(description, Mapping):
        return values[description]
    ((kind, inner),) = description.items()
    if kind == "tuple":
        return tuple(rebuilt(item, values) for item in inner)
    found = {key: rebuilt(value, values) for key, value in inner}
    if kind == "dict":
        return found
    return namedtuple("Features", found)(**found)


def unique(names: Iterable[str]) -> list[str]:
    """Return the names in order, made unique: the second `path` becomes `path_1`.

    The comparison ignores case, as graphs do.
    """
    requested = list(names)
    used = set[str]()
    found = list[str]()
    reserved = {name.lower() for name in requested}
    for name in requested:
        fresh = name
        number = 0
        while fresh.lower() in used or (number and fresh.lower() in reserved):
            number += 1
            fresh = f"{name}_{number}"
        used.add(fresh.lower())
        found.append(fresh)
    return found


def weight_names(weights: Iterable[Any]) -> list[str]:
    """Return a Keras model's weight paths in order, as unique names that a graph accepts."""
    return unique(
        re.sub(r"^(?![A-Za-z0-9.])", "w", re.sub(r"[^A-Za-z0-9_.\\/-]", "_", weight.path))
        for weight in weights
    )


def _plural(part: str) -> str:
    return {INPUTS: "features", LABELS: "labels"}.get(part, "sample weights")


# Arrays in a file, with any names, between a program and its caller. NumPy uses the names as names
# of files and of parameters. If one of them cannot be used so, the file has a table of names.


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Replace the file `path` by arrays with names. Texts become arrays of `str`."""
    import numpy

    stored = {name: _without_objects(array) for name, array in arrays.items()}
    if not all(name.isidentifier() and name.isascii() and name not in _RESERVED for name in stored):
        names = numpy.array(list(stored), dtype=str)
        numbered = {f"array_{number}": array for number, array in enumerate(stored.values())}
        stored = {_NAMES: names, **numbered}
    with replacing(path) as file:
        numpy.savez(file, **stored)


def _without_objects(array: Any) -> Any:
    """Return an array of `str` for one of objects, which only a pickle could contain."""
    import numpy

    array = numpy.asarray(array)
    if array.dtype.kind != "O":
        return array
    texts = [text.decode() if isinstance(text, bytes) else str(text) for text in array.flat]
    return numpy.array(texts, str).reshape(array.shape)


def read_arrays(path: Path) -> dict[str, ndarray]:
    """Return the arrays that `write_arrays` wrote, in their order.

    Raises TrainingError if the file is missing or damaged.
    """
    import numpy

    try:
        with numpy.load(path, allow_pickle=False) as file:
            if _NAMES not in file.files:
                return {name: file[name] for name in file.files}
            return {str(name): file[f"array_{number}"] for number, name in enumerate(file[_NAMES])}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise TrainingError(f"{path.name} cannot be read: {error}", where=str(path)) from error
