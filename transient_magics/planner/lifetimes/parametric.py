"""Formulas for lifetimes of VMs. All times in hours.

`Weibull` includes the memoryless exponential. `EarlyThenSteady` is a mixture: some VMs end early,
and all of them have a steady hazard. `Bathtub` is that of Kadupitiya, Jadhao and Sharma ("Modeling
the Temporally Constrained Preemptions of Transient Cloud VMs", HPDC 2020, arXiv 1911.05160,
equation 1): early revocations, a quiet middle, and a wall near 24 hours. With `steady` it has a
fifth parameter, because the published four leave almost no hazard in the middle. Only preemptible
VMs have the wall, Spot VMs do not. Fitted here (`study.fit`), the wall comes from revocations
before 24 hours, not from the contract's end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_ROWS = 4001
# In time constants; after that, e^-t is negligible.
_EARLY_OVER = 30.0


# The interface of all models of a VM's lifetime, whatever they were fitted from.


class LifetimeModel(Protocol):
    """The lifetime distribution of VMs, in hours from the moment they run."""

    @property
    def name(self) -> str:
        """The name of the model, such as `Weibull`."""
        ...

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability that a VM lives longer than `hours`: 1 at 0, never rising."""
        ...

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        """Return total lifetimes in hours, all above `age`.

        Of the VMs that have reached `age`, `share` (above 0, up to 1) live longer. Infinite values
        mean that they are never revoked within the model's support.
        """
        ...


def drawn(
    model: LifetimeModel,
    random: np.random.Generator,
    shape: int | tuple[int, ...],
    age: float | NDArray[np.float64] = 0.0,
) -> NDArray[np.float64]:
    """Return random total lifetimes in hours of VMs that have reached `age`."""
    return model.quantile(1 - random.random(shape), age)


def from_table(
    share: NDArray[np.float64],
    age: float | NDArray[np.float64],
    ages: NDArray[np.float64],
    shares: NDArray[np.float64],
    survival: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return total lifetimes in hours that `share` of the VMs that reached `age` exceed.

    They are infinite where no share is as low. `ages` rise and `shares` fall, from (0, 1) on;
    between them survival is linear. `survival` returns the share at any age.
    """
    reached = np.asarray(age, float)
    found = np.interp(-share * survival(reached), -shares, ages, right=np.inf)
    return np.maximum(found, np.nextafter(reached, np.inf))


class ParametricModel(LifetimeModel, Protocol):
    """A model that is a formula."""

    @property
    def parameters(self) -> Mapping[str, float]:
        """The parameters by name, in the formula's units."""
        ...

    def density(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability per hour of ending at an age: minus the slope of `survival`."""
        ...


@dataclass(frozen=True)
class Weibull:
    """survival(t) = exp(-(t / scale)^shape).

    The hazard falls with age where `shape` is below 1.
    """

    scale: float
    shape: float = 1.0

    @property
    def name(self) -> str:
        """The name of the model."""
        return "exponential" if self.shape == 1 else "Weibull"

    @property
    def parameters(self) -> Mapping[str, float]:
        """The parameters by name."""
        if self.shape == 1:
            return {"mean": self.scale}
        return {"scale": self.scale, "shape": self.shape}

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share that lives longer than each of `hours`."""
        return np.exp(-((np.asarray(hours) / self.scale) ** self.shape))

    def density(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability per hour of ending at each of `hours`."""
        relative = np.asarray(hours) / self.scale
        return self.shape / self.scale * relative ** (self.shape - 1) * self.survival(hours)

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        """Return total lifetimes that `share` of the VMs that reached `age` exceed."""
        so_far = (np.asarray(age) / self.scale) ** self.shape
        found = self.scale * (so_far - np.log(share)) ** (1 / self.shape)
        return np.maximum(found, np.nextafter(age, np.inf))


@dataclass(frozen=True)
class EarlyThenSteady:
    """survival(t) = (1 - early + early * exp(-t / tau)) * exp(-steady * t).

    `early` is the share of VMs with an early end, whose time constant is `tau`. `steady` is a
    hazard per hour.
    """

    early: float
    tau: float
    steady: float

    @property
    def name(self) -> str:
        """The name of the model."""
        return "early, then steady"

    @property
    def parameters(self) -> Mapping[str, float]:
        """The parameters by name."""
        return {"early": self.early, "tau": self.tau, "steady": self.steady}

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share that lives longer than each of `hours`."""
        hours = np.asarray(hours)
        return (1 - self.early + self.early * np.exp(-hours / self.tau)) * np.exp(
            -self.steady * hours
        )

    def density(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability per hour of ending at each of `hours`."""
        hours = np.asarray(hours)
        going = self.early / self.tau * np.exp(-hours / self.tau) * np.exp(-self.steady * hours)
        return going + self.steady * self.survival(hours)

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        """Return total lifetimes that `share` of the VMs that reached `age` exceed."""
        ages, logarithms = self._table
        target = -np.log(share) - np.log(self.survival(np.asarray(age)))
        # The early ones are gone by then.
        beyond = np.maximum(target - logarithms[-1], 0.0)
        late = np.divide(
            beyond, self.steady, out=np.where(beyond > 0, np.inf, 0.0), where=self.steady > 0
        )
        return np.maximum(np.interp(target, logarithms, ages) + late, np.nextafter(age, np.inf))

    @cached_property
    def _table(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        ages = np.linspace(0.0, _EARLY_OVER * self.tau, _ROWS)
        return ages, -np.log(self.survival(ages))


@dataclass(frozen=True)
class Bathtub:
    """survival(t) = 1 - A * (1 - exp(-t / tau1) + exp((t - b) / tau2)) - c * t up to `end`.

    From `end` on it is 0. A is the share of early revocations, tau1 their time constant; b and tau2
    are the position and the sharpness of the wall; c is the revocations per hour in between, 0 in
    the published formula.
    """

    a: float
    b: float
    tau1: float
    tau2: float
    c: float = 0.0
    end: float = 24.3

    @property
    def name(self) -> str:
        """The name of the model."""
        return f"bathtub, {5 if self.c else 4} parameters"

    @property
    def parameters(self) -> Mapping[str, float]:
        """The parameters by name."""
        return {
            "A": self.a,
            "b": self.b,
            "tau1": self.tau1,
            "tau2": self.tau2,
            **({"c": self.c} if self.c else {}),
        }

    def ended(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the published formula F(t): not quite 0 at 0, and not limited to 1."""
        hours = np.asarray(hours)
        wall = np.exp((hours - self.b) / self.tau2)
        return self.a * (1 - np.exp(-hours / self.tau1) + wall) + self.c * hours

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share that lives longer than each of `hours`."""
        hours = np.asarray(hours)
        inside = hours < self.end
        left = np.clip(1 - self.ended(np.where(inside, hours, 0.0)), 0.0, 1.0)
        return np.where(hours <= 0, 1.0, np.where(inside, left, 0.0))

    def density(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability per hour of ending at each of `hours`."""
        hours = np.asarray(hours)
        wall = np.exp((hours - self.b) / self.tau2) / self.tau2
        return self.a * (np.exp(-hours / self.tau1) / self.tau1 + wall) + self.c

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        """Return total lifetimes that `share` of the VMs that reached `age` exceed."""
        return from_table(share, age, *self._table, self.survival)

    @cached_property
    def _table(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        ages = np.append(np.linspace(0, self.end, _ROWS), self.end)
        shares = self.survival(ages)
        shares[0], shares[-2] = 1.0, float(self.survival(np.array(np.nextafter(self.end, 0))))
        return ages, shares
