"""A workload that nobody ever ran, from what was counted of its graph: parameters, and FLOPs of a training step.

The seconds of a step on the GPUs of CM-DARE follow from the line of the model's family over FLOPs, or from one line for
all networks that were measured where its family was not; those on other GPUs from peak speeds (`workloads.by_peak`).
Beyond the FLOPs that were measured a line is worth less: drawn through half of the networks it misses those of the
other half by up to twice what their distance says (`BEYOND_ERROR`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...errors import PlanError
from . import families
from .speed import SERVICE_ERROR, service_by_size
from .workloads import Estimate, Workload

BEYOND_ERROR, _MOST_ERROR = 0.35, 1.0
"""How far off, relatively, a step may be for each natural logarithm of how many times its FLOPs are beyond what was
measured: 0.1 to 0.35 where lines through half of the networks were asked for the rest. No more than is said here."""

_PER_PARAMETER_AND_TOKEN = 6
"""FLOPs of a training step of a language model, its backward pass included (Kaplan et al., "Scaling laws for neural
language models", 2020, arXiv 2001.08361, section 2.1)."""


def counted_workload(name: str, counts: Mapping[str, float], family: str = "") -> Workload:
    """The workload of a model of which a check counted `gigaflops`, `parameters` and its `batch_size`.

    Where a mini-batch is so many `tokens`, whose texts have no fixed shape, FLOPs follow from the parameters. Raises
    PlanError where FLOPs could not be counted otherwise.
    """
    gigaflops, parameters = counts.get("gigaflops", 0.0), int(counts.get("parameters", 0))
    estimated = gigaflops <= 0 and bool(counts.get("tokens"))
    if estimated:
        gigaflops = _PER_PARAMETER_AND_TOKEN * parameters / 1e9
    batch = int(counts.get("batch_size", 0)) or families.BATCH_SIZE
    if gigaflops <= 0:
        raise PlanError(f"The FLOPs of {name} cannot be counted: the shapes of its examples are not fixed",
                        fix="Train it for a minute, then plan with that run.")  # fmt: skip
    kind = family or families.ALL
    least, most = families.extent(kind)
    beyond = max(least / gigaflops, gigaflops / most, 1.0)
    whose = f"the line of {family} networks" if family else "one line for all networks that CM-DARE measured"
    lines = {gpu: line for gpu in families.GPUS if (line := families.line(kind, gpu))}
    seconds = {gpu: line.seconds(gigaflops, batch) for gpu, line in lines.items()}
    service = min(service_by_size(parameters), min(seconds.values()) / 2)
    called = f"{name[:1].upper()}{name[1:]}"
    vocabulary = int(counts.get("vocabulary", 0))
    notes = [
        f"{called} was never measured on Compute Engine: {gigaflops:.3g} GFLOPs for an example, {parameters:,} "
        "parameters, counted."
    ]
    if estimated:
        notes = [
            f"{called} was never measured on Compute Engine: {parameters:,} parameters, counted, and {gigaflops:.3g} "
            "GFLOPs for a token, taken as 6 for each parameter (Kaplan et al., 2020)."
        ]
    if vocabulary:
        notes.append(
            f"Its vocabulary is made with its data: one of {vocabulary:,} entries stands in, the size that the problem "
            "declares."
        )
    guess = "" if family else "its family was never measured"
    if beyond > 1:
        guess = f"its FLOPs are beyond those that were measured, {least:.2g} to {most:.2g} G"
    return Workload(
        name=name,
        compute={gpu: Estimate(seconds[gpu] - service, _error(line.error, beyond), f"from FLOPs, by {whose}")
                 for gpu, line in lines.items()},
        service_seconds=service, batch_size=batch, parameters=parameters,
        limit_error=SERVICE_ERROR, limit_measured=False, guess=guess, notes=tuple(notes),
    )  # fmt: skip


def _error(known: float, beyond: float) -> float:
    return min(math.hypot(known, BEYOND_ERROR * math.log(beyond)), _MOST_ERROR)
