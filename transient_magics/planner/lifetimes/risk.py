"""How likely VMs are to be revoked soon, by their age."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from ...errors import PlanError
from .model import LifetimeModel
from .published import published_lifetimes
from .sources import Question
from .study import study


def risk(model: LifetimeModel, age: float, hours: float = 1.0) -> float:
    """The probability that a VM which has reached `age` (in hours) is revoked within the next `hours`; 1 where none
    lives on."""
    now, then = map(float, model.survival(np.array([age, age + hours])))
    return 1 - then / now if now > 0 else 1.0


def best_known(provisioning_model: str, *, emulated: bool) -> Callable[[str, str], LifetimeModel]:
    """What is known of the lifetimes of VMs with a GPU in a region: from the user's own VMs where they are enough, else
    as published."""

    @cache
    def lifetimes(gpu: str, region: str) -> LifetimeModel:
        question = Question(gpu, region, provisioning_model)
        try:
            return study(question, "emulated" if emulated else "own", ("exponential",)).model
        except PlanError:
            return published_lifetimes(gpu, region)

    return lifetimes
