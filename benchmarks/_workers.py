"""Several workers of a run beside plain Keras: synchronous steps, and asynchronous ones with late gradients.

The reference is plain Keras on the same weights, mini-batches and order. A synchronous step of K workers takes the
gradients of K mini-batches at the same weights, averages them by their numbers of examples, applies them once, and
gives each weight that is not trained the mean of its K new values. An asynchronous step of K workers takes the
gradients at weights that are K - 1 steps old and applies them to the current ones. A weight that is not trained keeps a
share of its current value there, and gets the rest from the batch: the share is the momentum of a moving average, 1 for
a counter, and 0 for everything that is assigned.

Deviations are relative to the largest value: of the gradients all together, of each weight that is not trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench_parity import Ours, Plain

WORKERS = (1, 2, 4)
STEPS = 20
EQUAL, UNEQUAL = (8, 8, 8, 8), (8, 5, 11, 9)
MODES = {"synchronous": EQUAL, "synchronous, unequal mini-batches": UNEQUAL, "late asynchronous": EQUAL}
_AFTER = {1: ("first step", 1e-5), STEPS: (f"{STEPS} steps", 1e-4)}
TOGETHER = "synchronous and one process with all mini-batches"


def kinds() -> Iterator[tuple[str, float]]:
    """The kinds of deviations and their goals."""
    for name in (*(_name(mode, count) for mode in MODES for count in WORKERS), TOGETHER):
        yield from ((f"{name}, {after}", goal) for after, goal in _AFTER.values())


def _name(mode: str, count: int) -> str:
    return f"{mode}, {count} worker{'s' if count > 1 else ''}"


def rows(step: int, sizes: Sequence[int], examples: int) -> list[Any]:
    """The examples of each worker's mini-batch in a step: the next ones, and the first ones after the last."""
    import numpy

    begins = [step * sum(sizes) + sum(sizes[:worker]) for worker in range(len(sizes))]
    return [(begin + numpy.arange(size)) % examples for begin, size in zip(begins, sizes, strict=True)]


def compared(ours: Ours, late: Ours, plain: Plain, together: bool) -> dict[str, float]:
    """The deviations of one model, by their kind; `ours` steps synchronously, `late` does not.

    `together`: its loss is a mean over examples, and nothing in it depends on the others of a mini-batch.
    """
    found: dict[str, float] = {}
    for mode, sizes in MODES.items():
        for count in WORKERS:
            pair = Asynchronous(late, plain, count) if mode.startswith("late") else Synchronous(ours, plain)
            found |= _deviations(_name(mode, count), pair, sizes[: pair.batches or count])
    if together:
        found |= _deviations(TOGETHER, Synchronous(ours, plain, whole=True), UNEQUAL)
    return found


def _deviations(name: str, pair: Synchronous | Asynchronous, sizes: Sequence[int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for step in range(STEPS):
        pair.step(rows(step, sizes, pair.plain.examples))
        if step + 1 in _AFTER:
            found[f"{name}, {_AFTER[step + 1][0]}"] = pair.deviation()
    return found


class _Pair:
    """A model of a run and of plain Keras, both at their initial weights."""

    batches = 0
    """How many mini-batches a step takes; 0: one of each worker."""

    def __init__(self, ours: Ours, plain: Plain) -> None:
        self.ours, self.plain = ours, plain
        ours.begin()
        plain.begin()

    def deviation(self) -> float:
        """The largest deviation of loss, gradients, and weights that are not trained."""
        from bench_parity import deviation

        first = rows(0, (8,), self.plain.examples)[0]
        loss, gradients = self.plain.computed(first)[:2]
        values = self.ours.fed(first)
        return max(
            deviation([self.ours.loss(values)], [loss]),
            deviation([_flat(self.ours.gradients_of(values))], [_flat(gradients)]),
            deviation(self.ours.states(), self.plain.states()),
        )


class Synchronous(_Pair):
    """Steps that workers take together; `whole`: plain Keras takes them in one process on all their examples."""

    def __init__(self, ours: Ours, plain: Plain, whole: bool = False) -> None:
        super().__init__(ours, plain)
        self._whole = whole

    def step(self, batches: Sequence[Any]) -> None:
        """A step of both on the mini-batches with these examples."""
        import numpy

        self.ours.step_together([self.ours.fed(batch) for batch in batches])
        made = [self.plain.computed(batch) for batch in ([numpy.concatenate(batches)] if self._whole else batches)]
        counts = [sum(map(len, batches))] if self._whole else [len(batch) for batch in batches]
        by_weight = zip(*(gradients for _, gradients, _ in made), strict=True)
        means = [None if each[0] is None else numpy.average(each, 0, counts) for each in by_weight]
        states = [_mean(values) for values in zip(*(states for _, _, states in made), strict=True)]
        self.plain.apply(means, states)


class Asynchronous(_Pair):
    """Steps of workers that take turns, each with a gradient that is as many steps old as there are other workers."""

    batches = 1

    def __init__(self, ours: Ours, plain: Plain, count: int) -> None:
        super().__init__(ours, plain)
        self._count = count
        self._before: list[tuple[Any, Any]] = []
        """The weights of ours and of plain Keras in front of each step."""

    def step(self, batches: Sequence[Any]) -> None:
        """A step of both on the mini-batch with these examples."""
        (batch,), plain = batches, self.plain
        self._before = [*self._before, (self.ours.weights(), plain.weights())][-self._count :]
        ours_then, plain_then = self._before[0]
        self.ours.step(self.ours.fed(batch), ours_then)
        _, gradients, computed = plain.computed(batch, plain_then)
        then = [value for value, trained in zip(plain_then, plain.trained, strict=True) if not trained]
        rules = zip(plain.shares, plain.states(), then, computed, strict=True)
        plain.apply(gradients, [_moved(*rule) for rule in rules])


def _flat(gradients: Sequence[Any]) -> Any:
    """All gradients in one vector; NaN stands for a variable without one."""
    import numpy

    return numpy.concatenate([numpy.ravel(numpy.nan if each is None else each) for each in gradients])


def _moved(share: float, now: Any, then: Any, computed: Any) -> Any:
    """What becomes of a value, of which a worker has `computed` a new one from what it was `then`."""
    import numpy

    if share == 0:
        return computed
    change = numpy.asarray(computed, "float64") - share * then
    return numpy.asarray(share * now + change, now.dtype)


def _mean(values: Sequence[Any]) -> Any:
    import numpy

    mean = numpy.mean(numpy.asarray(values, "float64"), 0)
    if values[0].dtype.kind == "b":
        return mean > 0.5
    if values[0].dtype.kind in "iu":
        mean = numpy.round(mean)
    return mean.astype(values[0].dtype)


def shares(model: Any, declared: Mapping[str, float]) -> list[float]:
    """Of each weight that is not trained the share that stays in a step: as `declared` by its name, or a momentum."""
    momenta = {}
    for layer in model._flatten_layers():
        if type(layer).__name__ == "BatchNormalization":
            momenta |= {id(layer.moving_mean): layer.momentum, id(layer.moving_variance): layer.momentum}
    return [declared.get(weight.name, momenta.get(id(weight), 0.0)) for weight in model.non_trainable_weights]


def is_whole(cell: str) -> bool:
    """Whether several mini-batches and all their examples together give the same gradients, and no state."""
    compiled = cell.rpartition("model.compile(")[2]
    of_a_batch = ("'sum'", "mean_with_sample_weight", "where_not_zero")
    stateful = "BatchNormalization" in cell or "assign" in cell
    return not stateful and not any(part in compiled for part in of_a_batch)
