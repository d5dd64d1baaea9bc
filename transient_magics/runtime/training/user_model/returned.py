"""What input_fn may return, and what is said of everything else: one table, with a sentence for each kind.

It may return (features, labels) or (features, labels, weights), each of them an array, or a structure of arrays, or a
tf.data.Dataset of such examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....errors import TrainingError
from .structure import PARTS, is_named, leaves, name_of

_RETURN = "Return (features, labels) or (features, labels, weights) as arrays, or a tf.data.Dataset of such examples."
_WRAP = "Wrap it: tf.data.Dataset.from_generator(lambda: ..., output_signature=...)."
_DENSE = "Give dense arrays or tensors: {}."
_TO_DENSE = _DENSE.format("tf.sparse.to_dense(x)")
_SPARSE = ("a sparse matrix", _DENSE.format("matrix.toarray()"))
_WHOLE: tuple[tuple[str, str, str], ...] = (
    ("builtins.NoneType", "nothing (None)", "End it with return features, labels, for both modes."),
    ("builtins.generator", "a generator", _WRAP),
    ("keras.src.trainers.data_adapters.py_dataset_adapter.PyDataset", "a keras.utils.PyDataset", _WRAP),
    ("torch.utils.data.dataloader.DataLoader", "a PyTorch DataLoader", _WRAP),
    ("torch.utils.data.dataset.Dataset", "a PyTorch Dataset", _WRAP),
    ("tensorflow.python.data.ops.iterator_ops.IteratorBase", "an iterator of a dataset", "Return the dataset."),
    ("pandas.core.frame.DataFrame", "one DataFrame", "Return (frame[[...]], frame['label'])."),
    ("pandas.DataFrame", "one DataFrame", "Return (frame[[...]], frame['label'])."),
    ("builtins.list", "a list", "Return a tuple: (features, labels)."),
)
"""Of whole answers: the class (or one that it derives from), what it is called, and what to do."""
_LEAVES: tuple[tuple[str, str, str], ...] = (
    ("builtins.NoneType", "None", "Leave it out, or give an array with an entry for each example."),
    ("builtins.generator", "a generator", "Make an array of it, or a tf.data.Dataset of examples."),
    ("scipy.sparse._base._spbase", *_SPARSE),
    ("scipy.sparse._base.spmatrix", *_SPARSE),
    ("tensorflow.python.framework.sparse_tensor.SparseTensor", "a SparseTensor", _TO_DENSE),
    ("tensorflow.python.ops.ragged.ragged_tensor.RaggedTensor", "a RaggedTensor", _DENSE.format("ragged.to_tensor()")),
    ("tensorflow.python.framework.sparse_tensor.SparseTensorSpec", "sparse tensors", _TO_DENSE),
    ("tensorflow.python.ops.ragged.ragged_tensor.RaggedTensorSpec", "ragged tensors", _DENSE.format("x.to_tensor()")),
    ("tensorflow.python.framework.type_spec.NoneTensorSpec", "None", "Leave it out, or give a tensor."),
    ("tensorflow.python.data.ops.dataset_ops.DatasetSpec", "datasets", "Write ds.flat_map(lambda w: w.batch(n))."),
    ("tensorflow.python.data.ops.dataset_ops.DatasetV2", "a dataset", "Use tf.data.Dataset.zip((features, labels))."),
    ("keras.src.backend.common.keras_tensor.KerasTensor", "a symbolic tensor of Keras", "Give arrays."),
    ("tensorflow.python.framework.tensor.Tensor", "a symbolic tensor", "Give arrays, or a dataset of it."),
)  # fmt: skip
"""The same of each value in an answer."""
_KINDS = {
    "M": ("dates (datetime64)", "Give numbers, as dates.astype('int64') or days since the first one."),
    "m": ("times (timedelta64)", "Give numbers, as times / numpy.timedelta64(1, 's')."),
    "V": ("records of several fields", "Give each field by its name, in a dict."),
}
"""Of arrays, by the letter of their dtype's kind."""


def wrong(what: str, fix: str = _RETURN) -> TrainingError:
    """The error for an answer as a whole."""
    return TrainingError(f"input_fn returns features and labels, but {what}", fix=fix)


def checked_parts(given: Any) -> tuple[Any, ...]:
    """The parts of an answer that is no dataset. Raises TrainingError."""
    if isinstance(given, tuple) and not is_named(given):
        if len(given) not in (2, 3):
            raise wrong(f"it gave {len(given)} parts")
        for part, structure in zip(PARTS, given, strict=False):
            for path, value in leaves(structure):
                refuse(part, path, value)
        return given
    if found := _called(given, _WHOLE):
        raise wrong(f"it gave {found[0]}", found[1])
    if isinstance(given, Iterator):
        raise wrong("it gave an iterator", _WRAP)
    if isinstance(given, Mapping):
        raise wrong("it gave a dict: features alone, or both without their order")
    if hasattr(given, "shape"):
        raise wrong("it gave one array or tensor")
    raise wrong(f"it gave {type(given).__name__}")


def checked_spec(spec: Any) -> tuple[Any, ...]:
    """The parts of a dataset's element by its `element_spec`. Raises TrainingError."""
    if not isinstance(spec, tuple) or is_named(spec) or len(spec) not in (2, 3):
        raise wrong(f"its dataset's examples have {len(spec) if isinstance(spec, tuple) else 1} parts")
    for part, structure in zip(PARTS, spec, strict=False):
        for path, value in leaves(structure):
            refuse(part, path, value, "its dataset gives")
    return spec


def refuse(part: str, path: tuple[Any, ...], value: Any, gives: str = "it gives") -> None:
    """Raise TrainingError for a value that cannot be trained on, whatever its size."""
    if found := _called(value, _LEAVES):
        name = name_of(part, path)
        raise TrainingError(f"input_fn: {gives} {name!r} as {found[0]}", fix=found[1])


def as_array(part: str, path: tuple[Any, ...], value: Any) -> Any:
    """One value of an answer as an array of numbers or texts, with 32 bits where NumPy's default has 64.

    Raises TrainingError.
    """
    import numpy

    refuse(part, path, value)
    name = name_of(part, path)
    try:
        array = numpy.asarray(value)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise _of(name, "lists of different lengths", "Fill them up: keras.utils.pad_sequences(lists).") from error
    if array.dtype == object:
        raise _of(name, _objects(value, array), "Turn it into numbers: codes of categories, astype('float32').")
    if found := _KINDS.get(array.dtype.kind):
        raise _of(name, *found)
    if not array.ndim:
        raise _of(name, f"a single value of the type {array.dtype}", "Give an array with an entry for each example.")
    return array.astype(numpy.float32) if array.dtype == numpy.float64 else array


def checked_lengths(arrays: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise TrainingError unless all arrays have an entry for each example, and there is one example."""
    labels = next(key for key in arrays if key.startswith("label"))
    for key, array in arrays.items():
        if len(array) != len(arrays[labels]):
            raise TrainingError(
                f"input_fn gave {names[key]!r} with the shape {array.shape} and labels with {arrays[labels].shape}",
                fix="Every array needs one entry for each example.",
            )
    if not len(arrays[labels]):
        raise TrainingError("input_fn gave arrays without an example", fix="Every array needs one entry at least.")


def _of(name: str, what: str, fix: str) -> TrainingError:
    return TrainingError(f"input_fn: it gives {name!r} as {what}", fix=fix)


def _called(value: Any, table: tuple[tuple[str, str, str], ...]) -> tuple[str, str] | None:
    """What the table says of a value, by the name of its class: these modules are not imported for it."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
    if "tensorflow.python.framework.tensor.Tensor" in names and hasattr(value, "numpy"):
        return None  # it was computed already
    return next(((called, fix) for name, called, fix in table if name in names), None)


def _objects(value: Any, array: Any) -> str:
    """An array of Python's objects, in words; of a DataFrame, its first column that is no numbers."""
    for column, kind in getattr(value, "dtypes", {}).items() if getattr(value, "ndim", 0) == 2 else ():
        if getattr(kind, "kind", "O") not in "biuf":
            return f"a table whose column {column!r} has the type {kind}"
    kinds = sorted({type(each).__name__ for each in array.ravel()[:1000].tolist()})
    return f"an array of the type object (of {', '.join(kinds[:3]) or 'nothing'})"
