"""The options of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...cli.option import Option, duration, environment_variable, flag, group, whole, word
from ..runs.options import split_paths
from ...cli.options.shared import (
    CLUSTER,
    FILES,
    INCLUDE,
    JOB_TIMEOUT,
    MEMORY,
    ON_CLUSTER,
    OUTPUT,
    PIP,
    PIP_BUILD,
    RETRIES,
    REVOCATIONS,
    name_of,
)


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
            INCLUDE,
            PIP,
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
            replace(RETRIES, default="0"),
        ),
        *group(
            "Limits",
            JOB_TIMEOUT,
            MEMORY,
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
            name_of("job"),
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
