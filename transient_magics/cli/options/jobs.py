"""What may be said of a job."""

from __future__ import annotations

from typing import Any

from ...spec import parse_name
from ..option import Option, duration, environment_variable, flag, positive, whole, word
from .runs import split_paths
from .shared import OUTPUT, OWN_CLUSTER


def job() -> tuple[Option, ...]:
    """Those of a job."""
    return (
        word("command", "COMMAND", "what runs, for a shell, in quotes: \"python train.py\"; without it the cell does",
             many="?"),
        flag("--keep", "a folder below the one in which it runs: brought here every few minutes and at the notice, "
              "it is there again on the next VM", str, metavar="FOLDER"),
        flag("--keep-every", "how often it is, where it has changed (3m)", duration("--keep-every", "m"),
              name="keep_seconds", metavar="TIME"),
        flag("--at-notice", "how long before a preemption ends a VM the command receives SIGTERM, 15s to 30s; before "
             "that the file TRANSIENT_NOTICE tells the end (default: 30s, which is at the usual notice)",
             duration("--at-notice", "s"), name="at_notice_seconds", metavar="TIME"),
        flag("--include", "files and folders to send along, 200 MB at most; of a folder all files, such as .git and "
              ".env, and what links in it lead to; it runs beside them", str, completes="path", many="extend",
              metavar="PATH"),
        flag("--pip", "packages to install on the VMs for this job, by name or file", str, completes="path",
              many="extend", metavar="PACKAGE"),
        flag("--pip-build", "let --pip build packages without a wheel; their code then runs where the controller runs"),
        flag("--workers", "on how many VMs it runs at once, each with its RANK (1)", whole("--workers"), metavar="N"),
        flag("--env", "a variable of its environment", environment_variable, name="environment", many="extend",
              metavar="NAME=VALUE"),
        flag("--retries", "how often it is begun again when it has failed; a revocation is no failure (0)",
              whole("--retries", 0), metavar="N"),
        flag("--job-timeout", "it is ended when it has run for so long, over all VMs that it had (no limit)",
              duration("--job-timeout", "m"), name="timeout_seconds", metavar="TIME"),
        flag("--memory", "it is ended when it has more than so many GB in memory (what the VM has)",
              positive("--memory"), metavar="GB"),
        flag("--cluster", f"the cluster on which it runs {OWN_CLUSTER}", str, completes="cluster", metavar="NAME"),
        flag("--name", "the job's name (job-1, job-2, ...)", lambda text: parse_name(text, "--name")),
        flag("--wait", "wait until the job is over, and show its output meanwhile"),
        OUTPUT,
    )  # fmt: skip


def check_job(values: dict[str, Any], called: str) -> None:
    """One option, one field."""
    if "environment" in values:
        values["environment"] = dict(values["environment"])
    if "memory" in values:
        values["memory_bytes"] = round(values.pop("memory") * 1e9)
    split_paths(values)
