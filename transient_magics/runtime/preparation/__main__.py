"""A process of tf.data service: `python -m transient_magics.runtime.preparation`, the dispatcher or
a preparation VM's.

Each ends as it is killed: nothing that either has is worth a last word.
"""

from __future__ import annotations

import importlib
import time
from typing import Any, NoReturn

from ...errors import TrainingError
from ...files import write_atomically
from ..files import data_files
from ..role import Role, host_and_port, log
from ..tf.graph_mode import prepare

_JOURNAL = "preparation"
_SILENT_SECONDS = 10.0
"""Without a word of a preparation VM for so long, what it had is another's."""
_HEARTBEAT_SECONDS = 1.0
_CHIEF_SECONDS = 900.0
_KEPT_BYTES = 512 * 2**20
"""Of mini-batches that the first of several trainers has had; who falls back further passes over
some.
"""
_SCHEME = "grpc://"


def play(role: Role) -> NoReturn:
    """Serve until killed."""
    match role.assignment.role:
        case "dispatcher":
            servers = [dispatcher(role, host_and_port(role.assignment.dispatcher)[1])]
        case "input":
            servers = shared(role)
        case _:
            _have_records(role)
            servers = [preparer(role, role.assignment.dispatcher)]
    log(f"{role.assignment.name} of {role.assignment.run} serves")
    servers[0].join()
    role.end(1)


def dispatcher(role: Role, port: int) -> Any:
    """The run's dispatcher, which goes on from its journal where there is one."""
    journal = role.folder.path / _JOURNAL
    journal.mkdir(exist_ok=True, mode=0o700)
    service = _service()
    config = service.DispatcherConfig(
        port=port,
        work_dir=str(journal),
        fault_tolerant_mode=True,
        worker_timeout_ms=int(1000 * _SILENT_SECONDS),
    )
    return service.DispatchServer(config)


def preparer(role: Role, dispatcher: str) -> Any:
    """A server that runs the pipeline on this VM."""
    service = _service()
    # TensorFlow's own class for this lacks the last field; without it ten gigabytes are kept.
    config = importlib.import_module("tensorflow.core.protobuf.service_config_pb2").WorkerConfig(
        dispatcher_address=dispatcher,
        worker_address=f"{role.assignment.address}:%port%",
        protocol="grpc",
        heartbeat_interval_ms=int(1000 * _HEARTBEAT_SECONDS),
        cross_trainer_cache_size_bytes=_KEPT_BYTES,
    )
    return service.WorkerServer(config)


def shared(role: Role) -> list[Any]:
    """Both in this process, for trainers on this VM, which find it by its folder; its port stays."""
    told = role.folder.input_address
    if told.exists():
        port = host_and_port(told.read_text(encoding="utf-8"))[1]
    else:
        port = 0
    of_all = dispatcher(role, port)
    _, port = host_and_port(of_all.target.removeprefix(_SCHEME))
    address = f"{role.assignment.address}:{port}"
    server = preparer(role, address)
    write_atomically(told, address)
    return [of_all, server]


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
