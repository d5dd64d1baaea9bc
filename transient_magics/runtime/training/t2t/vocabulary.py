"""A vocabulary of the size that a problem declares, to count its model before its data are made.

Tensor2Tensor makes the vocabulary of most text problems together with their data. What a model computes depends on the
vocabulary's size alone, which these problems declare (`approx_vocab_size`), and come near to when they make it.
"""

from __future__ import annotations

from typing import Any


def assume(problem: Any) -> int:
    """Give a text problem a vocabulary without words and return its size; 0 for a problem that declares no size."""
    from tensor2tensor.data_generators import text_encoder, text_problems

    if not isinstance(problem, text_problems.Text2TextProblem):
        return 0
    if problem.vocab_type != text_problems.VocabType.SUBWORD:
        return 0

    class Assumed(text_encoder.TextEncoder):
        """Nothing but a size."""

        @property
        def vocab_size(self) -> int:
            return int(problem.approx_vocab_size)

    def vocabulary(data_dir: Any, tmp_dir: Any, force_get: bool = False) -> Assumed:
        return Assumed()

    problem.get_or_create_vocab = vocabulary
    return int(problem.approx_vocab_size)
