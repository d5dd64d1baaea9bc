"""The options of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cli.option import Entry, Option, duration, flag, group, whole, word
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
    split_paths,
)
from ...cli.options.work import Code, WorkCommand, with_included
from ...errors import DeclarationError
from .spec import variable_name

if TYPE_CHECKING:
    from .handle import Job


def environment_variable(text: str) -> tuple[str, str]:
    """Read `NAME=VALUE` of a job's environment; any value is valid. Raises DeclarationError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise DeclarationError(f"Invalid --env '{text}'", fix="Write NAME=VALUE.")
    try:
        return variable_name(name), value
    except ValueError as error:
        raise DeclarationError(f"Invalid --env: {error}") from None


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
                "a folder in the job's working directory that is copied here every few minutes and "
                "at the notice; the next VM starts with it",
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
                "how long before a preemption ends a VM to send SIGTERM to the command, 15s to "
                "30s; the file TRANSIENT_NOTICE has the time of the end",
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
    """Convert values of options to fields of the declaration."""
    if "environment" in values:
        values["environment"] = dict(values["environment"])
    if "memory" in values:
        values["memory_bytes"] = round(values.pop("memory") * 1e9)
    split_paths(values)


def _declare(values: dict[str, Any], code: Code) -> Job:
    """Declare a job of a command, or of the code."""
    from ...client import cell
    from .declare import declare_job

    _refuse_command_and_code(values, code)
    values = with_included(values)
    words = values.get("command", "").split()
    if not words:
        cell.check_syntax(code.source, code.line_offset)
    for path in map(Path, values["include"]):
        if path.suffix == ".py" and path.name in words and path.is_file():
            cell.check_syntax(path.read_text(encoding="utf-8", errors="replace"), file=path.name)
    return declare_job(values.pop("command", ""), source=code.source, **values)


def _refuse_command_and_code(values: Mapping[str, Any], code: Code) -> None:
    """Raise DeclarationError unless there is either a command or code."""
    if bool(values.get("command")) != bool(code.source):
        return
    if not code.called.startswith("%"):
        raise DeclarationError(
            f"{code.called} needs a command", fix=f'For example: {code.called} "python train.py"'
        )
    name = code.called.lstrip("%")
    what = "A job needs a command, or code below it"
    if code.source:
        what += ", not both"
    raise DeclarationError(
        what, fix=f'Write %{name} "python train.py", or %%{name} and the code below it.'
    )


_EPILOG = """\
Its environment has TRANSIENT_KEEP (the folder that is kept), TRANSIENT_ATTEMPT (1, 2, ...), RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT and TRANSIENT_ADDRESSES (of all its VMs, rank 0 first).
At a preemption notice the file TRANSIENT_NOTICE appears. It has the time at which a VM of the job
ends, in seconds since 1970. The command receives SIGTERM on all its VMs --at-notice before that,
and has 15 seconds (with --at-notice 20s: 9) to save its work."""

COMMANDS = (
    WorkCommand(
        "job",
        job,
        _declare,
        guide="jobs",
        rank=2,
        description=(
            "Run any command, or the Python code of a cell, on VMs of a cluster, with a folder "
            "that outlives them."
        ),
        entries=(
            Entry(
                'job "COMMAND" [options]',
                '%job "COMMAND" [options]',
                "Run any command on VMs, with a folder that outlives them",
            ),
            Entry("", "%%job [options]", "Run the cell on VMs"),
        ),
        check=check_job,
        example='"python train.py" --include train.py --keep checkpoints',
        epilog=_EPILOG,
        from_file=False,
    ),
)
