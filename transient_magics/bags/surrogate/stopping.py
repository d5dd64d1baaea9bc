"""When a surrogate is good enough: judged by results that it predicted before it learnt from them.

Such judgements are honest and cost nothing (Dawid's prequential principle, 1984, doi
10.2307/2981683); a hold-out that is used again and again is neither. On two batches in a row the 90
% intervals hold 80 to 97 % of the results, the median residual is within its own standard
deviation, and the largest standard deviation anywhere is within tolerance.

`Speedup` is what a surrogate is worth: how much sooner answers come, and from how many look-ups on.
Of N_train results that it was learnt from and N_lookup questions, against computing all of them one
after the other (Fox and Jadhao, "Learning Everywhere", arXiv 1902.10810; Sharma and Jadhao, arXiv
2111.06466):

    S = T_seq * (N_lookup + N_train) / (T_lookup * N_lookup + (T_train + T_learn) * N_train)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ...protocol.bag.events import BagLearnt
from ...protocol.bag.spec import ERROR

LEAST_JUDGED = 20
"""Results of a judged batch: of fewer, 97 % and 100 % are the same."""
IN_A_ROW = 2
COVERED = (0.80, 0.97)
_NINETY = 1.6448536269514722  # standard deviations to each side that hold 90 %


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of so many results: by output the share inside the 90 % intervals, and the median residual in
    its own standard deviations.
    """

    judged: int
    coverage: Mapping[str, float]
    residual: Mapping[str, float]


def judge(
    predicted: Sequence[Mapping[str, tuple[float, float]]], returned: Sequence[Mapping[str, float]]
) -> Judgement:
    """Judge predictions (mean and standard deviation by output) by what was returned, each with its
    own error.
    """
    told = [(before, after) for before, after in zip(predicted, returned, strict=True) if before]
    coverage = {}
    residual = {}
    for output in told[0][0] if told else ():
        scores = [
            abs(after[output] - mean)
            / max((sd**2 + after.get(output + ERROR, 0.0) ** 2) ** 0.5, 1e-300)
            for before, after in told
            for mean, sd in [before[output]]
        ]
        coverage[output] = sum(score <= _NINETY for score in scores) / len(scores)
        residual[output] = min(median(scores), 1e18)
    return Judgement(len(told), coverage, residual)


def good_enough(learnt: Sequence[BagLearnt], tolerances: Mapping[str, float]) -> bool:
    """Whether the last two judged batches say so, of all outputs that have a tolerance."""
    judged = [each for each in learnt if each.judged >= LEAST_JUDGED][-IN_A_ROW:]
    return (
        bool(tolerances)
        and len(judged) == IN_A_ROW
        and all(_passes(each, tolerances) for each in judged)
    )


def _passes(learnt: BagLearnt, tolerances: Mapping[str, float]) -> bool:
    return all(
        COVERED[0] <= learnt.coverage.get(output, 0.0) <= COVERED[1]
        and learnt.residual.get(output, 2.0) <= 1
        and learnt.largest.get(output, float("inf")) <= tolerance
        for output, tolerance in tolerances.items()
    )


@dataclass(frozen=True, slots=True)
class Speedup:
    """Seconds: of one simulation by itself (`sequential`), of one look-up, of one result for the
    training (`train`: the bag's whole time over its results, what was lost in it counted) and of
    learning, over the same results (`learn`).
    """

    sequential: float
    lookup: float
    train: float
    learn: float
    results: int

    def at(self, lookups: float) -> float:
        """The effective speed-up S with so many look-ups."""
        spent = self.lookup * lookups + (self.train + self.learn) * self.results
        if spent > 0:
            return self.sequential * (lookups + self.results) / spent
        return math.inf

    @property
    def limit(self) -> float:
        """What it tends to with ever more look-ups."""
        if self.lookup > 0:
            return self.sequential / self.lookup
        return math.inf

    @property
    def break_even(self) -> float:
        """From how many look-ups on it pays; 0: from the first; infinite: never."""
        more = self.results * (self.train + self.learn - self.sequential)
        if more <= 0:
            return 0.0
        if self.sequential > self.lookup:
            return more / (self.sequential - self.lookup)
        return math.inf

    def __str__(self) -> str:
        if math.isfinite(self.break_even):
            pays = f"{self.break_even:,.0f}"
        else:
            pays = "no number of"
        return f"{self.at(self.results):.3g} times as fast with as many look-ups as results; it pays from {pays} on"

    __repr__ = __str__
