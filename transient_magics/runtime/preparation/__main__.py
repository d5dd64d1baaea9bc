"""A process of tf.data service: `python -m transient_magics.runtime.preparation`, the dispatcher or a preparation VM's.

Each ends as it is killed: nothing that either has is worth a last word.
"""

from __future__ import annotations

import importlib
import time
from typing import Any, NoReturn

from ...errors import TrainingError
from ..files import data_files
from ..protocol import host_and_port
from ..role import Role, log
from ..tf.graph_mode import prepare

_JOURNAL = "preparation"
_SILENT_SECONDS = 10.0
"""Without a word of a preparation VM for so long, what it had is another's."""
_HEARTBEAT_SECONDS = 1.0
_CHIEF_SECONDS = 900.0


def play(role: Role) -> NoReturn:
    """Serve until killed."""
    if role.assignment.role == "prep":
        _have_records(role)
    server = dispatcher(role) if role.assignment.role == "dispatcher" else preparer(role)
    log(f"{role.assignment.name} of {role.spec.name} serves")
    server.join()
    role.end(1)


def dispatcher(role: Role) -> Any:
    """The run's dispatcher, which goes on from its journal where there is one."""
    journal = role.folder.path / _JOURNAL
    journal.mkdir(exist_ok=True, mode=0o700)
    _, port = host_and_port(role.assignment.dispatcher)
    service = _service()
    config = service.DispatcherConfig(
        port=port, work_dir=str(journal), fault_tolerant_mode=True, worker_timeout_ms=int(1000 * _SILENT_SECONDS)
    )
    return service.DispatchServer(config)


def preparer(role: Role) -> Any:
    """A server that runs the pipeline on this VM."""
    given, service = role.assignment, _service()
    config = service.WorkerConfig(
        given.dispatcher,
        worker_address=f"{given.address}:%port%",
        heartbeat_interval_ms=int(1000 * _HEARTBEAT_SECONDS),
    )
    return service.WorkerServer(config)


def _have_records(role: Role) -> None:
    """Copy the records from the chief, unless every VM has them. Raises TrainingError."""
    deadline = time.monotonic() + _CHIEF_SECONDS
    while role.spec.data_folder is None:
        try:
            data_files.copy(role.assignment.chief, role.spec.token, role.folder.data, "whole")
            return
        except TrainingError as error:  # a chief may be away for longer than a copy tries
            if time.monotonic() > deadline:
                raise
            log(str(error))


def _service() -> Any:
    prepare()
    return importlib.import_module("tensorflow").data.experimental.service


if __name__ == "__main__":
    play(Role())
