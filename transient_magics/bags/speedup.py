"""What a surrogate is worth: how much sooner answers come, and from how many look-ups on.

Of N_train results that it was learnt from and N_lookup questions, against computing all of them one after the other
(Fox and Jadhao, "Learning Everywhere", arXiv 1902.10810; Sharma and Jadhao, arXiv 2111.06466):

    S = T_seq * (N_lookup + N_train) / (T_lookup * N_lookup + (T_train + T_learn) * N_train)
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Speedup:
    """Seconds: of one simulation by itself (`sequential`), of one look-up, of one result for the training (`train`: the
    bag's whole time over its results, what was lost in it counted) and of learning, over the same results (`learn`)."""

    sequential: float
    lookup: float
    train: float
    learn: float
    results: int

    def at(self, lookups: float) -> float:
        """The effective speed-up S with so many look-ups."""
        spent = self.lookup * lookups + (self.train + self.learn) * self.results
        return self.sequential * (lookups + self.results) / spent if spent > 0 else math.inf

    @property
    def limit(self) -> float:
        """What it tends to with ever more look-ups."""
        return self.sequential / self.lookup if self.lookup > 0 else math.inf

    @property
    def break_even(self) -> float:
        """From how many look-ups on it pays; 0: from the first; infinite: never."""
        more = self.results * (self.train + self.learn - self.sequential)
        if more <= 0:
            return 0.0
        return more / (self.sequential - self.lookup) if self.sequential > self.lookup else math.inf

    def __str__(self) -> str:
        pays = f"{self.break_even:,.0f}" if math.isfinite(self.break_even) else "no number of"
        return f"{self.at(self.results):.3g} times as fast with as many look-ups as results; it pays from {pays} on"

    __repr__ = __str__
