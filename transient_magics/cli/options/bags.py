"""The options of a bag of jobs."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from ...protocol.bag.spec import BagSpec, parse_until
from ..option import Option, duration, flag, group, hours, new_name, one_of, positive, share, space, whole
from .runs import split_paths
from .shared import CLUSTER, COST, FILES, LITERALS, ON_CLUSTER, OUTPUT, PIP_BUILD, WAIT


def bag() -> tuple[Option, ...]:
    """Return the options of a bag."""
    return (
        *group(
            "Points and surrogate",
            flag(
                "--over",
                "the points at which to compute the function: NAME=LOW:HIGH is a range; add :log for even "
                "steps of its logarithm, :int for whole numbers; NAME=A,B,C chooses. " + LITERALS,
                space,
                metavar="'NAME=VALUES ...'",
            ),
            flag("--jobs", "how many results to compute", whole("--jobs"), metavar="N"),
            flag(
                "--spare",
                "the share of further jobs to start; the bag does not wait for them",
                share("--spare"),
                default="0.1",
                metavar="SHARE",
            ),
            flag(
                "--surrogate",
                "what learns from the results and chooses further points: a Gaussian process (gp), an "
                "ensemble of small networks, or none",
                default="gp",
                **one_of("--surrogate", _choices("surrogate")),
            ),
            flag(
                "--until",
                "end early, once the surrogate's standard deviation is below this everywhere, and its "
                "intervals hold: 0.01, or pressure=0.02,energy=0.01",
                _until,
                metavar="TOLERANCE",
            ),
            flag(
                "--seed",
                "the seed of the points, and of each job's own seed",
                whole("--seed", 0),
                default="0",
                metavar="N",
            ),
        ),
        *group(
            "Jobs",
            flag(
                "--policy",
                "which VM a job goes to: reuse (by its age) or memoryless (any)",
                default="reuse",
                **one_of("--policy", _choices("policy")),
            ),
            flag(
                "--job-time",
                "how long one job takes, for the policy and for saving points",
                duration("--job-time", "m"),
                default="as measured",
                name="job_seconds",
                metavar="TIME",
            ),
            flag(
                "--save-time",
                "how long a checkpoint of a job takes; with it checkpoints are planned",
                duration("--save-time", "s"),
                name="save_seconds",
                metavar="TIME",
            ),
            flag(
                "--job-timeout",
                "end a job that has run for this time, over all its VMs",
                duration("--job-timeout", "m"),
                default="no limit",
                name="timeout_seconds",
                metavar="TIME",
            ),
            flag(
                "--memory",
                "end a job that has more than this many GB in memory",
                positive("--memory"),
                default="the VM's memory",
                metavar="GB",
            ),
            flag(
                "--retries",
                "how often to restart a failed job; a revocation is not a failure",
                whole("--retries", 0),
                default="1",
                metavar="N",
            ),
        ),
        *group(
            FILES,
            flag(
                "--include",
                "send files and folders along, 200 MB at most. A folder is sent with all files, such as "
                ".git and .env, and with the targets of its links. The function imports them",
                str,
                completes="path",
                many="extend",
                metavar="PATH",
            ),
            flag(
                "--pip",
                "install packages on the VMs for this bag, by name or file",
                str,
                completes="path",
                many="extend",
                metavar="PACKAGE",
            ),
            PIP_BUILD,
        ),
        *group(
            COST,
            flag(
                "--max-cost",
                "end the bag when it has cost this many US dollars",
                positive("--max-cost"),
                metavar="DOLLARS",
            ),
            flag("--max-hours", "end the bag after this time", hours("--max-hours"), metavar="TIME"),
        ),
        *group(
            CLUSTER,
            ON_CLUSTER,
            flag("--workers", "how many VMs compute at a time", whole("--workers"), default="all", metavar="N"),
            flag("--name", "the bag's name", new_name, default="bag-1, bag-2, ..."),
            flag("--wait", WAIT.format("the bag is over")),
            OUTPUT,
        ),
    )


def check_bag(values: dict[str, Any], called: str) -> None:
    """What a bag cannot be without."""
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
