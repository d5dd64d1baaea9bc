"""The namespace of all work of a cluster: names in use, and names that work reserves. Pure.

Leases, tenures and bills identify work by name alone. So runs, studies, jobs, bags and Dask
clusters share one namespace, in which a measure of stalls is a run. A study reserves the names of
all runs of its trials, and of their shared input. A bag reserves the names of its Dask clusters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..kinds import KINDS
from ..protocol import layout
from ..protocol.checks import LONGEST_NAME

_NUMBERED = re.compile(r"(.+)-d(\d+)")


def refusal(
    cluster: str, kind: str, name: str, kinds: Mapping[str, str], *, owner: str = ""
) -> str:
    """Return why new work on `cluster` cannot have `name`, in a sentence; '' if it can.

    Parameters
    ----------
    kinds
        The kind of each work of the cluster, by name.
    owner
        The study or bag that begins this work under a name that it reserves.
    """
    if other := kinds.get(name):
        return f"{cluster} has a {KINDS[other]} {name} already"
    if holder := _holder(name, kinds, owner):
        if kinds[holder] == "study":
            parts = "its trials"
        else:
            parts = "its Dask clusters"
        return (
            f"{cluster} has a {kinds[holder]} {holder}, which reserves the name {name} for {parts}"
        )
    if kind != "study":
        return ""
    if any(name in other.stems for other in KINDS.values()):
        return f"{name}-1, {name}-2 and so on are automatic names, and the trials of a study {name} would need them"
    for other_name, other in kinds.items():
        if _is_of_study(name, other_name):
            return f"{cluster} has a {KINDS[other]} {other_name} already, and a trial of {name} would need that name"
    return ""


def possible_studies(name: str) -> Iterable[str]:
    """Yield the names of studies that would reserve `name`: of `a-1-2` both `a-1` and `a`."""
    suffix = layout.shared_input("")
    if name.endswith(suffix):
        yield name.removesuffix(suffix)
    shorter = name
    for _ in range(2):
        shorter, dash, number = shorter.rpartition("-")
        if not (dash and shorter and number.isdecimal() and number.isascii()):
            return
        yield shorter


def dask_name(bag: str, number: int) -> str:
    """Return the name of the bag's `number`-th Dask cluster.

    It differs from a study's runs, which end in a number alone.
    """
    end = f"-d{number}"
    return bag[: LONGEST_NAME - len(end)].rstrip("-") + end


def _holder(name: str, kinds: Mapping[str, str], owner: str) -> str:
    """Return the study or bag, other than `owner`, that reserves `name`; '' if none does."""
    for study in possible_studies(name):
        if study != owner and kinds.get(study) == "study":
            return study
    # Two bags with long names may reserve the same name: each takes the free ones.
    if kinds.get(owner) == "bag":
        return ""
    if numbered := _NUMBERED.fullmatch(name):
        number = int(numbered[2])
        for bag, kind in kinds.items():
            if kind == "bag" and dask_name(bag, number) == name:
                return bag
    return ""


def _is_of_study(study: str, name: str) -> bool:
    return study in possible_studies(name)
