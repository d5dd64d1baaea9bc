"""Reproducible programs: seeded random numbers, and fingerprints that processes compare.

Every process of a run executes the cell and calls its `input_fn`. A split that the cell draws must
be the same in each process. So during that time all generators that can be seeded get the run's
seed: `random`, NumPy (including `default_rng()` and `RandomState()` without a seed), TensorFlow,
and Keras, which takes its seeds from `random`. Afterwards each process draws from the system again,
so that workers augment, shuffle and drop differently.

Entropy from other sources (`os.urandom`, `secrets`, the clock) is not seeded. Then workers might
train on evaluation examples, or place variables on other parameter servers than the chief. The
chief compares fingerprints to detect that.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib
import json
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...protocol import checks

_SEEDS_OF_NUMPY = 2**32

_stream: random.Random | None = None
"""Source of seeds for unseeded generators while a program runs; None: the system."""

TRAINING = "training"
EVALUATION = "evaluation"
WEIGHTS = "weights"
VOCABULARIES = "vocabularies"
_DIFFERENT = {
    WEIGHTS: "its model has weights with other names, shapes or order",
    TRAINING: "it has another number of training examples",
    EVALUATION: "it has other evaluation examples",
    VOCABULARIES: "its preprocessing layers have other vocabularies",
}
_COMPARED_ROWS = 4096
"""Number of rows of a larger array that are compared, evenly spaced."""
_LARGEST = 1e100
"""Bound of compared values."""
_TOLERANCE = 1e-5
"""Relative tolerance between two checksums of an array: machines round sums differently."""


@contextlib.contextmanager
def seeded(seed: int, part: str = "cell") -> Iterator[None]:
    """Seed all generators for a part of the run's program, and restore their states afterwards.

    Parameters
    ----------
    seed
        The run's seed.
    part
        Name of the part of the program, which changes the random numbers.
    """
    global _stream
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy.random")
    _intercept()
    outer = _stream
    restore = _states()
    _stream = random.Random(f"{seed} {part}")
    _seed_all(_stream.getrandbits(32))
    try:
        with _imports_draw_nothing(), _functions_of_datasets_unseeded():
            yield
    finally:
        _stream = outer
        restore()


def seed_process(seed: int, part: str) -> None:
    """Seed all generators for the rest of this process, for a run declared with a seed."""
    _intercept()
    _seed_all(random.Random(f"{seed} {part}").getrandbits(32))


class Generators:
    """The generators in variables of a cell: NumPy's and `random.Random`.

    They have the same state in each call of `input_fn`, in any order of modes. Each process gives
    them states of its own while examples are read.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._restore: list[Callable[[], None]] = []
        self._renew: list[Callable[[], None]] = []
        numpy: Any = sys.modules.get("numpy")
        values: list[Any] = list({id(value): value for value in variables.values()}.values())
        for value in values:
            if isinstance(value, random.SystemRandom):
                continue
            if isinstance(value, random.Random):
                self._add(value.getstate(), value.setstate, value.seed)
            elif numpy is not None and isinstance(value, numpy.random.RandomState):
                self._add(value.get_state(), value.set_state, value.seed)
            elif numpy is not None and isinstance(value, numpy.random.Generator):
                self._add_bits(value.bit_generator)

    def restore(self) -> None:
        """Set the states in which the cell left the generators."""
        for restore in self._restore:
            restore()

    def renew(self) -> None:
        """Give each generator a state that no other process has.

        In a process with a seed, the state follows from that seed.
        """
        for renew in self._renew:
            renew()

    def _add(self, state: Any, set_state: Callable[[Any], Any], seed: Callable[[int], Any]) -> None:
        self._restore.append(lambda: set_state(state))
        self._renew.append(lambda: seed(random.getrandbits(32)))

    def _add_bits(self, bits: Any) -> None:
        state = bits.state

        def restore() -> None:
            bits.state = state

        def renew() -> None:
            bits.state = type(bits)(random.getrandbits(128)).state

        self._restore.append(restore)
        self._renew.append(renew)


@contextlib.contextmanager
def _imports_draw_nothing() -> Iterator[None]:
    """Restore the generators after each import of a library.

    Some libraries draw random numbers as they are imported (Keras). A process that imported them
    earlier must draw the same numbers as one that imports them now.
    """
    statement = builtins.__import__
    function = importlib.import_module

    def of_statement(name: str, *given: Any, **options: Any) -> Any:
        with _restored_after(name):
            return statement(name, *given, **options)

    def of_function(name: str, package: str | None = None) -> Any:
        with _restored_after(name):
            return function(name, package)

    builtins.__import__ = of_statement
    importlib.import_module = of_function
    try:
        yield
    finally:
        builtins.__import__ = statement
        importlib.import_module = function


@contextlib.contextmanager
def _functions_of_datasets_unseeded() -> Iterator[None]:
    """Remove the global seed from operations in functions of `Dataset.map` and similar.

    They draw while examples are read. With a seed they would draw the same numbers in every worker,
    and in every epoch.
    """
    structured: Any = sys.modules.get("tensorflow.python.data.ops.structured_function")
    context: Any = sys.modules.get("tensorflow.python.eager.context")
    if structured is None:
        yield
        return
    wrapper = structured.StructuredFunctionWrapper
    global_seed = context.global_seed
    build = wrapper.__init__

    def build_unseeded(self: Any, *given: Any, **options: Any) -> None:
        context.global_seed = lambda: None
        try:
            build(self, *given, **options)
        finally:
            context.global_seed = global_seed

    wrapper.__init__ = build_unseeded
    try:
        yield
    finally:
        wrapper.__init__ = build


_LIBRARIES = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


@contextlib.contextmanager
def _restored_after(name: str) -> Iterator[None]:
    """Restore the generators after the first import of an installed module."""
    if name in sys.modules or _stream is None:
        yield
        return
    numpy = sys.modules.get("numpy")
    stream_state = _stream.getstate()
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    yield
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or file.startswith(_LIBRARIES) or "packages" in Path(file).parts:
        _stream.setstate(stream_state)
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)


def _seed_all(seed: int) -> None:
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % _SEEDS_OF_NUMPY)
    if context := sys.modules.get("tensorflow.python.eager.context"):
        # `tensorflow.random.set_seed` would seed the graph in which examples are read.
        context.set_global_seed(seed)


def _states() -> Callable[[], None]:
    """Return a function that restores the present states of all generators."""
    state = random.getstate()
    numpy = sys.modules.get("numpy")
    context = sys.modules.get("tensorflow.python.eager.context")
    numpy_state = numpy.random.get_state() if numpy else None
    global_seed = context.global_seed() if context else None

    def restore() -> None:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)
        if context:
            context.set_global_seed(global_seed)

    return restore


def _intercept() -> None:
    """Let generators without a seed take one from `_stream`, if it is set. Idempotent."""
    if not hasattr(random.Random.seed, _MARK):
        _intercept_python()
    bits: Any = sys.modules.get("numpy.random.bit_generator")
    if bits and not hasattr(bits.randbits, _MARK):
        # NumPy's SeedSequence calls it if it is given no entropy.
        bits.randbits = _marked(_bits_or(bits.randbits))


_MARK = "_transient"


def _marked(function: Any) -> Any:
    setattr(function, _MARK, True)
    return function


def _bits_or(system: Callable[[int], int]) -> Callable[[int], int]:
    """Return a function that draws bits from `_stream`, or else from the system."""

    def draw(count: int) -> int:
        if _stream:
            return _stream.getrandbits(count)
        return system(count)

    return draw


def _intercept_python() -> None:
    seed = random.Random.seed

    def seed_from_stream(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and _stream is not None and self is not _stream:
            a = _stream.getrandbits(256)
        seed(self, a, version)

    random.Random.seed = _marked(seed_from_stream)
    seed_module = random.seed

    def seed_module_from_stream(a: Any = None, version: int = 2) -> None:
        if a is None and _stream:
            a = _stream.getrandbits(256)
        seed_module(a, version)

    random.seed = seed_module_from_stream


# A fingerprint of a run's program in one process, by which the chief sees that all processes
# execute the same one.
#
# Seeds make what a cell draws the same everywhere (reproducibility.py), but a cell can use entropy
# that no seed reaches. Then workers may train on what is evaluated, or place variables on other
# parameter servers than the chief.


def fingerprint_weights(graph: Any) -> dict[str, str]:
    """Return the fingerprint of a graph's trainable variables, in order of creation."""
    variables = graph.get_collection("trainable_variables")
    if not variables:  # a graph read from a file
        return {}
    described = [
        (variable.op.name, variable.shape.as_list(), variable.dtype.name) for variable in variables
    ]
    return {WEIGHTS: hashlib.sha256(json.dumps(described).encode()).hexdigest()}


def fingerprint_examples(mode: str, arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprint of the arrays of a mode, by name.

    That of training examples is only their number.
    """
    if mode == "train":
        return {TRAINING: str(len(next(iter(arrays.values()))))}
    return {EVALUATION: json.dumps(_checksum(arrays))}


def parse_fingerprint(text: str) -> dict[str, str]:
    """Parse a fingerprint that another process sent as JSON. Raises ValueError."""
    found: Mapping[str, object] = {}
    if text:
        found = checks.parsed_object(text.encode())
    parts = {name: value for name, value in found.items() if isinstance(value, str)}
    if parts.keys() != found.keys() or not parts.keys() <= _DIFFERENT.keys():
        raise ValueError(f"{text:.80} is not a fingerprint of a program")
    if EVALUATION in parts:
        _read(parts[EVALUATION])
    return parts


def fingerprint_difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Describe how two fingerprints differ; empty if they agree.

    Compares only parts that both have.
    """
    for part, words in _DIFFERENT.items():
        if not (one.get(part) and other.get(part)):
            continue
        if part == EVALUATION:
            same = _alike(one[part], other[part])
        else:
            same = one[part] == other[part]
        if not same:
            return words
    return ""


def _checksum(arrays: Mapping[str, Any]) -> tuple[str, float, float]:
    """Return a digest of names, kinds and shapes, a sum, and the sum of magnitudes.

    The first sum depends on the order of the values.
    """
    import numpy

    described = list[Any]()
    total = 0.0
    magnitude = 0.0
    for name, array in sorted(arrays.items()):
        kind = "text" if array.dtype.kind in "OSU" else "number"
        described.append([name, kind, array.shape])
        rows = array[:: max(1, len(array) // _COMPARED_ROWS)]
        if array.dtype.kind == "O":
            values = numpy.frombuffer("\n".join(map(str, rows.flat)).encode(), numpy.uint8)
        elif kind == "text":
            values = numpy.frombuffer(rows.tobytes(), numpy.uint8)
        else:
            values = rows.reshape(-1)
        values = numpy.nan_to_num(values.astype(numpy.float64), posinf=0.0, neginf=0.0)
        values = numpy.clip(values, -_LARGEST, _LARGEST)  # JSON has no infinite sums
        total += float(values @ numpy.cos(numpy.arange(len(values)) + len(described)))
        magnitude += float(numpy.abs(values).sum())
    return hashlib.sha256(json.dumps(described).encode()).hexdigest(), total, magnitude


def _alike(one: str, other: str) -> bool:
    """Return whether two checksums are equal apart from rounding."""
    first = _read(one)
    second = _read(other)
    largest = max(first[2], second[2])
    return first[0] == second[0] and abs(first[1] - second[1]) <= _TOLERANCE * largest


def _read(text: str) -> tuple[str, float, float]:
    """Parse a checksum. Raises ValueError."""
    match checks.parsed(text.encode()):
        case [str() as digest, float() as total, float() as magnitude]:
            return digest, total, magnitude
        case _:
            raise ValueError(f"{text:.80} is not a checksum of arrays")
