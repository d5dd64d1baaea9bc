"""Declaring jobs: the folder of a job (declaration, cell, what goes with it) is written, and the controller told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import DeclarationError
from ..protocol import layout
from ..protocol.job import JobSpec
from ..spec import parse_name
from . import text
from .cell import as_declared, files_of, listed, packages
from .declaring import claims
from .declaring.refusals import of_option
from .declaring.runs import fill
from .finding import cluster as find_cluster
from .handles import Cluster, Job
from .training import refuse_when_ending

OF_A_CELL = f"python {layout.CELL}"
"""The command of a job whose code stands in a cell."""
_STEM = "job"
_ITS_OPTION = {
    "timeout_seconds": "job-timeout", "keep_seconds": "keep-every", "memory_bytes": "memory",
    "at_notice_seconds": "at-notice",
}  # fmt: skip


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

    It runs in a folder in which what `include` names lies, on `workers` VMs at once; `options` are fields of JobSpec:
    `keep`, `keep_seconds`, `at_notice_seconds`, `workers`, `retries`, `timeout_seconds`, `memory_bytes`. Raises
    DeclarationError or ClusterError.
    """
    chosen = cluster if isinstance(cluster, Cluster) else find_cluster(cluster)
    refuse_when_ending(chosen)
    include = listed(include)
    spec = chosen.state.spec
    name = parse_name(name, "--name") if name else None
    if name:
        claims.refuse_taken(chosen, "job", name)
    workers = options.get("workers") or 1
    if spec and workers > spec.worker_count:
        what = f"{chosen.name} has {text.count(spec.worker_count, 'worker')}, not {workers}"
        raise DeclarationError(what, where="--workers", fix="Take fewer, or resize the cluster first.")
    for each in include:
        if not Path(each).expanduser().exists():
            raise DeclarationError(f"There is no {each}", where="--include")
    wanted = packages(pip, build=bool(options.get("pip_build")))
    files = files_of(wanted)
    try:
        declared = JobSpec.from_dict({
            **{key: value for key, value in options.items() if value is not None},
            "name": name or f"{_STEM}-1", "command": command or OF_A_CELL, "cell": not command,
            "environment": environment or {}, "pip": as_declared(wanted, files),
            "include": tuple(Path(each).name for each in include), "declared_at": time.time(),
        })  # fmt: skip
    except ValueError as error:
        raise of_option(error, _ITS_OPTION) from None
    name = claims.declare(
        chosen,
        "job",
        name,
        stem=_STEM,
        record=lambda chosen_name: replace(declared, name=chosen_name).to_dict(),
        fill=lambda folder: fill(folder, source, include, files),
    )
    claims.announce(chosen, "job", name)
    return Job(name, chosen)
