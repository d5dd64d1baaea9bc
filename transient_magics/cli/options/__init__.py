"""Every option of cells and terminals, declared once: its sub-command, help, group, and what excludes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from ..option import Option, word
from ...works.bags import options as bags
from . import clusters, planning, project, weather
from ...works.jobs import options as jobs
from ...works.runs import options as runs, stall_options as stalls
from .planning import WORKLOADS
from .words import (
    ALIASES,
    CELLS,
    CLUSTER_VERBS,
    DESCRIPTIONS,
    EPILOGS,
    EXAMPLES,
    IMAGE_VERBS,
    PROGRAM_VERBS,
    TIERS,
    Entry,
)

__all__ = [
    "ALIASES",
    "CELLS",
    "CHECKS",
    "CLUSTER_VERBS",
    "DESCRIPTIONS",
    "EPILOGS",
    "EXAMPLES",
    "IMAGE_VERBS",
    "PROGRAM_VERBS",
    "TIERS",
    "WORKLOADS",
    "Entry",
    "declared",
    "grouped",
]


def declared(verb: str, *, file: bool = False) -> tuple[Option, ...]:
    """The options of a sub-command, of `declare`, `train` or `catalog`, in the order of their help."""
    options = _table()[verb]
    return (word("source", "FILE", "the code, a Python file", completes="path"), *options) if file else options


def grouped(options: Iterable[Option]) -> list[tuple[str, list[Option]]]:
    """Return the titles of the options' groups in the order of their help, each with its options."""
    groups: dict[str, list[Option]] = {}
    for option in options:
        groups.setdefault(option.group, []).append(option)
    return list(groups.items())


@cache
def _table() -> Mapping[str, tuple[Option, ...]]:
    # A function, so that importing this module costs nothing before the first cell uses it.
    return {
        "declare": clusters.declare(),
        "train": runs.train(),
        "study": runs.study(),
        "job": jobs.job(),
        "bag": bags.bag(),
        "stalls": stalls.stalls(),
        **clusters.verbs(),
        **clusters.work(),
        "catalog": planning.catalog(),
        **runs.results(),
        "plan": planning.plan(),
        "doctor": project.doctor(),
        "weather": weather.weather(),
        "deflate": weather.deflate(),
        "measure": weather.measure(),
        "lifetimes": planning.lifetimes(),
        **project.images(),
    }


CHECKS: Mapping[str, Callable[[dict[str, Any], str], None]] = {
    "declare": clusters.check_declare,
    "resize": clusters.check_resize,
    "relocate": clusters.check_relocate,
    "train": runs.check_train,
    "study": runs.check_study,
    "job": jobs.check_job,
    "bag": bags.check_bag,
    "stalls": stalls.check_stalls,
    "delete": clusters.check_delete,
    "doctor": project.check_doctor,
    "plan": planning.check_plan,
    "catalog": planning.check_catalog,
    "lifetimes": planning.check_lifetimes,
    "weather": weather.check_weather,
    "deflate": weather.check_deflate,
}
