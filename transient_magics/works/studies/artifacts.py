"""The folder of a trial's run, copied from the folder of its study.

Each machine makes it from its own files, so no code comes from a VM with it. The declaration is
written last: a folder that has it is complete.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...controller.remote_controller.result_sync import Sync
from ...files import write_atomically
from ...journal import now
from ...journal.declared import read_declaration
from ...protocol import layout
from ...protocol.run import Value
from ...spec import run_store
from .spec import StudySpec
from .state import StudyState


def make(
    directory: Path,
    study: str,
    number: int,
    repeat: int,
    params: Mapping[str, Value],
    store: str | None,
) -> None:
    """Make the folder of a trial's run, unless it exists. Raises OSError or ClusterError.

    Parameters
    ----------
    directory
        The cluster's folder.
    study, number, repeat
        The study, the number of the trial, and the number of the repeat.
    params
        The parameters of the trial.
    store
        The run's place in a bucket; None without a bucket.
    """
    spec = read_declaration(directory, "study", study, StudySpec.from_dict).run_of(
        number, repeat, params
    )
    spec = replace(spec, token=secrets.token_hex(16), declared_at=now(), store=store)
    target = directory / layout.RUNS / spec.name
    if target.exists():
        return
    fresh = target.with_name(f".{spec.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(
        directory / layout.STUDIES / study, fresh, ignore=shutil.ignore_patterns(layout.STUDY)
    )
    fresh.chmod(0o700)
    write_atomically(fresh / layout.RUN, json.dumps(spec.to_dict(), indent=1))
    fresh.rename(target)


class StudySync(Sync[StudyState]):
    """Creates the folders of trials on a machine that follows the controller on a VM."""

    kind = "study"

    def makes(self, name: str) -> bool:
        """Make the folder of a trial of a study that this machine declared, as on the VM.

        Parameters that the study does not try come from another machine, so that run does, too.
        """
        directory = self.home.directory
        for study in self.works.values():
            for trial in study.trials.values():
                if name not in trial.runs or not self.folder(study.name).is_dir():
                    continue
                spec = read_declaration(directory, "study", study.name, StudySpec.from_dict)
                if name in spec.run_names(trial.number) and spec.tries(trial.params):
                    repeat = spec.run_names(trial.number).index(name)
                    store = run_store(self.home.spec, name)
                    make(directory, study.name, trial.number, repeat, trial.params, store)
                    return True
        return False


SYNC = StudySync
