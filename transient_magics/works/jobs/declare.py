"""The declaration of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...client.cluster_handle import Cluster
from ...client.declaring.payload import Payload
from ...client.new_work import NewWork
from ...protocol import layout
from .handle import Job
from .spec import JobSpec

OF_A_CELL = f"python {layout.CELL}"
"""The command of a job whose code is in a cell."""
_ITS_OPTION = {
    "timeout_seconds": "job-timeout",
    "keep_seconds": "keep-every",
    "memory_bytes": "memory",
    "at_notice_seconds": "at-notice",
}


def declare_job(
    command: str = "",
    *,
    source: str = "",
    cluster: Cluster | str | None = None,
    name: str | None = None,
    include: str | Sequence[str] = (),
    environment: dict[str, str] | None = None,
    pip: str | Sequence[str] = (),
    **options: Any,
) -> Job:
    """Declare a job, and return its handle without waiting.

    Parameters
    ----------
    command
        A command for a shell.
    source
        Python code to run instead of a command.
    cluster
        The cluster or its name (default: the current one).
    name
        A name (default: the next free one, `job-1`).
    include
        Files and folders that are copied to the working directory of the job.
    environment
        Environment variables of the command.
    pip
        Packages that it needs.
    options
        Fields of `JobSpec`: `keep`, `keep_seconds`, `at_notice_seconds`, `workers`, `retries`,
        `timeout_seconds`, `memory_bytes`.

    Raises
    ------
    DeclarationError
        A value is invalid.
    ClusterError
        There is no such cluster, or it cannot run a job now.
    """
    new = NewWork("job", cluster, name)
    payload = Payload.of(source, include, pip, build=bool(options.get("pip_build")))
    values = {
        **options,
        "command": command or OF_A_CELL,
        "cell": not command,
        "environment": environment or {},
    }
    spec = new.specify(JobSpec.from_dict, values, payload, _ITS_OPTION)
    chosen = new.declare(lambda free_name: replace(spec, name=free_name).to_dict(), payload.fill)
    return Job(chosen, new.cluster)
