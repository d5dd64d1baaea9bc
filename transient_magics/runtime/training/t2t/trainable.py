"""A model, an hparams set and a problem of Tensor2Tensor's registry, as a run trains them.

AutoGraph is off wherever something is built: see bridges.autograph_off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ....protocol.run import RunSpec
from ...folder import RunFolder
from ..trainable import Drawn, EvaluationGraph, Objective, Pipeline, ServingGraph
from . import data, graph, registry
from .bridges import autograph_off


class RegisteredModel:
    """The Trainable that a run names."""

    @autograph_off()
    def __init__(self, folder: RunFolder, spec: RunSpec, directory: str) -> None:
        """Run the cell and find what the run names. Raises CellError or DeclarationError."""
        self._definition = registry.define(folder, spec, directory)
        self._directory = directory
        self._threads = spec.prep_threads or (0 if spec.reads_records else data.AS_MANY_AS_CORES)

    @property
    def batch(self) -> int:
        """The hparams' batch size; of most text problems in tokens."""
        return int(self._definition.hparams.batch_size)

    @autograph_off()
    def prepare(self) -> None:
        """Give the hparams the problem's own (vocabulary sizes, modalities). Needs the vocabulary
        of text problems.
        """
        graph.prepare(self._definition)

    @autograph_off()
    def assume_vocabulary(self) -> int:
        """Use a vocabulary without words and return its size; 0 for a problem that declares no
        size.
        """
        return data.assume_vocabulary(self._definition.problem)

    @property
    def counts_tokens(self) -> bool:
        """Whether the mini-batch is counted in tokens, not in examples."""
        return bool(self._definition.problem.batch_size_means_tokens)

    def fingerprint(self) -> dict[str, str]:
        """Return nothing: all processes read the same files."""
        return {}

    def has_records(self) -> bool:
        """Whether the problem's training files are in the directory (which may be a bucket)."""
        return data.has_records(self._definition, self._directory)

    @autograph_off()
    def generate(self, directory: str, temporary: str) -> None:
        """Run the problem's own generate_data into `directory`."""
        data.generate(self._definition, directory, temporary)

    @autograph_off()
    def record_files(self) -> Sequence[Path]:
        """The training files, of a problem whose records may be read one by one in any order."""
        return data.record_files(self._definition, self._directory)

    @autograph_off()
    def training_pipeline(self) -> Pipeline:
        """Training examples; of text problems, batches as T2T makes them."""
        return data.training_pipeline(self._definition, self._directory, self._threads)

    @autograph_off()
    def evaluation_pipeline(self, drawn: Drawn | None = None) -> Pipeline:
        """The dev split once, in batches. No part of it is ever drawn."""
        return data.evaluation_pipeline(self._definition, self._directory)

    @autograph_off()
    def placeholders(self) -> dict[str, Any]:
        """Placeholders shaped like a batch of the problem's training features."""
        return data.placeholders(self._definition)

    @autograph_off()
    def objective(self, features: Mapping[str, Any], divisor: Any) -> Objective:
        """The model's loss, and T2T's optimizer."""
        return graph.objective(self._definition, features, divisor)

    @autograph_off()
    def evaluation_graph(self, features: Mapping[str, Any]) -> EvaluationGraph:
        """The problem's own metrics, by their short names."""
        return graph.evaluation_graph(self._definition, features)

    @autograph_off()
    def serving_graph(self, given: Collection[str] = ()) -> ServingGraph:
        """Class scores of a classifier, logits of any other model."""
        return graph.serving_graph(self._definition, given)

    def texts(self) -> graph.Decoder:
        """Texts in and out by the problem's own encoders."""
        return graph.Decoder(self._definition)
