"""What a run trains, behind one interface: a model of Tensor2Tensor's registry, or what the cell
itself defines.

Chief, workers, evaluation and predictions ask a Trainable for its part of their graphs (examples,
loss and gradients, metrics, outputs) and know nothing else about it. Which one it is follows from
the declaration: with the name of a model it is Tensor2Tensor's (t2t/), without one the cell's own
(user_model/): loading.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Pairs = Sequence[tuple[Any, Any]]
"""Gradients with their variables."""


@dataclass(frozen=True)
class Pipeline:
    """A tf.data dataset of feature dictionaries; `batched` if each element is a whole batch
    already.

    `feeds` are for the initializer of its iterator. `directory`: all that it reads are the files
    there; empty where it may be something else. `files`: of records in blocks, the names of the
    files of one chunk, to be fed when reading begins; the dataset ends with them. `grouped`: its
    elements are mini-batches out of which single examples are taken. `note`: what its user should
    know before the first step. `elements`: how many an evaluation has (-1: without end;
    -2: not known), which are `single` examples or batches.
    """

    dataset: Any
    types: Mapping[str, Any]
    shapes: Mapping[str, Any]
    batched: bool
    feeds: Mapping[Any, Any] = field(default_factory=dict)
    directory: str = ""
    files: Any = None
    grouped: bool = False
    note: str = ""
    elements: int = -2
    single: bool = False


@dataclass(frozen=True)
class Drawn:
    """A part of the dev split: `many` of its first `of` elements, drawn from `seed`."""

    many: int
    of: int
    seed: int = 0


@dataclass(frozen=True)
class Objective:
    """A loss, its gradients, and the optimizer that applies what `finished` (noise, clipping) makes
    of them.

    `weight`, a scalar, is of how many examples the loss is the mean: of text, of tokens that are no
    padding. `slower(by)` is the same optimizer with its learning rate divided by a number.
    `disturbances()` builds what is to be done to the variables once in every step that is applied,
    after it.
    """

    loss: Any
    pairs: Pairs
    optimizer: Any
    finished: Callable[[Pairs], Pairs]
    slower: Callable[[Any], Any]
    weight: Any
    disturbances: Callable[[], Sequence[Any]] = tuple


@dataclass(frozen=True)
class EvaluationGraph:
    """`updates` sees one more batch; `values` are the metrics by their names, `loss` the batch's
    mean loss.
    """

    values: Mapping[str, Any]
    updates: Any
    loss: Any
    examples: Any


@dataclass(frozen=True)
class ServingGraph:
    """Placeholders by the feature's name, their first dimension the batch, and what comes out by
    name.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


class Texts(Protocol):
    """A model that takes and gives texts."""

    batch: int
    """How many are answered at once."""

    def encode(self, feature: str, texts: Sequence[str]) -> Any:
        """The token numbers of a feature's texts, an array with a row for each, filled up with
        zeros at their ends.
        """
        ...

    def graph(self, given: Collection[str], beam_size: int = 1, alpha: float = 0.0) -> ServingGraph:
        """What answers the features `given`: `tokens`, with a row for each text.

        `beam_size`: of how many beginnings the best is kept; 1 takes the likeliest token each time.
        A larger `alpha` prefers longer texts.
        """
        ...

    def decode(self, tokens: Any) -> str:
        """The text of one row of an answer."""
        ...


class Trainable(Protocol):
    """What a run trains. Whatever it builds goes into the default graph."""

    @property
    def batch(self) -> int:
        """The declared mini-batch."""
        ...

    def prepare(self) -> None:
        """Complete the definition from the data's vocabulary; before anything is built."""
        ...

    def has_records(self) -> bool:
        """Whether the training data are where they should be."""
        ...

    def generate(self, directory: str, temporary: str) -> None:
        """Make the files of the data that all workers share."""
        ...

    def record_files(self) -> Sequence[Path]:
        """The training files, where they hold records that may be read one by one in any order;
        else none.
        """
        ...

    def training_pipeline(self) -> Pipeline:
        """Training examples, in an order that is drawn anew whenever reading begins; endless, or of
        one chunk.
        """
        ...

    def evaluation_pipeline(self, drawn: Drawn | None = None) -> Pipeline:
        """The dev split once, in batches, or the part of it that is `drawn` (of a model of the
        cell's own).
        """
        ...

    def placeholders(self) -> dict[str, Any]:
        """Placeholders shaped like a batch of training features. Needs no data that `generate`
        makes.
        """
        ...

    def objective(self, features: Mapping[str, Any], divisor: Any) -> Objective:
        """The loss on a batch, and its gradients; `divisor` is what the learning rate is divided
        by, a scalar.
        """
        ...

    def evaluation_graph(self, features: Mapping[str, Any]) -> EvaluationGraph:
        """The metrics on a batch of the dev split."""
        ...

    def serving_graph(self, given: Collection[str] = ()) -> ServingGraph:
        """The model on placeholders for the features that it needs, and for those `given`."""
        ...

    def texts(self) -> Texts:
        """The same model with texts in and out. Raises TrainingError where it has none."""
        ...

    def fingerprint(self) -> dict[str, str]:
        """Return what the data that this process has read are like (reproducibility.py); empty where
        they are files.
        """
        ...
