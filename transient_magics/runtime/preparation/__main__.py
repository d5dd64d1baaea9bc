"""A process of tf.data service: `python -m transient_magics.runtime.preparation`.

It is the dispatcher of a run, the server of a preparation VM, or both in one for trials that share
a VM. It ends when it is killed: it has nothing to save.
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
"""Time without a heartbeat after which a preparation VM's files go to others."""
_HEARTBEAT_SECONDS = 1.0
_CHIEF_SECONDS = 900.0
_KEPT_BYTES = 512 * 2**20
"""Size of the cache of mini-batches that the first of several trials has had.

A trial that is further behind misses some.
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
            _copy_records(role)
            servers = [preparer(role, role.assignment.dispatcher)]
    log(f"{role.assignment.name} of {role.assignment.run} serves")
    servers[0].join()
    role.end(1)


def dispatcher(role: Role, port: int) -> Any:
    """Start the run's dispatcher, which continues from its journal if there is one."""
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
    """Start the server that runs the pipeline on this VM."""
    service = _service()
    # TensorFlow's own class for this lacks the last field, whose default is ten gigabytes.
    config = importlib.import_module("tensorflow.core.protobuf.service_config_pb2").WorkerConfig(
        dispatcher_address=dispatcher,
        worker_address=f"{role.assignment.address}:%port%",
        protocol="grpc",
        heartbeat_interval_ms=int(1000 * _HEARTBEAT_SECONDS),
        cross_trainer_cache_size_bytes=_KEPT_BYTES,
    )
    return service.WorkerServer(config)


def shared(role: Role) -> list[Any]:
    """Start dispatcher and server in this process, for trials on this VM.

    Trials find its address in its folder. A restarted process has the same port.
    """
    address_file = role.folder.input_address
    port = 0
    if address_file.exists():
        port = host_and_port(address_file.read_text(encoding="utf-8"))[1]
    dispatch = dispatcher(role, port)
    _, port = host_and_port(dispatch.target.removeprefix(_SCHEME))
    address = f"{role.assignment.address}:{port}"
    server = preparer(role, address)
    write_atomically(address_file, address)
    return [dispatch, server]


def _copy_records(role: Role) -> None:
    """Copy the records from the chief, unless every VM has them. Raises TrainingError."""
    deadline = time.monotonic() + _CHIEF_SECONDS
    while role.spec.data_folder is None:
        try:
            data_files.copy(role.assignment.chief, role.spec.token, role.folder.data, "whole")
            return
        except TrainingError as error:  # the chief may be away for longer than a copy is tried
            if time.monotonic() > deadline:
                raise
            log(str(error))


def _service() -> Any:
    prepare()
    return importlib.import_module("tensorflow").data.experimental.service


if __name__ == "__main__":
    play(Role())
