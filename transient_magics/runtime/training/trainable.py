"""The interface to a model: of Tensor2Tensor's registry (t2t/), or of the cell (user_model/).

Chief, workers, evaluation and predictions ask a Trainable for its part of their graphs: examples,
loss and gradients, metrics, outputs. They know nothing else about it. A declaration with the name
of a model trains one of Tensor2Tensor, any other one the cell's own (loading.py).
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
    """A tf.data dataset of feature dictionaries.

    Attributes
    ----------
    dataset, types, shapes
        The dataset, and the types and shapes of its elements by feature.
    batched
        Whether each element is a whole batch.
    feeds
        Feeds for the initializer of its iterator.
    directory
        The folder that has all files it reads; empty if it may read others.
    files
        For records in blocks, the names of the files of one chunk, fed when reading begins. The
        dataset ends with them.
    grouped
        Whether single examples are extracted from its elements, which are mini-batches.
    note
        A notice to the user before the first step.
    elements
        Elements of an evaluation: -1 if it is endless, -2 if the number is unknown.
    single
        Whether these elements are examples, not batches.
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
class Sample:
    """A part of the dev split: `size` of its first `total` elements, drawn from `seed`."""

    size: int
    total: int
    seed: int = 0


@dataclass(frozen=True)
class Objective:
    """A loss, its gradients, and the optimizer that applies them.

    Attributes
    ----------
    loss
        The loss, a scalar.
    pairs
        Its gradients with their variables.
    optimizer
        The optimizer.
    finished
        Function that adds noise to gradients and clips them before they are applied.
    slower
        Function of a number: the same optimizer with its learning rate divided by it.
    weight
        Number of examples over which the loss is a mean, a scalar; for text, tokens without
        padding.
    disturbances
        Function that builds operations on the variables, run once after each applied step.
    metrics
        What the mini-batch adds to the training metrics, a vector of sums; None without epochs.
    """

    loss: Any
    pairs: Pairs
    optimizer: Any
    finished: Callable[[Pairs], Pairs]
    slower: Callable[[Any], Any]
    weight: Any
    disturbances: Callable[[], Sequence[Any]] = tuple
    metrics: Any = None


@dataclass(frozen=True)
class EvaluationGraph:
    """The evaluation of one batch.

    Attributes
    ----------
    values
        The metrics by name.
    updates
        The operation that adds one batch to the metrics.
    loss
        The batch's mean loss.
    examples
        The number of examples in the batch.
    """

    values: Mapping[str, Any]
    updates: Any
    loss: Any
    examples: Any


@dataclass(frozen=True)
class ServingGraph:
    """The graph of predictions.

    Attributes
    ----------
    inputs
        Placeholders by feature; their first dimension is the batch.
    outputs
        Outputs by name.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


class Texts(Protocol):
    """The interface to a model that takes and returns texts."""

    batch: int
    """Number of texts per batch."""

    def encode(self, feature: str, texts: Sequence[str]) -> Any:
        """Return the token numbers of texts, one row per text, padded with zeros at the end."""
        ...

    def graph(self, given: Collection[str], beam_size: int = 1, alpha: float = 0.0) -> ServingGraph:
        """Build the graph that answers the features `given` with `tokens`, one row per text.

        Parameters
        ----------
        given
            Names of the features.
        beam_size
            Number of partial answers that beam search keeps; 1 always takes the most likely token.
        alpha
            Preference for longer texts in beam search; 0 for none.
        """
        ...

    def decode(self, tokens: Any) -> str:
        """Return the text of one row of an answer."""
        ...


class Trainable(Protocol):
    """The interface to what a run trains. All builders add to the default graph."""

    @property
    def batch(self) -> int:
        """The declared mini-batch, in examples; for most text problems in tokens."""
        ...

    def prepare(self) -> None:
        """Complete the definition from the data's vocabulary, before anything is built."""
        ...

    def has_records(self) -> bool:
        """Return whether the training data are in their place."""
        ...

    def generate(self, directory: str, temporary: str) -> None:
        """Create the data files that all workers share."""
        ...

    def keep_vocabularies(self, checkpoints: Path) -> None:
        """Write what else a checkpoint of the model needs into the folder of the checkpoints."""
        ...

    def record_files(self) -> Sequence[Path]:
        """Return the training files if their records may be read in any order; else none."""
        ...

    def training_pipeline(self) -> Pipeline:
        """Return training examples, in a new random order per iterator.

        The pipeline is endless, or has one chunk of records.
        """
        ...

    def evaluation_pipeline(self, drawn: Sample | None = None) -> Pipeline:
        """Return the dev split once, in batches.

        `drawn` selects a part of it, for models that a cell defines.
        """
        ...

    def placeholders(self) -> dict[str, Any]:
        """Return placeholders in the shape of a batch of training features.

        Does not need the data that `generate` creates.
        """
        ...

    def objective(self, features: Mapping[str, Any], divisor: Any) -> Objective:
        """Return the loss on a batch, with its gradients and optimizer.

        `divisor`, a scalar, divides the learning rate.
        """
        ...

    def evaluation_graph(self, features: Mapping[str, Any]) -> EvaluationGraph:
        """Return the metrics on a batch of the dev split."""
        ...

    def serving_graph(self, given: Collection[str] = ()) -> ServingGraph:
        """Build the model on placeholders for the features it needs, and for those `given`."""
        ...

    def texts(self) -> Texts:
        """Return the model with texts as input and output. Raises TrainingError if it has none."""
        ...

    def continued(self, step: int, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the checkpoint of `step` with which variables continue."""
        ...

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint of this process's data (reproducibility.py).

        Empty if the data are files.
        """
        ...
