"""Declare a bag: write its folder (declaration, cell, lifetimes) and notify the controller."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...catalog import region
from ...catalog.published import LAST_HOUR
from ...client import cell
from ...client.cluster_handle import Cluster
from ...client.declaring.declaration import option_error
from ...client.declaring.payload import Payload
from ...client.new_work import NewWork
from ...errors import CellError, DeclarationError, install_extra
from ...protocol import layout
from ...protocol.space import parse_space
from ...spec import ClusterSpec
from ...spec.image import usual_boot_seconds
from .handle import Bag
from .spec import GIVEN, BagSpec, parse_until

try:
    from ...client.planning.revocations import emulated, foreseen
    from .driver.decisions import Lifetimes
    from .policy.placement import Survival
except ModuleNotFoundError as error:
    raise DeclarationError(f"Bags need {error.name}", fix=install_extra("bags")) from None

_ITS_OPTION = {
    "timeout_seconds": "job-timeout",
    "memory_bytes": "memory",
    "job_seconds": "job-time",
    "save_seconds": "save-time",
    "space": "over",
}
_FUNCTION = "job"


def declare_bag(
    *,
    source: str,
    over: str,
    jobs: int,
    until: str | float | Mapping[str, float] = "",
    cluster: Cluster | str | None = None,
    name: str | None = None,
    include: str | Sequence[str] = (),
    pip: str | Sequence[str] = (),
    notebook: Collection[str] = (),
    line_offset: int = 0,
    **options: Any,
) -> Bag:
    """Declare a bag of the function `job` in `source`, and return its handle without waiting.

    Parameters
    ----------
    source
        Python code that defines `job`.
    over, jobs, until
        The options of `%%bag` of these names.
    cluster
        The cluster or its name (default: the current one).
    name
        A name (default: the next free one, `bag-1`).
    include
        Files and folders that the code needs.
    pip
        Packages that it needs.
    notebook
        Names that are defined only in the notebook.
    line_offset
        The number of lines above the code.
    options
        Other fields of `BagSpec`.

    Raises
    ------
    DeclarationError
        A value is invalid.
    ClusterError
        There is no such cluster, or it cannot run a bag now.
    """
    new = NewWork("bag", cluster, name)
    cluster_spec = new.cluster_spec
    payload = Payload.of(
        "\n" * line_offset + source,  # so that a VM counts lines as the notebook shows them
        include,
        pip,
        build=bool(options.get("pip_build")),
    )
    try:
        space = parse_space(over)
    except ValueError as error:
        raise DeclarationError(f"Invalid --over: {error}") from None
    cell.check(source, notebook, line_offset=line_offset, include=payload.include, hparams=False)
    check_function(source, [dimension.name for dimension in space], line_offset)
    values = {
        **options,
        "jobs": jobs,
        "space": [asdict(dimension) for dimension in space],
        "until": _limits(until),
    }
    spec = new.specify(BagSpec.from_dict, values, payload, _ITS_OPTION)
    lifetimes_json = json.dumps(_lifetimes(new.cluster, cluster_spec).to_dict()).encode()

    def fill(folder: Path) -> None:
        payload.fill(folder)
        (folder / layout.LIFETIMES).write_bytes(lifetimes_json)

    chosen = new.declare(lambda free_name: replace(spec, name=free_name).to_dict(), fill)
    return Bag(chosen, new.cluster)


def _limits(until: str | float | Mapping[str, float]) -> Mapping[str, float]:
    """Return the standard deviations to reach, by output. Raises DeclarationError."""
    if isinstance(until, Mapping):
        return until
    if until == "":
        return {}
    try:
        return parse_until(str(until))
    except ValueError as error:
        raise option_error(error) from None


def check_function(source: str, names: Sequence[str], line_offset: int = 0) -> None:
    """Check that the code defines `job` with these parameters. Raises CellError."""
    tree = ast.parse(source)
    found = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == _FUNCTION
    ]
    example = (
        f"def job({', '.join([*names, 'seed'])}): ... return {{'pressure': p, 'pressure_error': e}}"
    )
    if not found:
        raise CellError("The cell does not define the function job", fix=f"Write {example}")
    takes = found[-1].args
    arguments = {arg.arg for arg in (*takes.posonlyargs, *takes.args, *takes.kwonlyargs)}
    if line_offset:
        where = f"cell line {found[-1].lineno + line_offset}"
    else:
        where = f"line {found[-1].lineno}"
    if takes.posonlyargs:
        raise CellError(
            f"{where}: job is called with keywords, but {takes.posonlyargs[0].arg} is "
            "positional-only",
            fix=example,
        )
    if not takes.kwarg and (lost := [name for name in names if name not in arguments]):
        raise CellError(
            f"{where}: {lost[0]} of --over is not an argument of job",
            fix=f"Write {example}",
        )
    ordinary = len(takes.args) - len(takes.defaults)
    needed = {arg.arg for arg in takes.args[:ordinary]}
    needed |= {
        arg.arg
        for arg, given in zip(takes.kwonlyargs, takes.kw_defaults, strict=True)
        if given is None
    }
    if lost := sorted(needed - {*names, *GIVEN}):
        raise CellError(
            f"{where}: the argument {lost[0]} of job has no value",
            fix="Name it in --over, or add a default.",
        )


def _lifetimes(cluster: Cluster, spec: ClusterSpec) -> Lifetimes:
    """Return the lifetimes of the cluster's workers for a driver."""
    revoked = spec.provisioning_model != "standard"
    if revoked and spec.emulated:
        from ...client.planning.forecasts import weather_of

        revoked = weather_of(cluster) == "published"
    return lifetimes(spec, cluster.state.clock.rate if spec.emulated else 1.0, revoked=revoked)


def lifetimes(spec: ClusterSpec, rate: float, *, revoked: bool) -> Lifetimes:
    """Return the lifetimes of a cluster's workers: published ones, if they are revoked at all.

    `rate` is the emulated seconds per second.
    """
    gpu = spec.groups[0].accelerator
    found = Lifetimes(
        None, rate / 3600, 0.0 if spec.emulated else usual_boot_seconds(spec, gpu) / 3600
    )
    if spec.emulated:
        lived = emulated()
    else:
        lived = foreseen("published")
    if revoked:
        model = lived[0](gpu, region(spec.home_zone))
    else:
        model = None
    if model is None:
        return found
    if spec.provisioning_model == "preemptible":
        from ...planner.lifetimes.kaplan_meier import Capped

        model = Capped(model, LAST_HOUR)
    return replace(found, survival=Survival.of(model))
