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
"""The command of a job whose code stands in a cell."""
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
    """Declare a job and return at once: a `command` for a shell, or the Python code in `source`.

    It runs in a folder in which what `include` names lies, on `workers` VMs at once; `options` are
    fields of JobSpec: `keep`, `keep_seconds`, `at_notice_seconds`, `workers`, `retries`,
    `timeout_seconds`, `memory_bytes`. Raises DeclarationError or ClusterError.
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
    chosen = new.declare(lambda taken: replace(spec, name=taken).to_dict(), payload.fill)
    return Job(chosen, new.cluster)
