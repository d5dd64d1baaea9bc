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
            'the shell command, in quotes: "python train.py"; without it, the code of the cell '
            "runs",
            many="?",
        ),
        *group(
            FILES,
            INCLUDE,
            PIP,
            PIP_BUILD,
            flag(
                "--env",
                "set an environment variable of the command",
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
                "keep this folder of the job's working directory. It is copied to this machine at "
                "intervals and at a preemption notice, and restored on the next VM",
                str,
                metavar="FOLDER",
            ),
            flag(
                "--keep-every",
                "time between two copies of the kept folder, if it has changed",
                duration("--keep-every", "m"),
                default="3m",
                name="keep_seconds",
                metavar="TIME",
            ),
            flag(
                "--at-notice",
                "send SIGTERM to the command this long before a preempted VM ends, 15s to 30s. "
                "The file in TRANSIENT_NOTICE contains the time of the end",
                duration("--at-notice", "s"),
                default="30s, at the standard notice",
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
                "number of VMs on which the command runs at the same time, each with its own RANK",
                whole("--workers"),
                default="1",
                metavar="N",
            ),
            name_of("job"),
            flag("--wait", "wait until the job has ended, and show its output"),
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
Environment variables of the command:
  TRANSIENT_KEEP       the path of the kept folder
  TRANSIENT_ATTEMPT    the number of the attempt: 1, 2, ...
  TRANSIENT_ADDRESSES  the addresses of all VMs of the job, rank 0 first
  TRANSIENT_NOTICE     the path of the notice file
  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT   as PyTorch uses them
At a preemption notice, the notice file appears. It contains the time at which a VM of the job ends,
in seconds since 1970. The command receives SIGTERM on all its VMs --at-notice before that time, and
has 15 seconds to save its work (9 seconds with --at-notice 20s)."""

COMMANDS = (
    WorkCommand(
        "job",
        job,
        _declare,
        guide="jobs",
        rank=2,
        description=(
            "Run any command, or the Python code of a cell, on VMs of a cluster. A folder of the "
            "job can be kept when a VM is lost."
        ),
        entries=(
            Entry(
                'job "COMMAND" [options]',
                '%job "COMMAND" [options]',
                "Run any command on VMs, and keep a folder when a VM is lost",
            ),
            Entry("", "%%job [options]", "Run the cell on VMs"),
        ),
        check=check_job,
        example='"python train.py" --include train.py --keep checkpoints',
        epilog=_EPILOG,
        from_file=False,
    ),
)
