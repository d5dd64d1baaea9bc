"""What may be said of a bag of jobs."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from ...protocol.bag.spec import BagSpec, parse_until
from ...spec import parse_name
from ..option import Option, duration, flag, hours, one_of, positive, share, space, whole
from .runs import split_paths
from .shared import LITERALS, OUTPUT, OWN_CLUSTER, WAIT


def bag() -> tuple[Option, ...]:
    """Those of a bag."""
    return (
        flag("--over", "at which points the function is computed: NAME=LOW:HIGH is a range, with :log evenly in its "
              "logarithm, with :int in whole numbers; NAME=A,B,C chooses. " + LITERALS, space,
              metavar="'NAME=VALUES ...'"),
        flag("--jobs", "how many results are wanted", whole("--jobs"), metavar="N"),
        flag("--spare", "so many more jobs are begun, and none is waited for (0.1)", share("--spare"), metavar="SHARE"),
        flag("--surrogate", "what is learnt of the results, and chooses further points: a Gaussian process (gp), an "
              "ensemble of small networks, or none (gp)", **one_of("--surrogate", _choices("surrogate"))),
        flag("--until", "end before all results are there, once the surrogate's standard deviation is below this "
              "everywhere, and its intervals hold: 0.01, or pressure=0.02,energy=0.01", _until, metavar="TOLERANCE"),
        flag("--policy", "which VM a job goes to: reuse (by its age) or memoryless (any) (reuse)",
              **one_of("--policy", _choices("policy"))),
        flag("--workers", "on how many VMs at once (all)", whole("--workers"), metavar="N"),
        flag("--job-time", "what one job takes, for the policy and for saving points (as measured)",
              duration("--job-time", "m"), name="job_seconds", metavar="TIME"),
        flag("--save-time", "what a checkpoint of a job takes; then it is saved where that is planned",
              duration("--save-time", "s"), name="save_seconds", metavar="TIME"),
        flag("--job-timeout", "a job is ended when it has run for so long, over all its VMs (no limit)",
              duration("--job-timeout", "m"), name="timeout_seconds", metavar="TIME"),
        flag("--memory", "a job is ended when it has more than so many GB in memory (what the VM has)",
              positive("--memory"), metavar="GB"),
        flag("--retries", "how often a job is begun again when it has failed; a revocation is no failure (1)",
              whole("--retries", 0), metavar="N"),
        flag("--max-cost", "the bag ends when it has cost so many US dollars", positive("--max-cost"),
              metavar="DOLLARS"),
        flag("--max-hours", "it ends after that time", hours("--max-hours"), metavar="TIME"),
        flag("--seed", "from it follow the points, and each job's own seed (0)", whole("--seed", 0), metavar="N"),
        flag("--include", "files and folders to send along, 200 MB at most; of a folder all files, such as .git and "
              ".env, and what links in it lead to; the function imports them", str, completes="path",
              many="extend", metavar="PATH"),
        flag("--pip", "packages to install on the VMs for this bag, by name or file", str, completes="path",
              many="extend", metavar="PACKAGE"),
        flag("--pip-build", "let --pip build packages without a wheel; their code then runs where the controller runs"),
        flag("--cluster", f"the cluster on which it runs {OWN_CLUSTER}", str, completes="cluster", metavar="NAME"),
        flag("--name", "the bag's name (bag-1, bag-2, ...)", lambda text: parse_name(text, "--name")),
        flag("--wait", WAIT.format("the bag is over")),
        OUTPUT,
    )  # fmt: skip


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
