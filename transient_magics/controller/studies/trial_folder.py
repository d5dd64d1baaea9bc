"""The folder of a trial's run, made from its study's: whole or not at all, its declaration last."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...files import write_atomically
from ...journal import now
from ...journal.declared import declared_study
from ...protocol import layout
from ...protocol.run import Value


def make(directory: Path, study: str, number: int, repeat: int, params: Mapping[str, Value], store: str | None) -> None:
    """Make the folder of a trial's run in the cluster's, unless it is there. Raises OSError or ClusterError.

    `store`: the run's place in a bucket, where it has one.
    """
    spec = declared_study(directory, study).run_of(number, repeat, params)
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
