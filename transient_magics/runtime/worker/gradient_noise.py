"""How much of a worker's gradient is noise: what the planner needs to tell how steps depend on the mini-batch.

With G the gradient of the whole data and Sigma the covariance of one example's, a mini-batch of b examples has
E|g|^2 = |G|^2 + tr(Sigma) / b. Squared norms at two sizes tell both parts, and their ratio tr(Sigma) / |G|^2 is the
noise scale, in examples (S. McCandlish, J. Kaplan, D. Amodei et al., "An empirical model of large-batch training",
arXiv 1812.06162, appendix A.1). Scavenger (S. Tyagi, P. Sharma, CCGrid 2023, arXiv 2303.06659) takes the norms of K
workers' gradients and of their mean, which only synchronous training has.

Here one worker is all K: now and then it computes the gradients of COUNT mini-batches that nobody applies, and takes
the squared norm of each, and of their mean. That is the same estimate with K = COUNT, for synchronous and asynchronous
training alike, also with a single worker. The gradients that it does apply would not do: the next one is computed after
the last one's step, which has turned its noise around, so their product is too small by the learning rate times
g' H g (H: the Hessian); once a run fluctuates around its minimum it is even negative.

All gradients of an estimate are of the same variables, which the worker reads once and keeps until the last of them,
while steps pass between them. Those steps, its own and other workers', would turn G away: at a learning rate of half
the inverse of the largest curvature, with 8 workers, the mean of eight successive gradients has a fifth of the squared
norm. Rows of embeddings are the exception: which of them a mini-batch needs is seen with it, so they are read for each
gradient, and steps on them count.

Each gradient takes a forward and a backward pass and a mini-batch of examples that no step has had. An estimate begins
only when it fits into a share of the worker's time so far, by what a step takes and all estimates took; at other times
nothing is done, for the graph of a step is as it was. Nothing is sent to the parameter servers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..training.graph.worker import WorkerGraph

COUNT = 8
"""Mini-batches of one estimate: the noise of |G|^2 falls with the number of their pairs, their cost with their own."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """An estimate. `squared`: the mean squared norm of a mini-batch's gradient, signal + noise / batch.

    `signal` is |G|^2 (below zero at times, for it has no bias), `noise` tr(Sigma), both as they are: averages of many
    are taken before their ratio is.
    """

    squared: float
    signal: float
    noise: float


def estimate(local: float, aggregated: float, batch: float, count: int) -> Gradients:
    """From the mean of `count` gradients' squared norms, and the squared norm of their mean.

    `batch`: examples of each, the harmonic mean where they differ, because noise goes with 1 / batch.
    """
    signal = (count * aggregated - local) / (count - 1)
    noise = (local - aggregated) * batch * count / (count - 1)
    return Gradients(local, signal, noise)


class NoiseProbe:
    """Measures within `share` of the worker's time. A share of 0 is never, and of 1 beside every step."""

    def __init__(self, built: WorkerGraph, share: float) -> None:
        self._cleared, self._variables = built.cleared, built.variables
        self._fetches = [built.squared, built.summed, built.examples]
        self._share = share
        self._began = 0.0
        self.spent = 0.0
        """Seconds that it has taken so far."""
        self._cost = 0.0
        self._session: Any = None
        self._values: dict[Any, Any] = {}
        """The variables of the present estimate."""
        self._norms: list[float] = []
        self._shares: list[float] = []

    def begin(self, seconds: float) -> None:
        """The first step is done and took so long, most of which TensorFlow prepares its graph."""
        self._began, self._cost = time.monotonic(), seconds

    def due(self, usual: float, others: int = 0) -> bool:
        """Whether to compute the next gradient now. `usual`: seconds of a step; `others` wait while this measures."""
        if not self._began or not self._share:
            return False
        if self._norms or self._share == 1:
            return True
        left = self._share / (1 + others) * (time.monotonic() - self._began) - self.spent
        return left >= self._cost + COUNT * usual

    def look(self, session: Any, feeds: Mapping[Any, Any]) -> Gradients | None:
        """Compute one gradient, the first of an estimate on the variables as they are now, the others on the same.

        Returns the estimate if it was the last one that it takes. `feeds`: what the mini-batch is fed with.
        """
        began = time.monotonic()
        if session is not self._session or not self._norms:
            _, values = session.run([self._cleared, list(self._variables)])
            self._values = dict(zip(self._variables, values, strict=True))
            self._session, self._norms, self._shares = session, [], []
        squared, summed, examples = session.run(self._fetches, {**feeds, **self._values})
        self._norms.append(float(squared))
        self._shares.append(1 / max(int(examples), 1))
        self.spent += time.monotonic() - began
        self._cost = 0.0
        if len(self._norms) < COUNT:
            return None
        local, batch = sum(self._norms) / COUNT, COUNT / sum(self._shares)
        self._norms, self._values = [], {}
        found = estimate(local, float(summed) / COUNT**2, batch, COUNT)
        return found if math.isfinite(found.noise) and math.isfinite(found.signal) else None

    def give_up(self) -> None:
        """Measure no more."""
        self._share, self._norms, self._values = 0.0, [], {}
