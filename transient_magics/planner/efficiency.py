"""Statistical efficiency: how many examples a model needs to a target, by its batch.

Scavenger (S. Tyagi, P. Sharma, CCGrid 2023, arXiv 2303.06659) fits epochs, e = e* + theta gamma, to
the normalised noise gamma of gradients. Its gamma depends on the number of workers. The noise scale
N (S. McCandlish et al., arXiv 1812.06162), from the same norms, does not. For a global batch of B
examples, gamma is then the share of noise in the squared norm of the gradient,

    gamma(B) = N / (N + B)

which Scavenger's gamma approaches for many small workers. Runs measure N on their way to the target
(`runtime.worker.gradient_noise`). B is the examples that all workers of a run take together for one
step of each. N grows by orders of magnitude during training, because the gradient of the whole data
shrinks. So gamma is its mean over windows of the training.

The line is over examples, which are epochs times the size of the data. McCandlish's own law is a
line over the batch itself, E_min (1 + B / N'). The law with the smaller leave-one-out error is
used. The sign of the slope depends on the job and is fitted. Other batches are predicted only
inside the measured range, from at least three batches. The R^2 must be at least 0.8, and the slope
unlikely to be chance (p below 0.05). With three batches, a third of pure noise exceeds that R^2.
Without measured noise the line is over the mini-batch, and the number of workers has no effect.

A run that was evaluated without reaching the target by its last evaluation needs more examples than
it took. It counts with its expected value given that bound (a censored normal regression, Tobin
1958).

`Accuracy` is the accuracy of similar runs: the third axis beside hours and dollars, without any
extrapolation. Similar runs have the same mode, mini-batch and settings, the same mean number of
workers, and an evaluation after as many steps. Asynchronous workers cost accuracy by their number,
and so does a batch (Li et al., ICAC'19: 93.1 % with one worker, 88.8 % with eight). The interval
for one more run follows from the differences between these runs and from their number.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ..errors import DeclarationError, PlanError
from .run_records import Record
from .speeds.fitting import spread

LEAST_R2 = 0.8
MOST_CHANCE = 0.05
_LEAST_ESTIMATES = 3
_LEAST_IN_WINDOW = 6
_ENOUGH_FOR_SECOND = 12
_BY_CHANCE = 3.0
"""Largest difference between the two halves of a window, in standard deviations."""
_FAR = 5.0
"""Ratio beyond which the first estimates of |G|^2 are outliers."""
_USUAL_SPREAD = 0.1
"""Prior relative standard deviation of the examples that similar runs need.

For ICAC'19's runs it is 0.01 to 0.05 to a target behind a step of the learning rate, and 0.1 to
0.35 to other targets.
"""
_LINE_SPREAD = 0.17
_LINE_WEIGHT = 5.0
"""Prior of the relative deviation from a line over batches: `_LINE_SPREAD` and its weight.

It is the scaled inverse chi-squared distribution of a variance. The logarithm of its standard
deviation has the mean and the standard deviation of a uniform draw between the logarithms of 0.1
and 0.35. The weight is in degrees of freedom. A line is used only if it fits well, so residuals
alone would select runs that happened to be alike.
"""
_REWEIGHTED = 10
"""Rounds of reweighting: the weights are then stable to a thousandth."""
_ROUNDS = 50
_ANY_NUMBER = "these runs do not tell what other numbers of workers need"
_ALIKE = 0.1
"""Largest relative difference of two batches that count as one: workers come and go in a run."""
_TARGET = re.compile(
    r"\s*(?P<metric>[A-Za-z_][\w/-]*)\s*(?P<sign>>=|<=)\s*(?P<value>[-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*"
)
_SIGNS = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Target:
    """The quality that a model is trained to: `accuracy>=0.9`."""

    metric: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse a target. Raises DeclarationError, with an example, for an invalid one."""
        match = _TARGET.fullmatch(text)
        if not match:
            raise DeclarationError(
                f"Invalid target '{text}'", where="--target", fix="For example: accuracy>=0.9."
            )
        return cls(match["metric"], match["sign"], float(match["value"]))

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.value:g}"

    def reached_at(
        self, evaluations: Iterable[tuple[int, Mapping[str, float]]]
    ) -> tuple[float, bool]:
        """Return the step at which a run reached the target, and True.

        The step is interpolated between two evaluations. For a run that did not reach the target,
        return its last evaluated step (0 without evaluations), and False.
        """
        before: tuple[float, float] | None = None
        for step, metrics in evaluations:
            if (value := metrics.get(self.metric)) is None:
                continue
            if _SIGNS[self.sign](value, self.value):
                if before is None or value == before[1]:
                    return float(step), True
                part = (self.value - before[1]) / (value - before[1])
                return before[0] + part * (step - before[0]), True
            before = (float(step), value)
        return (before[0] if before else 0.0), False


@dataclass(frozen=True, slots=True)
class Way:
    """The examples that a run took to the target, with its mini-batch and global batch.

    `whole` is the global batch (0: unknown). Where the run has not `reached` the target, `examples`
    is how many it had taken at its last evaluation.
    """

    batch: int
    whole: float
    examples: float
    reached: bool


@dataclass(frozen=True, slots=True)
class Need:
    """The `examples` to the target with a batch, their relative `error`, and their source in words.

    `guess` is the reason why the error is a guess, or empty.
    """

    examples: float
    error: float
    source: str
    guess: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """The noise scale in one part of the way to the target.

    Attributes
    ----------
    share : float
        This part of the way's steps, 0 to 1.
    examples : float
        The noise scale, in examples: the mean of tr(Sigma) over the mean of |G|^2.
    low, high : float
        Its 90 % interval, in examples; `high` is infinite where noise dominates the gradient.
    """

    share: float
    examples: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the gradient stands out of its noise, so that the scale has an upper end."""
        return self.high < math.inf

    @classmethod
    def of(cls, estimates: NDArray[np.float64], share: float) -> Window | None:
        """Return the ratio of the unbiased means with Fieller's interval; None without noise.

        The interval is from "Some problems in interval estimation", J. R. Stat. Soc. B 16, 1954.
        `estimates` has a row of signal and noise for each estimate, in order. Both change during
        training, which is not a sampling error. So their variances are those of differences of
        neighbours (von Neumann 1941), which have two thirds of the degrees of freedom. With enough
        estimates they are those of second differences, which have half of them.
        """
        many = len(estimates)
        signal, noise = (float(mean) for mean in estimates.mean(axis=0))
        if noise <= 0:
            return None
        if many < _ENOUGH_FOR_SECOND:
            order = 1
            square_of_one = 2
            share_of_freedom = 2 / 3
        else:
            order = 2
            square_of_one = 6
            share_of_freedom = 18 / 35
        steps = np.diff(estimates, order, axis=0)
        covariance = steps.T @ steps / (square_of_one * len(steps) * many)
        t2 = float(special.stdtrit(share_of_freedom * len(steps), 0.95)) ** 2
        square = signal**2 - t2 * float(covariance[0, 0])
        middle = signal * noise - t2 * float(covariance[0, 1])
        least = noise**2 - t2 * float(covariance[1, 1])
        root = math.sqrt(max(middle**2 - square * least, 0.0))
        if middle + root > 0:
            low = max(least, 0.0) / (middle + root)
        else:
            low = 0.0
        if square > 0 and signal > 0:
            high = (middle + root) / square
        else:
            high = math.inf
        return cls(share, noise / signal if signal > 0 else math.inf, low, high)

    def __str__(self) -> str:
        if not self.clear:
            return f"above {self.low:,.3g} examples"
        return f"{self.examples:,.3g} examples ({self.low:,.3g} to {self.high:,.3g})"


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """The noise scale in each window of the way to the target, in order.

    `estimates` is the number of estimates behind it.
    """

    windows: tuple[Window, ...]
    estimates: int

    @classmethod
    def of(cls, gradients: Iterable[tuple[float, float, float]]) -> NoiseScale | None:
        """Return the noise scale from (progress, signal, noise); None with less than three.

        Progress may have any unit. A window is halved, by the logarithm of progress, while N
        differs between its halves: the ratio of means is dominated by the start of a window, where
        |G|^2 is largest. The very first estimates are left out where their |G|^2 is many times that
        of the next ones. A single one would dominate the mean, though it covers a small part of the
        training.
        """
        rows = np.array(sorted(gradients), dtype=float)
        if len(rows) < _LEAST_ESTIMATES:
            return None
        kept = rows[_of_the_beginning(rows[:, 1]) :]
        windows = _windows(kept, 0.0, kept[-1, 0])
        if windows:
            return cls(windows, len(rows))
        return None

    @property
    def clear(self) -> bool:
        """Whether the gradient stands out of its noise in some window."""
        return any(window.clear for window in self.windows)

    def share(self, batch: float) -> float:
        """Return the noise share of a batch's squared gradient norm, 0 to 1, as a mean of steps."""
        return sum(window.share / (1 + batch / window.examples) for window in self.windows)

    def __str__(self) -> str:
        first = self.windows[0]
        last = self.windows[-1]
        if first is last:
            return f"noise scale {first}"
        return f"noise scale {first} at first and {last} at the target"


def _of_the_beginning(signal: NDArray[np.float64]) -> int:
    """Return how many of the first values, a tenth of all at most, are far above the next three."""
    for many in range(len(signal) // 10, 0, -1):
        if signal[many - 1] > _FAR * signal[many : many + 3].max():
            return many
    return 0


def _windows(rows: NDArray[np.float64], begin: float, whole: float) -> tuple[Window, ...]:
    """Return the windows of `rows` from `begin` on, weighted by their part of the `whole` way.

    The result is empty without any noise.
    """
    window = Window.of(rows[:, 1:], (float(rows[-1, 0]) - begin) / whole)
    if window is None:
        return ()
    middle = math.sqrt(float(rows[0, 0]) * float(rows[-1, 0]))
    early = int(np.searchsorted(rows[:, 0], middle, side="right"))
    if min(early, len(rows) - early) < _LEAST_IN_WINDOW:
        return (window,)
    ratios = rows[:, 1] / rows[:, 2]
    if not _differ(ratios[:early], ratios[early:]):
        return (window,)
    split = float(rows[early - 1, 0])
    return (*_windows(rows[:early], begin, whole), *_windows(rows[early:], split, whole))


def _differ(some: NDArray[np.float64], others: NDArray[np.float64]) -> bool:
    """Return whether one group of values ranks above the other too often for chance.

    The test is Mann and Whitney's (1947). Ranks detect a steep fall, within which the error of
    means is large.
    """
    below, through = (np.searchsorted(np.sort(others), some, side) for side in ("left", "right"))
    above = float((below + through).sum()) / 2  # half of ties
    pairs = len(some) * len(others)
    deviation = math.sqrt(pairs * (len(some) + len(others) + 1) / 12)
    return abs(above - pairs / 2) > _BY_CHANCE * deviation


@dataclass(frozen=True, slots=True)
class ExamplesModel:
    """A line for the examples to the target over the share of noise, or over the batch.

    `r2` is the R^2 of the fit. `chance` is the probability of such a slope if there is none.
    `error` is the relative standard deviation of one more run, averaged over the batches. `over`
    has the abscissa of each run. `noise` is None without a noise scale, and where the line over the
    batch fits better.
    """

    at_zero: float
    slope: float
    r2: float
    chance: float
    smallest: int
    largest: int
    error: float
    over: tuple[float, ...]
    noise: NoiseScale | None = None

    @classmethod
    def fit(
        cls, batches: Sequence[float], ways: Sequence[Way], noise: NoiseScale | None = None
    ) -> ExamplesModel:
        """Fit the line by least relative squares.

        Raises PlanError with fewer than three different batches.
        """
        if len(different(batches)) < 3:
            raise PlanError(
                "The dependence of the steps on the mini-batch needs runs with 3 sizes, not "
                f"{len(different(batches))}",
                fix="Train with another size, or plan with a mini-batch of an earlier run.",
            )
        if noise:
            laws = [noise, None]
        else:
            laws = [None]
        chosen = min(
            laws, key=lambda law: float(np.mean(_left_out(_over(law, batches), ways) ** 2))
        )
        x = _over(chosen, batches)
        y = _filled(ways, lambda values: _line(x, values))
        at_zero, slope = _coefficients(x, y)
        fitted = at_zero + slope * x
        left = float(((y - fitted) ** 2).sum())
        all_of_it = float(((y - y.mean()) ** 2).sum())
        if all_of_it > 0:
            r2 = 1 - left / all_of_it
        else:
            r2 = 1.0
        freedom = len(y) - 2
        error = spread(y / fitted - 1, 2, np.ones(len(y)), _LINE_SPREAD, _LINE_WEIGHT)
        if r2 < 1:
            chance = float(special.fdtrc(1, freedom, freedom * max(r2, 0.0) / (1 - r2)))
        else:
            chance = 0.0
        return cls(
            float(at_zero),
            float(slope),
            r2,
            chance,
            round(min(batches)),
            round(max(batches)),
            error,
            tuple(x.tolist()),
            chosen,
        )

    def predict(self, batch: float, kind: str = "global batch") -> float:
        """Return the examples to the target.

        Raises PlanError below an R^2 of 0.8, where the slope may be chance, outside of the measured
        batches, and where the line falls to zero.
        """
        what = "noise of the gradients" if self.noise else kind
        fix = (
            f"Plan with a {kind} of an earlier run, use --train-steps, or let more runs reach "
            "the target."
        )
        if self.r2 < LEAST_R2:
            raise PlanError(
                f"The examples to the target depend too weakly on the {what} (R² {self.r2:.2f}, "
                f"at least {LEAST_R2} is needed)",
                fix=fix,
            )
        if self.chance >= MOST_CHANCE:
            raise PlanError(
                f"The dependence of the examples to the target on the {what} is not significant "
                f"(p {self.chance:.2f}, less than {MOST_CHANCE} is needed)",
                fix=fix,
            )
        if not (1 - _ALIKE) * self.smallest <= batch <= (1 + _ALIKE) * self.largest:
            raise PlanError(
                f"No run had a {kind} near {batch:g}: they had {self.smallest} to {self.largest}",
                fix=f"Plan with a {kind} in this range.",
            )
        needed = self.at_zero + self.slope * self._over(batch)
        if needed <= 0 or min(self.at_zero + self.slope * x for x in self.over) <= 0:
            raise PlanError(
                f"The fitted line over the {what} falls to zero examples in the range of the runs",
                fix=fix,
            )
        return needed

    def error_at(self, batch: float) -> float:
        """Return the relative standard deviation of one more run with a batch.

        The error of the line is smallest in the middle of its runs.
        """
        terms = _relative_terms(np.array(self.over), np.array([self.at_zero, self.slope]))
        asked = _relative_terms(np.array([self._over(batch)]), np.array([self.at_zero, self.slope]))
        leverage = float(((asked @ np.linalg.pinv(terms)) ** 2).sum())
        return self.error * math.sqrt((1 + leverage) / (1 + 2 / len(terms)))

    def _over(self, batch: float) -> float:
        if self.noise:
            return self.noise.share(batch)
        return batch


class TargetSteps:
    """The steps that a model takes to a target, by number of workers, from runs that reached it.

    `depends_on_workers` is True with enough measurements for a separate result per number of
    workers. Otherwise every number of workers takes the same examples.
    """

    def __init__(self, records: Iterable[Record], target: Target, batch: int) -> None:
        """Collect the runs for plans with the mini-batch `batch`.

        Raises PlanError if none of them reached the target.
        """
        seen = [
            (record, *target.reached_at(record.evaluations))
            for record in records
            if record.batch_size
        ]
        self._ways = [
            Way(record.batch_size, record.global_batch, step * record.batch_size, reached)
            for record, step, reached in seen
            if step > 0
        ]
        self._target = target
        self._batch = batch
        if not any(way.reached for way in self._ways):
            raise PlanError(
                f"No earlier run reached {target}",
                fix=f"Let a run with --eval-every N reach it, so that {target.metric} is measured "
                "on the way.",
            )
        measured = [
            (at / step, signal, noise)
            for record, step, reached in seen
            if reached
            for at, signal, noise in record.gradients
            if at <= step
        ]
        self.noise = NoiseScale.of(measured)
        self._estimates = len(measured)
        self._whole = [way for way in self._ways if way.whole]
        self.batches = different([way.whole for way in self._whole if way.reached])
        self.depends_on_workers = (
            self.noise is not None and self.noise.clear and len(self.batches) >= 3
        )
        self._model: ExamplesModel | None = None
        if self.depends_on_workers:
            ways = _telling(self._whole, lambda way: way.whole)
            self._model = ExamplesModel.fit([way.whole for way in ways], ways, self.noise)

    def need(self, workers: int) -> Need:
        """Return the examples that `workers` need. Raises PlanError if they are unknown."""
        model = self._model
        if model is None:
            return self._by_mini_batch(workers)
        batch = workers * self._batch
        alike = [way for way in self._whole if abs(way.whole / batch - 1) <= _ALIKE]
        if any(way.reached for way in alike):
            return self._seen(alike, f"a global batch of {batch}")
        return Need(model.predict(batch), model.error_at(batch), self._line)

    def steps(self, workers: int) -> int:
        """Return the steps that a number of workers needs, each of one worker's mini-batch."""
        return max(1, round(self.need(workers).examples / self._batch))

    @property
    def error(self) -> float:
        """The relative error of the steps, for any number of workers."""
        if self._model:
            return self._model.error
        return self._by_mini_batch().error

    def guess(self, workers: int | None = None) -> str:
        """Return why the error is a guess, or an empty string; None: several numbers of workers."""
        if workers:
            return self.need(workers).guess
        if self._model:
            return ""
        return self._by_mini_batch().guess

    def words(self, workers: int | None = None) -> str:
        """Return a line on the source of the steps; None: several numbers of workers."""
        if model := self._model:
            if workers:
                source = self.need(workers).source
            else:
                source = self._line
            words = (
                f"{source}; global batches of {model.smallest} to {model.largest}, R² "
                f"{model.r2:.2f}, {self.noise}"
            )
        else:
            lacking = f"The number of workers is left out: {self._lacking()}"
            words = f"{self._by_mini_batch().source}. {lacking}"
        return f"Steps to {self._target}: {words}."

    @property
    def _line(self) -> str:
        if self._model and self._model.noise:
            over = "the noise of their gradients"
        else:
            over = "their batches"
        return f"a line through {len(self._whole)} runs, over {over}"

    def _lacking(self) -> str:
        if not self._estimates:
            return "these runs did not measure the noise of their gradients"
        if self.noise is None:
            return (
                f"their gradients' noise was estimated {self._estimates} times, and "
                f"{_LEAST_ESTIMATES} are needed"
            )
        if not self.noise.clear:
            return f"their gradients drown in noise, whose scale is {self.noise.windows[-1]}"
        sizes = ", ".join(f"{batch:.0f}" for batch in self.batches)
        return (
            f"global batches of {sizes} got there, and three different ones are needed; "
            f"{self.noise}"
        )

    def _by_mini_batch(self, workers: int | None = None) -> Need:
        """Return the examples of runs with this mini-batch, regardless of their workers."""
        whole = (workers or 0) * self._batch
        alike = any(
            way.reached and abs(whole - way.whole) <= _ALIKE * way.whole for way in self._whole
        )
        if alike:
            guess = ""
        else:
            if workers:
                guess = "no run tells what as many workers need"
            else:
                guess = _ANY_NUMBER
        same = [way for way in self._ways if way.batch == self._batch]
        if any(way.reached for way in same):
            seen = self._seen(same, f"a mini-batch of {self._batch}")
            return replace(seen, guess=guess or seen.guess)
        ways = _telling(self._ways, lambda way: way.batch)
        model = ExamplesModel.fit([way.batch for way in ways], ways)
        needed = model.predict(self._batch, "mini-batch")
        return Need(
            needed,
            model.error_at(self._batch),
            f"a line through {len(ways)} runs, R² {model.r2:.2f}",
            guess,
        )

    def _seen(self, ways: Sequence[Way], what: str) -> Need:
        examples = _filled(ways, lambda values: np.full(len(values), float(values.mean())))
        mean = float(examples.mean())
        count = sum(way.reached for way in ways)
        error = spread(examples / mean - 1, 1, np.ones(len(examples)), _USUAL_SPREAD)
        words = f"{count} run{'' if count == 1 else 's'} with {what} got there"
        if late := sum(not way.reached for way in ways):
            words += f", {late} had not by {'its' if late == 1 else 'their'} end"
        return Need(
            mean,
            error,
            words,
            "one run that got there does not tell how others differ" if count == 1 else "",
        )


def _over(noise: NoiseScale | None, batches: Sequence[float]) -> NDArray[np.float64]:
    return np.array([noise.share(batch) if noise else batch for batch in batches], dtype=float)


def _coefficients(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the value at zero and the slope of the line through the positive values `y`.

    Runs differ relatively, so the weight of each is the inverse square of its fitted value: a
    variance proportional to the squared mean (R. W. M. Wedderburn, "Quasi-likelihood functions",
    Biometrika 61, 1974).
    """
    terms = np.stack([np.ones_like(x), x], axis=1)
    scale = y
    found = np.zeros(2)
    for _ in range(_REWEIGHTED):
        found = np.linalg.lstsq(terms / scale[:, np.newaxis], y / scale, rcond=None)[0]
        fitted = terms @ found
        if fitted.min() <= 0:
            break
        scale = fitted
    return np.asarray(found, dtype=float)


def _relative_terms(
    x: NDArray[np.float64], coefficients: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the terms of the line, divided by its value. Shape (n, 2)."""
    terms = np.stack([np.ones_like(x), x], axis=1)
    return np.asarray(terms / (terms @ coefficients)[:, np.newaxis], dtype=float)


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the value of the line through the values `y` at each of them."""
    at_zero, slope = _coefficients(x, y)
    return np.asarray(at_zero + slope * x, dtype=float)


def _left_out(x: NDArray[np.float64], ways: Sequence[Way]) -> NDArray[np.float64]:
    """Return the leave-one-out error of the line over `x` for each run, relative to the line."""
    y = _filled(ways, lambda values: _line(x, values))
    coefficients = _coefficients(x, y)
    terms = _relative_terms(x, coefficients)
    leverage = np.einsum("ij,ji->i", terms, np.linalg.pinv(terms))
    return (y / (coefficients[0] + coefficients[1] * x) - 1) / np.maximum(1 - leverage, 1e-9)


def _filled(
    ways: Sequence[Way], fitted: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return each run's examples to the target, expected ones for runs that did not reach it.

    `fitted` returns a model's value for each of the given values. Expectation and fit alternate.
    """
    examples = np.array([way.examples for way in ways])
    reached = np.array([way.reached for way in ways])
    values = examples.copy()
    for _ in range(_ROUNDS if not reached.all() else 0):
        expected = fitted(values)
        left = float(((values - expected)[reached] ** 2).mean()) ** 0.5
        deviation = max(left, _USUAL_SPREAD * float(np.abs(expected).mean()))
        beyond = (examples - expected) / deviation
        more = (
            deviation
            * np.exp(-(beyond**2) / 2 - special.log_ndtr(-beyond))
            / math.sqrt(2 * math.pi)
        )
        values = np.where(reached, examples, np.maximum(expected + more, examples))
    return values


def _telling(ways: Sequence[Way], size: Callable[[Way], float]) -> list[Way]:
    """Return the runs that reached the target, and the others with batches within their range."""
    sizes = [size(way) for way in ways if way.reached]
    return [way for way in ways if way.reached or min(sizes) <= size(way) <= max(sizes)]


def different(batches: Iterable[float]) -> list[float]:
    """Return the different batches: only the smallest of each group of similar ones."""
    found: list[float] = []
    for batch in sorted(batches):
        if not found or batch > (1 + _ALIKE) * found[-1]:
            found.append(batch)
    return found


METRIC = "accuracy"
_USUAL = 0.0025
_BY_WORKERS = 0.83
_PRIOR = 4.0
"""Prior standard deviation between runs: `_USUAL` for one worker, growing by a power of workers.

It is fitted to the accuracy of 251 runs of 35 of ICAC'19's clusters, from 0.002 for one worker to
0.01 to 0.02 for eight. Their variances about that law have 13 degrees of freedom. All of them are
of one model, so for others they count as `_PRIOR` degrees.
"""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The mean accuracy of `runs` similar runs, 0 to 1, with the 90 % interval of one more run.

    The interval of a single run is a `guess`.
    """

    value: float
    low: float
    high: float
    runs: int

    @property
    def guess(self) -> bool:
        """Whether there is a single run, which does not show how others differ."""
        return self.runs == 1


class Accuracies:
    """The accuracies of a model's runs with one mini-batch, mode and settings."""

    def __init__(
        self, records: Iterable[Record], batch: int, mode: str = "async", settings: str = ""
    ) -> None:
        self._like = [
            record
            for record in records
            if record.batch_size == batch
            and record.mode == mode
            and record.settings == settings
            and record.workers
            and any(METRIC in metrics for _, metrics in record.evaluations)
        ]

    def __bool__(self) -> bool:
        """Return whether there is an evaluated run with any number of workers and steps."""
        return bool(self._like)

    def at(self, workers: int, steps: int) -> Accuracy | None:
        """Return the accuracy after `steps` of `workers` workers; None without a similar run."""
        found = [
            value
            for record in self._like
            if abs(record.workers / workers - 1) <= _ALIKE
            and (value := _evaluated(record, steps)) is not None
        ]
        if not found:
            return None
        values = np.array(found)
        mean = float(values.mean())
        usual = _USUAL * workers**_BY_WORKERS
        off = float(special.ndtri(0.95)) * spread(
            values - mean, 1, np.ones(len(values)), usual, _PRIOR
        )
        return Accuracy(mean, max(mean - off, 0.0), min(mean + off, 1.0), len(found))


def _evaluated(record: Record, steps: int) -> float | None:
    """Return a run's accuracy at the evaluation nearest to `steps`, or None if none is near."""
    by_distance = [
        (abs(step - steps), metrics[METRIC])
        for step, metrics in record.evaluations
        if METRIC in metrics
    ]
    away, value = min(by_distance)
    return value if away <= _ALIKE * steps else None
