"""The options of a job."""

from __future__ import annotations

from typing import Any

from ..option import Option, duration, environment_variable, flag, group, new_name, positive, whole, word
from .runs import split_paths
from .shared import CLUSTER, FILES, ON_CLUSTER, OUTPUT, PIP_BUILD, REVOCATIONS


def job() -> tuple[Option, ...]:
    """Return the options of a job."""
    return (
        word(
            "command",
            "COMMAND",
            'the command for a shell, in quotes: "python train.py"; without it the cell runs',
            many="?",
        ),
        *group(
            FILES,
            flag(
                "--include",
                "send files and folders along, 200 MB at most. A folder is sent with all files, such as "
                ".git and .env, and with the targets of its links. The job runs beside them",
                str,
                completes="path",
                many="extend",
                metavar="PATH",
            ),
            flag(
                "--pip",
                "install packages on the VMs for this job, by name or file",
                str,
                completes="path",
                many="extend",
                metavar="PACKAGE",
            ),
            PIP_BUILD,
            flag(
                "--env",
                "a variable of its environment",
                environment_variable,
                name="environment",
                many="extend",
                metavar="NAME=VALUE",
            ),
        ),
        *group(
            REVOCATIONS,
            flag(
                "--keep",
                "a folder in the job's working directory that is copied here every few minutes and at the "
                "notice; the next VM starts with it",
                str,
                metavar="FOLDER",
            ),
            flag(
                "--keep-every",
                "how often to copy that folder when it has changed",
                duration("--keep-every", "m"),
                default="3m",
                name="keep_seconds",
                metavar="TIME",
            ),
            flag(
                "--at-notice",
                "how long before a preemption ends a VM to send SIGTERM to the command, 15s to 30s; "
                "before that the file TRANSIENT_NOTICE has the time of the end",
                duration("--at-notice", "s"),
                default="30s, at the usual notice",
                name="at_notice_seconds",
                metavar="TIME",
            ),
            flag(
                "--retries",
                "how often to restart the job when it has failed; a revocation is not a failure",
                whole("--retries", 0),
                default="0",
                metavar="N",
            ),
        ),
        *group(
            "Limits",
            flag(
                "--job-timeout",
                "end the job when it has run for this time, over all its VMs",
                duration("--job-timeout", "m"),
                default="no limit",
                name="timeout_seconds",
                metavar="TIME",
            ),
            flag(
                "--memory",
                "end the job when it has more than this many GB in memory",
                positive("--memory"),
                default="the VM's memory",
                metavar="GB",
            ),
        ),
        *group(
            CLUSTER,
            ON_CLUSTER,
            flag(
                "--workers",
                "how many VMs it runs on simultaneously, each with its RANK",
                whole("--workers"),
                default="1",
                metavar="N",
            ),
            flag("--name", "the job's name", new_name, default="job-1, job-2, ..."),
            flag("--wait", "wait until the job is over, and show its output"),
            OUTPUT,
        ),
    )


def check_job(values: dict[str, Any], called: str) -> None:
    """One option, one field."""
    if "environment" in values:
        values["environment"] = dict(values["environment"])
    if "memory" in values:
        values["memory_bytes"] = round(values.pop("memory") * 1e9)
    split_paths(values)
