"""How many examples a model needs to get as good as wanted: statistical efficiency, as a function of the batch alone.

Scavenger (S. Tyagi, P. Sharma, CCGrid 2023, arXiv 2303.06659) fits epochs, e = e* + theta gamma, to the
normalised noise gamma of gradients. Theirs depends on the number of workers; from the same norms the noise scale N
(S. McCandlish et al., arXiv 1812.06162) does not, and of a global batch of B examples gamma is then the share of noise
in the squared norm of its gradient,

    gamma(B) = N / (N + B)

which is what Scavenger's comes to for many small workers. N is what runs measured on their way to the target
(`runtime.noise`), B what all workers of a run take together for one step of each. The line is over examples, which are
epochs times the size of the data. The sign of its slope is the job's own and is fitted; below an R^2 of 0.8, with fewer
than three batches, or outside of them, no other batch is predicted. Without measured noise the line is over the
mini-batch itself, and how many workers there are is not reckoned with.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import DeclarationError, PlanError
from .measured import Record

LEAST_R2 = 0.8
_ALIKE = 0.1
"""How far apart, relatively, two batches may be that count as one: a run's workers come and go."""
_TARGET = re.compile(r"\s*(?P<metric>[A-Za-z_][\w/-]*)\s*(?P<sign>>=|<=)\s*(?P<value>[-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*")
_SIGNS = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Target:
    """How good a model is to get: `accuracy>=0.9`."""

    metric: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """Raises DeclarationError that shows how it is written."""
        match = _TARGET.fullmatch(text)
        if not match:
            raise DeclarationError(f"'{text}' is no target", where="--target", fix="For example: accuracy>=0.9.")
        return cls(match["metric"], match["sign"], float(match["value"]))

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.value:g}"

    def reached(self, evaluations: Iterable[tuple[int, Mapping[str, float]]]) -> float | None:
        """At which step a run got there, evenly between two evaluations; None where it never did."""
        before: tuple[float, float] | None = None
        for step, metrics in evaluations:
            if (value := metrics.get(self.metric)) is None:
                continue
            if _SIGNS[self.sign](value, self.value):
                if before is None or value == before[1]:
                    return float(step)
                part = (self.value - before[1]) / (value - before[1])
                return before[0] + part * (step - before[0])
            before = (float(step), value)
        return None


@dataclass(frozen=True, slots=True)
class Need:
    """`examples` to the target with this batch, its relative `error`, and a sentence on where it comes from."""

    examples: float
    error: float
    source: str


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """The noise scale in `examples`, its relative standard `error`, and from how many `estimates` it comes."""

    examples: float
    error: float
    estimates: int

    @classmethod
    def of(cls, gradients: Sequence[tuple[int, float, float]]) -> NoiseScale | None:
        """The ratio of the means of noise and signal, which both are without bias.

        None where the signal is not above twice its own standard error: it drowns in the noise.
        """
        if len(gradients) < 3:
            return None
        _, signal, noise = np.array(gradients, dtype=float).T
        root = len(gradients) ** 0.5
        if signal.mean() <= 2 * signal.std(ddof=1) / root or noise.mean() <= 0:
            return None
        ratio = float(noise.mean() / signal.mean())
        error = float((noise - ratio * signal).std(ddof=1) / root / noise.mean())
        return cls(ratio, error, len(gradients))

    def share(self, batch: float) -> float:
        """The share of noise in the squared norm of the gradient of so many examples, 0 to 1."""
        return self.examples / (self.examples + batch)

    def __str__(self) -> str:
        return f"noise scale {self.examples:,.3g} examples ± {self.error:.0%}"


@dataclass(frozen=True, slots=True)
class ExamplesModel:
    """Examples to the target as a line over the share of noise (without a noise scale: over the batch).

    `r2` is the R^2 of its fit, `error` the relative standard deviation of what it leaves.
    """

    at_zero: float
    slope: float
    r2: float
    smallest: int
    largest: int
    error: float = 0.1
    noise: NoiseScale | None = None

    @classmethod
    def fit(cls, batches: Sequence[float], examples: Sequence[float], noise: NoiseScale | None = None) -> ExamplesModel:
        """The least squares line. Raises PlanError for fewer than three different batches."""
        if len(different(batches)) < 3:
            raise PlanError(f"{len(different(batches))} mini-batch sizes do not show how the steps depend on them",
                            fix="Three are needed, or plan with a mini-batch that was run.")  # fmt: skip
        x = np.array([noise.share(each) if noise else each for each in batches], dtype=float)
        y = np.array(examples, dtype=float)
        slope, at_zero = np.polyfit(x, y, 1)
        left, all_of_it = float(((y - at_zero - slope * x) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
        r2 = 1 - left / all_of_it if all_of_it > 0 else 1.0
        error = (left / max(len(y) - 2, 1)) ** 0.5 / float(y.mean())
        return cls(float(at_zero), float(slope), r2, round(min(batches)), round(max(batches)), error, noise)

    def predict(self, batch: float) -> float:
        """Raises PlanError below an R^2 of 0.8, and outside of the batches that were run."""
        what, kind = ("noise of the gradients", "global batch") if self.noise else ("mini-batch", "mini-batch")
        if self.r2 < LEAST_R2:
            raise PlanError(
                f"The {what} explains too little of how many examples the target takes (R² {self.r2:.2f}, {LEAST_R2} "
                "needed)", fix=f"Plan with a {kind} that was run, with --train-steps, or let more runs get there.",
            )  # fmt: skip
        if not (1 - _ALIKE) * self.smallest <= batch <= (1 + _ALIKE) * self.largest:
            raise PlanError(f"A {kind} of {batch:g} lies outside of what was run ({self.smallest} to {self.largest})",
                            fix="Plan within that.")  # fmt: skip
        share = self.noise.share(batch) if self.noise else batch
        return self.at_zero + self.slope * share


class TargetSteps:
    """How many steps a model takes to a target, by how many workers make them, as runs that got there tell.

    `depends_on_workers`: enough was measured to tell for each number of workers; else all take the same.
    """

    def __init__(self, records: Iterable[Record], target: Target, batch: int) -> None:
        """`batch`: the mini-batch that is planned with. Raises PlanError where no run got there."""
        reached = [(each, target.reached(each.evaluations)) for each in records if each.batch_size]
        self._found = [(each, step, step * each.batch_size) for each, step in reached if step is not None]
        self._target, self._batch = target, batch
        if not self._found:
            raise PlanError(
                f"No run is known that got to {target}",
                fix=f"Let one get there with --eval-every N, so that {target.metric} is known on the way.",
            )
        measured = [each for record, step, _ in self._found for each in record.gradients if each[0] <= step]
        self.noise = NoiseScale.of(measured)
        self._estimates = len(measured)
        self._whole = [(each.global_batch, examples) for each, _, examples in self._found if each.global_batch]
        self.batches = different([batch for batch, _ in self._whole])
        self.depends_on_workers = self.noise is not None and len(self.batches) >= 3
        self._model: ExamplesModel | None = None
        if self.depends_on_workers:
            sizes, needed = zip(*self._whole, strict=True)
            self._model = ExamplesModel.fit(sizes, needed, self.noise)

    def need(self, workers: int) -> Need:
        """The examples that so many workers need. Raises PlanError where that cannot be told."""
        model = self._model
        if model is None:
            return self._by_mini_batch()
        batch = workers * self._batch
        alike = [examples for size, examples in self._whole if abs(size / batch - 1) <= _ALIKE]
        if alike:
            return self._seen(alike, f"a global batch of {batch}")
        return Need(model.predict(batch), model.error, self._line)

    def steps(self, workers: int) -> int:
        """The same as steps, each of one worker's mini-batch."""
        return max(1, round(self.need(workers).examples / self._batch))

    @property
    def error(self) -> float:
        """How far off, relatively, the steps may be, whoever makes them."""
        return self._model.error if self._model else self._by_mini_batch().error

    def words(self, workers: int | None = None) -> str:
        """Where the steps of so many workers come from, in a line; None: of several numbers of them."""
        if model := self._model:
            source = self.need(workers).source if workers else self._line
            said = f"{source} (global batches of {model.smallest} to {model.largest}, {self.noise}, R² {model.r2:.2f})"
        else:
            lacking = f"How many workers make them is not reckoned with: {self._lacking()}"
            said = f"{self._by_mini_batch().source}. {lacking}"
        return f"Steps to {self._target}: {said}."

    @property
    def _line(self) -> str:
        return f"a line over the noise of {len(self._whole)} runs' gradients"

    def _lacking(self) -> str:
        if not self._estimates:
            return "these runs did not measure the noise of their gradients"
        if self.noise is None:
            return f"{self._estimates} estimates of their gradients' noise are too few to tell its scale"
        sizes = ", ".join(f"{each:.0f}" for each in self.batches)
        return f"global batches of {sizes} got there, and three different ones are needed ({self.noise})"

    def _by_mini_batch(self) -> Need:
        sizes, examples = zip(*((each.batch_size, examples) for each, _, examples in self._found), strict=True)
        same = [needed for size, needed in zip(sizes, examples, strict=True) if size == self._batch]
        if same:
            return self._seen(same, f"a mini-batch of {self._batch}")
        model = ExamplesModel.fit(sizes, examples)
        return Need(model.predict(self._batch), model.error, f"a line over {len(sizes)} runs, R² {model.r2:.2f}")

    def _seen(self, examples: Sequence[float], what: str) -> Need:
        mean = float(np.mean(examples))
        spread = float(np.std(examples, ddof=1)) / mean if len(examples) > 1 else 0.1
        runs = f"{len(examples)} run{'' if len(examples) == 1 else 's'}"
        return Need(mean, spread, f"{runs} with {what} got there")


def different(batches: Iterable[float]) -> list[float]:
    """The batches, of those that are alike only the smallest."""
    found: list[float] = []
    for batch in sorted(batches):
        if not found or batch > (1 + _ALIKE) * found[-1]:
            found.append(batch)
    return found
