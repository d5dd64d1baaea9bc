"""The folder of a trial's run, made from its study's: whole or not at all, its declaration last."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...errors import ClusterError
from ...files import write_atomically
from ...journal import ClusterState, now
from ...protocol import checks, layout
from ...protocol.run import Value
from ...protocol.study import StudySpec


def declared(directory: Path, study: str) -> StudySpec:
    """What this machine's user declared of a study of the cluster in `directory`. Raises ClusterError."""
    path = directory / layout.STUDIES / study / layout.STUDY
    try:
        return StudySpec.from_dict({**checks.parsed_object(path.read_bytes()), "name": study})
    except (OSError, ValueError) as error:
        raise ClusterError(f"The declaration of {study} cannot be read: {error}", where=str(path)) from error


def trial_of(state: ClusterState, run: str) -> str:
    """Return the study of the cluster that has runs of such a name, or nothing."""
    return next((name for name in state.studies if run.startswith(f"{name}-")), "")


def make(directory: Path, study: str, number: int, repeat: int, params: Mapping[str, Value], store: str | None) -> None:
    """Make the folder of a trial's run in the cluster's, unless it is there. Raises OSError or ClusterError.

    `store`: the run's place in a bucket, where it has one.
    """
    spec = declared(directory, study).run_of(number, repeat, params)
    spec = replace(spec, token=secrets.token_hex(16), declared_at=now(), store=store)
    target = directory / layout.RUNS / spec.name
    if target.exists():
        return
    fresh = target.with_name(f".{spec.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(directory / layout.STUDIES / study, fresh, ignore=shutil.ignore_patterns(layout.STUDY))
    fresh.chmod(0o700)
    write_atomically(fresh / layout.RUN, json.dumps(spec.to_dict(), indent=1))
    fresh.rename(target)
