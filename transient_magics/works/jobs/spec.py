"""The declaration of a job: a command, the folder that outlives its VM, and its limits.

Clients, the controller and VMs share one record, which is JSON in `job.json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Self

from ...protocol import checks
from ...protocol.checks import Amount, Count, Name, at_least, is_path, within
from ...protocol.machines import MOST_LEASED, NOTICE_SECONDS

MOST_RETRIES = 100
LEAST_KEEP_SECONDS = 5.0
LEAST_AT_NOTICE_SECONDS = 15.0
"""Shorter than this, a command could not save and its folder could not be packed and copied."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
RESERVED = ("TRANSIENT_", "LD_")
"""Reserved prefixes of environment variables.

The first one is used by this package; variables with the other one could prevent its processes from
starting.
"""


def folder_or_none(value: str) -> str:
    """Return a folder below the working directory of the command, or the empty text.

    A trailing slash is removed. Raises ValueError for other paths.
    """
    if value != "/":
        name = value.rstrip("/")
    else:
        name = value
    name = name.removeprefix("./")
    if name and not is_path(name):
        raise ValueError(f"'{value:.80}' is not a folder below the one in which the command runs")
    return name


def _command(value: str) -> str:
    if not value.strip():
        raise ValueError("the command is empty")
    if "\0" in value:
        raise ValueError("the command must not contain NUL")
    return value


def variable_name(value: str) -> str:
    """Return a valid name of an environment variable. Raises ValueError."""
    if not _VARIABLE.fullmatch(value):
        raise ValueError(f"{value!r:.80} is not a name of a variable")
    if value.startswith(RESERVED):
        raise ValueError(
            f"{value} cannot be set, because names with {' or '.join(RESERVED)} are reserved"
        )
    return value


def _environment(value: Mapping[str, str]) -> Mapping[str, str]:
    for name, text in value.items():
        variable_name(name)
        if "\0" in text:
            raise ValueError(f"{name} must not contain NUL")
    return value


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A declared job: a shell `command` on `workers` VMs simultaneously.

    With `cell`, the command runs the `cell.py` in its folder. `keep` is a folder below the working
    directory of the command. It is sent every `keep_seconds` if it has changed, at a preemption
    notice, and at the end, and is restored on the next VM. Of several VMs, the folder of rank 0 is
    sent, and at the end of an attempt also what other ranks wrote in theirs.

    The command receives SIGTERM `at_notice_seconds` before a preemption ends its VM or that of
    another rank. A revocation is not a failure; a command that fails is retried `retries` times.
    `timeout_seconds` limits its running time over all successive VMs (None: no limit).
    `memory_bytes` limits its memory with all child processes (0: that of the VM). `pip` and
    `include` are those of a run.
    """

    name: Name
    command: Annotated[str, _command]
    cell: bool = False
    keep: Annotated[str, folder_or_none] = ""
    keep_seconds: Annotated[float, at_least(LEAST_KEEP_SECONDS)] = 180.0
    at_notice_seconds: Annotated[float, within(LEAST_AT_NOTICE_SECONDS, NOTICE_SECONDS)] = (
        NOTICE_SECONDS
    )
    workers: Annotated[int, within(1, MOST_LEASED)] = 1
    retries: Annotated[int, within(0, MOST_RETRIES)] = 0
    timeout_seconds: Amount | None = None
    memory_bytes: Count = 0
    environment: Annotated[Mapping[str, str], _environment] = field(default_factory=dict[str, str])
    pip: tuple[str, ...] = ()
    pip_build: bool = False
    include: tuple[str, ...] = ()
    declared_at: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values, from which `from_dict` creates an equal spec."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Create a spec from the values of `to_dict`; unknown fields are ignored.

        Raises ValueError with the invalid field.
        """
        return checks.built(cls, values)
