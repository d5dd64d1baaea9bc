"""The options of a bag of jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from ...cli.option import Entry, Option, duration, flag, group, one_of, whole
from ...cli.options.shared import (
    CLUSTER,
    COST,
    FILES,
    INCLUDE,
    JOB_TIMEOUT,
    JOBS,
    MEMORY,
    ON_CLUSTER,
    OUTPUT,
    PIP,
    PIP_BUILD,
    POLICY,
    RETRIES,
    SAVE_TIME,
    SPARE,
    max_cost,
    max_hours,
    name_of,
    over,
    seed,
    split_paths,
    wait_until,
)
from ...cli.options.work import Code, WorkCommand, with_included
from .spec import BagSpec, parse_until

if TYPE_CHECKING:
    from .handle import Bag


def bag() -> tuple[Option, ...]:
    """Return the options of a bag."""
    return (
        *group(
            "Points and surrogate",
            over("the points for which to compute the function"),
            JOBS,
            SPARE,
            flag(
                "--surrogate",
                "the model that learns from the results and chooses further points. gp: a "
                "Gaussian process; ensemble: an ensemble of small neural networks; none: choose "
                "all points at the start",
                default="gp",
                **one_of("--surrogate", _choices("surrogate")),
            ),
            flag(
                "--until",
                "end early when the surrogate's standard deviation is below this everywhere, and "
                "its intervals hold: 0.01, or pressure=0.02,energy=0.01",
                _until,
                metavar="TOLERANCE",
            ),
            seed("the points and of the seeds of the jobs", "0"),
        ),
        *group(
            "Jobs",
            POLICY,
            flag(
                "--job-time",
                "duration of one job, for --policy and for the interval of checkpoints",
                duration("--job-time", "m"),
                default="as measured",
                name="job_seconds",
                metavar="TIME",
            ),
            replace(SAVE_TIME, name="save_seconds"),
            JOB_TIMEOUT,
            MEMORY,
            replace(RETRIES, default="1"),
        ),
        *group(
            FILES,
            INCLUDE,
            PIP,
            PIP_BUILD,
        ),
        *group(
            COST,
            max_cost("end the bag when it has cost this amount in US dollars"),
            max_hours("end the bag after this time"),
        ),
        *group(
            CLUSTER,
            ON_CLUSTER,
            flag(
                "--workers",
                "number of VMs that compute at the same time",
                whole("--workers"),
                default="all",
                metavar="N",
            ),
            name_of("bag"),
            wait_until("the bag has ended"),
            OUTPUT,
        ),
    )


def check_bag(values: dict[str, Any], called: str) -> None:
    """Check that a bag has points and jobs, and convert values of options to fields."""
    from ...errors import DeclarationError

    if missing := next((name for name in ("over", "jobs") if not values.get(name)), ""):
        fix = f'For example: {called} --over "density=0.3:0.9 temperature=0.8:1.6" --jobs 200'
        raise DeclarationError(f"A bag needs --{missing}", fix=fix)
    if "memory" in values:
        values["memory_bytes"] = round(values.pop("memory") * 1e9)
    split_paths(values)


def _choices(name: str) -> tuple[str, ...]:
    return get_args(get_type_hints(BagSpec)[name])


def _until(text: str) -> str:
    from ...errors import DeclarationError

    try:
        parse_until(text)
    except ValueError as error:
        raise DeclarationError(f"Invalid --until: {error}") from None
    return text


def _declare(values: dict[str, Any], code: Code) -> Bag:
    """Declare a bag of the function in the code."""
    from .declare import declare_bag

    values = with_included(values, code.folder)
    return declare_bag(
        source=code.source, line_offset=code.line_offset, notebook=code.notebook, **values
    )


COMMANDS = (
    WorkCommand(
        "bag",
        bag,
        _declare,
        guide="bags",
        rank=3,
        description=(
            "Compute a function for many values of its arguments on the VMs of a cluster, and "
            "learn a surrogate (a statistical model) of its results. A job that is lost with its "
            "VM restarts on another VM."
        ),
        entries=(
            Entry(
                "bag FILE.py [options]",
                "%%bag [options]",
                "Compute a function at many points, and learn a model of its results",
            ),
        ),
        check=check_bag,
        example="--over 'density=0.3:0.9 temperature=0.8:1.6' --jobs 200 --until 0.01",
        epilog=(
            "The code defines job(NAME, ..., seed, checkpoint), which returns a dict of numbers:\n"
            "  {{'pressure': p, 'pressure_error': e}}   pressure_error is the standard error of "
            "pressure\nThese arguments are optional:\n"
            "  seed         an integer that differs between jobs\n"
            "  checkpoint   checkpoint.load() returns the arrays that were saved last, or None;\n"
            "               checkpoint.save(arrays) saves them when a checkpoint is due, and at a "
            "preemption notice"
        ),
    ),
)
