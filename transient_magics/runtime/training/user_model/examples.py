"""The cell's `input_fn`, called so that what it draws is the same in all processes of a run, and its fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .. import fingerprint
from ..randomness import Generators, seeded


class Examples:
    """Calls `input_fn(mode)`.

    Every call finds all generators in the state that they had when the cell had run: a split that `input_fn` draws is
    the same one for both modes, in every process. Between two calls, while examples are read, each process draws for
    itself.
    """

    def __init__(self, input_fn: Callable[[str], Any], variables: Mapping[str, Any], seed: int) -> None:
        """`variables` are those of the cell's module, `seed` is the run's."""
        self._input_fn, self._seed = input_fn, seed
        self._generators = Generators(variables)
        self._generators.renew()
        self._parts: dict[str, dict[str, str]] = {}

    def __call__(self, mode: str) -> Any:
        """Return what `input_fn` returns."""
        self._generators.restore()
        with seeded(self._seed, "input_fn"):
            given = self._input_fn(mode)
        self._generators.renew()
        if mode not in self._parts:
            arrays = _arrays(given)
            self._parts[mode] = fingerprint.of_examples(mode, arrays) if arrays else {}
        return given

    def fingerprint(self) -> dict[str, str]:
        """Return what the examples of both modes are like; nothing where `input_fn` does not return arrays."""
        if not self._parts.get("train"):
            return {}
        if "eval" not in self._parts:
            self("eval")
        return {**self._parts["train"], **self._parts["eval"]}


def _arrays(given: Any) -> dict[str, Any] | None:
    """The arrays that `input_fn` returned, by a name of their place; None if some of it is something else."""
    import numpy

    arrays = dict[str, Any]()
    for name, value in _leaves("", given):
        if not hasattr(value, "__array__") and not isinstance(value, list):
            return None
        try:
            array = numpy.asarray(value)
        except (TypeError, ValueError, NotImplementedError):  # ragged lists, tensors of a graph: refused elsewhere
            return None
        if array.dtype.kind not in "biufSU" or not array.ndim:
            return None
        arrays[name] = array
    return arrays


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{name}/{key}", each)
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _leaves(f"{name}/{number}", each)
    else:
        yield name, value
