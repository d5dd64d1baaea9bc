"""Arrays and surrogates as files from VMs: bounded, checked and never unpickled."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...protocol import checks
from ...protocol.checks import Amount, Count
from ...protocol.outputs import MOST_ARRAY_BYTES, MOST_JOBS, MOST_OUTPUTS, output_name
from ...protocol.space import Dimension
from .surrogate.model import MOST_GAUSSIAN, Ensemble, Gaussian, Surrogate

MOST_ARRAYS = 4096
MOST_UNPACKED_BYTES = 4 * MOST_ARRAY_BYTES
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.npy", re.ASCII)
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OSError,
    MemoryError,
)
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that NumPy uses.

Decompressors of other methods raise their own errors and allocate as much memory as the file states.
"""
_ENTRY = b"PK\x01\x02"
_LENGTHS = {(1, 0): 2, (2, 0): 4}
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[biufc][0-9]{1,2})', 'fortran_order': (?:True|False), "
    rb"'shape': \(((?:[0-9]{1,19}, )*(?:[0-9]{1,19},?)?)\), \} *\n"
)
"""Header as NumPy writes it for boolean, integer, float and complex arrays.

NumPy itself evaluates the header as a literal, so only this form is passed to it.
"""

_MOST_LAYERS = 8
_MOST_MEMBERS = 64
_MOST_WIDTH = 1024
"""Limit on the width of a network's layer.

The memory of a prediction grows with the width, for a Gaussian process with the square of its
number of results.
"""
_Array = NDArray[np.float64]


def read_arrays(packed: bytes) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of an npz file by name.

    Raises
    ------
    ValueError
        If the file is not an npz file, is too large, or contains anything but arrays of numbers.
        The message is a clause.
    """
    if len(packed) > MOST_ARRAY_BYTES:
        raise ValueError(
            f"the file has {len(packed)} bytes, more than the limit of {MOST_ARRAY_BYTES}"
        )
    if packed.count(_ENTRY) > 2 * MOST_ARRAYS:  # before ZipFile parses each entry
        raise ValueError(f"the file has more than {MOST_ARRAYS} arrays")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = archive.infolist()
            if len(entries) > MOST_ARRAYS or len({entry.filename for entry in entries}) < len(
                entries
            ):
                raise ValueError(
                    f"the file has more than {MOST_ARRAYS} arrays, or the same name twice"
                )
            if wrong := next(
                (entry for entry in entries if not _NAME.fullmatch(entry.filename)), None
            ):
                raise ValueError(f"{wrong.filename!r:.80} is not a valid name of an array")
            if other := next(
                (entry for entry in entries if entry.compress_type not in _PACKED), None
            ):
                raise ValueError(f"{other.filename} has an unsupported compression")
            if sum(entry.file_size for entry in entries) > MOST_UNPACKED_BYTES:
                raise ValueError(f"the unpacked arrays have more than {MOST_UNPACKED_BYTES} bytes")
            return {
                entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in entries
            }
    except _BROKEN as error:
        raise ValueError(f"the file is not a valid npz file: {error}") from None


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as file:
        content = file.read(entry.file_size + 1)
    if len(content) > entry.file_size:
        raise ValueError(f"{entry.filename} is damaged: it is larger than its entry in the archive")
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in _LENGTHS:
        raise ValueError(f"{entry.filename} has an unknown version of the npy format")
    header = file.read(int.from_bytes(file.read(_LENGTHS[version]), "little"))
    if not (match := _HEADER.fullmatch(header)):
        raise ValueError(f"{entry.filename} must have plain numbers, not {header!r:.80}")
    try:
        size = np.dtype(match[1].decode()).itemsize
    except TypeError:
        raise ValueError(f"{entry.filename} has the unknown data type {match[1]!r}") from None
    shape = [int(length) for length in match[2].split(b",") if length.strip()]
    if math.prod(shape) * size != len(content) - file.tell():  # before anything is allocated for it
        raise ValueError(f"{entry.filename} is damaged: its size does not match its header")
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


@dataclass(frozen=True, slots=True)
class _Model:
    """Scalar parameters of one output's model."""

    output: Annotated[str, output_name]
    kind: Literal["gp", "ensemble"]
    mean: float
    scale: Amount
    kernel: Literal["rbf", "matern"] = "rbf"
    variance: Amount = 0.0
    white: Amount = 0.0
    factor: Amount = 0.0
    noise: Amount = 0.0
    members: Count = 0
    layers: Count = 0


@dataclass(frozen=True, slots=True)
class _Header:
    space: tuple[Dimension, ...]
    models: tuple[_Model, ...]
    arrays: str = ""
    """SHA-256 of the matching npz file; the two files are replaced separately."""


def pack_surrogate(surrogate: Surrogate) -> tuple[bytes, bytes]:
    """Return the JSON header and the npz file of a surrogate."""
    models = []
    arrays = {"rows": surrogate.rows}
    for number, (output, model) in enumerate(surrogate.models.items()):
        if isinstance(model, Gaussian):
            models.append(
                _Model(
                    output, "gp", model.mean, model.scale, model.kernel, model.variance, model.white
                )
            )
            arrays |= {f"{number}.values": model.values, f"{number}.noise": model.noise}
            arrays |= {f"{number}.lengths": model.lengths}
            continue
        layers = len(model.weights[0])
        models.append(
            _Model(
                output,
                "ensemble",
                model.mean,
                model.scale,
                factor=model.factor,
                noise=model.noise,
                members=len(model.weights),
                layers=layers,
            )
        )
        for member, (weights, biases) in enumerate(zip(model.weights, model.biases, strict=True)):
            for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                arrays |= {
                    f"{number}.{member}.{layer}.w": weight,
                    f"{number}.{member}.{layer}.b": bias,
                }
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]
    header = _Header(surrogate.space, tuple(models), hashlib.sha256(packed.getvalue()).hexdigest())
    return json.dumps(asdict(header)).encode(), packed.getvalue()


def unpack_surrogate(header: bytes, packed: bytes) -> Surrogate:
    """Return the surrogate from the two files that `pack_surrogate` returns.

    Raises
    ------
    ValueError
        If the files contain anything else. The message is a clause.
    """
    found = checks.built(_Header, checks.parsed_object(header))
    if not 0 < len(found.models) <= MOST_OUTPUTS or len(
        {model.output for model in found.models}
    ) < len(found.models):
        raise ValueError(f"a surrogate must have 1 to {MOST_OUTPUTS} different outputs")
    if found.arrays and found.arrays != hashlib.sha256(packed).hexdigest():
        raise ValueError("the arrays belong to another surrogate")
    arrays = read_arrays(packed)
    if any(array.dtype != np.float64 or not np.isfinite(array).all() for array in arrays.values()):
        raise ValueError("the arrays of a surrogate must be finite numbers")
    rows = _shaped(arrays, "rows", (None, len(found.space)))
    if len(rows) > (
        MOST_GAUSSIAN if any(model.kind == "gp" for model in found.models) else 2 * MOST_JOBS
    ):
        raise ValueError(f"the surrogate has too many results ({len(rows)})")
    models = {
        model.output: _model(model, f"{number}.", arrays, rows)
        for number, model in enumerate(found.models)
    }
    return Surrogate(found.space, models, rows)


def _model(
    parameters: _Model, before: str, arrays: Mapping[str, _Array], rows: _Array
) -> Gaussian | Ensemble:
    count, dimensions = rows.shape
    if parameters.kind == "gp":
        lengths, noise = (
            _shaped(arrays, f"{before}{name}", (size,))
            for name, size in (("lengths", dimensions), ("noise", count))
        )
        if (lengths <= 0).any() or (noise < 0).any():
            raise ValueError("the lengths must be greater than 0, and the noise must be at least 0")
        values = _shaped(arrays, f"{before}values", (count,))
        return Gaussian(
            rows,
            values,
            noise,
            parameters.kernel,
            parameters.variance,
            lengths,
            parameters.white,
            parameters.mean,
            parameters.scale,
        )
    if not (2 <= parameters.members <= _MOST_MEMBERS and 1 <= parameters.layers <= _MOST_LAYERS):
        raise ValueError(
            f"an ensemble of {parameters.members} networks with {parameters.layers} layers is "
            "outside of the limits"
        )
    weights = []
    biases = []
    for member in range(parameters.members):
        size = dimensions
        layers = []
        ends = []
        for layer in range(parameters.layers):
            layers.append(_shaped(arrays, f"{before}{member}.{layer}.w", (size, None)))
            if (size := layers[-1].shape[1]) > _MOST_WIDTH:
                raise ValueError(
                    f"a network must have a width of at most {_MOST_WIDTH}, not {size}"
                )
            ends.append(_shaped(arrays, f"{before}{member}.{layer}.b", (size,)))
        if size != 1:
            raise ValueError(f"a network must return 1 number, not {size}")
        weights.append(tuple(layers))
        biases.append(tuple(ends))
    return Ensemble(
        tuple(weights),
        tuple(biases),
        parameters.factor,
        parameters.noise,
        parameters.mean,
        parameters.scale,
    )


def _shaped(arrays: Mapping[str, _Array], name: str, shape: tuple[int | None, ...]) -> _Array:
    found = arrays.get(name)
    if found is None or len(found.shape) != len(shape):
        raise ValueError(f"the array {name} is missing, or must have {len(shape)} dimensions")
    if any(expected not in (None, size) for expected, size in zip(shape, found.shape, strict=True)):
        raise ValueError(f"the array {name} has the unexpected shape {found.shape}")
    return found
