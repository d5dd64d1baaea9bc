"""From texts to texts: what a trained model writes, token by token, each time the likeliest one, or by beam search.

Tensor2Tensor's own encoders turn texts into token numbers and back, and its own inference writes: a model of texts
with inputs answers them (a translation), a language model goes on from them, a classifier names the class.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ....errors import TrainingError
from ..trainable import ServingGraph
from . import bridges
from .registry import Definition

_AT_ONCE = 16
"""Texts; a model may keep the logits of all their tokens."""
_LONGER = 100
"""How many tokens longer than the longest input an answer may be; as in Tensor2Tensor."""


class Decoder:
    """Encodes, writes and decodes for one definition, whose vocabularies must be there. Raises TrainingError."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._hparams = definition.hparams.problem_hparams
        self._language_model = "inputs" not in self._hparams.modality
        self.batch = 1 if self._language_model else _AT_ONCE
        """Of a language model one, because it would take padding for a part of the text."""

    def encode(self, feature: str, texts: Sequence[str]) -> Any:
        """The token numbers of `texts`, filled up with zeros to the longest, with an end where a model has inputs."""
        import numpy
        from tensor2tensor.data_generators.text_encoder import EOS_ID

        name = self._modelled(feature)
        encoder, size = self._encoder(name), self._hparams.vocab_size[name]
        rows: list[list[int]] = []
        for text in texts:
            try:
                tokens = list(encoder.encode(str(text)))
            except (KeyError, ValueError) as error:
                raise TrainingError(f"{str(text)!r} is not in the vocabulary of {feature}: {error}") from error
            if any(not 0 <= token < size for token in tokens):
                raise TrainingError(f"{str(text)!r} is not in the vocabulary of {feature}")
            if not tokens and self._language_model:
                raise TrainingError("a language model goes on from a text, and one of them is empty")
            rows.append(tokens if self._language_model else [*tokens, EOS_ID])
        array = numpy.zeros((len(rows), max(map(len, rows))), numpy.int64)
        for row, tokens in zip(array, rows, strict=True):
            row[: len(tokens)] = tokens
        return array

    def graph(self, given: Collection[str], beam_size: int = 1, alpha: float = 0.0) -> ServingGraph:
        """Build what answers the features `given` with token numbers, in the default graph."""
        from tensor2tensor.utils import hparams_lib

        tf = bridges.cross()

        needed = {name for name in self._hparams.modality if name != "targets"} or {"inputs"}
        if strange := sorted(set(given) ^ needed):
            what = f"the texts of {strange[0]!r} are {'missing' if strange[0] in needed else 'not wanted'}"
            raise TrainingError(what, where="inputs", fix=f"Needed: {', '.join(sorted(needed))}.")
        for name in ("targets", *given):
            self._encoder(self._modelled(name))
        hparams = hparams_lib.copy_hparams(self._definition.hparams)
        if hparams.get("prepend_mode", "none") != "none":
            raise TrainingError("a model that prepends inputs to targets is not decoded", where="prepend_mode")
        inputs = {name: tf.placeholder(tf.int32, [None, None], name=f"feature_{name}") for name in sorted(given)}
        features = {name: each[:, :, None, None] for name, each in inputs.items()}
        with bridges.autograph_off():
            model = self._definition.model(hparams, tf.estimator.ModeKeys.PREDICT)
            answer = model.infer(features, decode_length=_LONGER, beam_size=beam_size, alpha=alpha)
        tokens = answer["outputs"]
        return ServingGraph(inputs, {"tokens": tf.reshape(tokens, [tf.shape(tokens)[0], -1])})

    def decode(self, tokens: Any) -> str:
        """The text of one answer."""
        from tensor2tensor.data_generators.text_encoder import EOS_ID

        found = [int(token) for token in tokens]
        if EOS_ID in found and not self._classifier:
            found = found[: found.index(EOS_ID)]
        return str(self._encoder("targets").decode(found))

    @property
    def _classifier(self) -> bool:
        return self._hparams.modality["targets"] == "class_label"

    def _modelled(self, feature: str) -> str:
        """What a language model is given is the beginning of its targets."""
        return "targets" if self._language_model and feature == "inputs" else feature

    def _encoder(self, feature: str) -> Any:
        modality, encoder = self._hparams.modality.get(feature), self._hparams.vocabulary.get(feature)
        text = str(modality).startswith("symbol") or (feature == "targets" and self._classifier)
        if encoder is None or not text:
            raise TrainingError(f"{self._definition.problem.name} has no texts as {feature}")
        return encoder
