"""Commands to a cluster's controller, and short programs in processes of their own.

The lock that a controller holds shows whether one is running; its socket takes the commands.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import errors, places
from ..errors import (
    CloudError,
    ClusterError,
    ControllerError,
    TrainingError,
    TransientError,
    granted,
)
from ..journal import kept
from ..journal.declared import unreadable
from ..journal.lock import held
from ..protocol import layout
from ..protocol.cluster_commands import Command, Ping
from ..runtime.role import environment

_START_SECONDS = 20.0
_START_AGAIN_SECONDS = 5.0
SWEPT = "`transient cluster sweep` finds its VMs."


def in_charge(directory: Path) -> bool:
    """Whether a program holds the lock of the cluster, or the image's build, in `directory`."""
    return held(directory)


def start_controller(directory: Path) -> subprocess.Popen[bytes]:
    """Start a controller that outlives this process. One that finds another in charge ends by
    itself.
    """
    return start("", directory)


@places.reporting()
def start(program: str, directory: Path) -> subprocess.Popen[bytes]:
    """Start a program of the controller's (empty: the controller itself) on `directory`; it
    outlives this process.

    Raises ControllerError where this machine cannot start it, and HomeError where its log cannot be
    written.
    """
    module = f"transient_magics.controller.{program}".rstrip(".")
    with (directory / layout.CONTROLLER_LOG).open("ab") as log:
        try:
            return subprocess.Popen(
                [sys.executable, "-m", module, directory.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise ControllerError(
                f"The controller of {directory.name} could not be started: {error}"
            ) from error


@places.reporting()
def send(directory: Path, command: Command, timeout: float = 30.0) -> dict[str, Any]:
    """The controller's answer to `command`, starting a controller where none is in charge.

    Raises the error that the controller answered with, ControllerError when it does not answer, and
    ClusterError where there can be no controller: the cluster is deleted, or its folder cannot be
    read.
    """
    deadline = time.monotonic() + _START_SECONDS
    started = 0.0
    while True:
        # Looked at again and again: one that is just being killed holds its lock to the end.
        if time.monotonic() - started > _START_AGAIN_SECONDS and not in_charge(directory):
            _refuse_deleted(directory)
            if why := unreadable(directory):
                raise ClusterError(why, fix=SWEPT)
            start_controller(directory)
            started = time.monotonic()
        try:
            return _request(places.command_socket(directory.name), command, timeout)
        except (FileNotFoundError, ConnectionError):
            _refuse_deleted(directory)
            if time.monotonic() > deadline:
                what = f"The controller of {directory.name} does not answer"
                raise ControllerError(
                    what, fix=f"Its log: {directory / layout.CONTROLLER_LOG}"
                ) from None
            time.sleep(0.05)


def trouble(directory: Path, timeout: float = 2.0) -> str:
    """The present trouble as the controller itself reports it, in a sentence; empty where no
    controller can be reached.

    A journal on a full disk does not have it, nor that the controller stands still.
    """
    try:
        return str(
            _request(places.command_socket(directory.name), Ping(), timeout).get("trouble", "")
        )
    except ControllerError:
        return f"the controller of {directory.name} has not answered within {timeout:.0f} s"
    except OSError:  # it starts, or has just ended
        return ""


def _refuse_deleted(directory: Path) -> None:
    state = kept(directory / layout.JOURNAL).read()
    if state.over:
        if directory.parent == places.past():
            name = state.name
        else:
            name = directory.name
        raise ClusterError(f"{name} is deleted", fix="Declare another cluster.")


def _line(command: Command) -> bytes:
    try:
        return command.encoded
    except ValueError as error:
        raise ClusterError(f"What is asked of the cluster cannot be sent: {error}") from None


def _request(path: Path, command: Command, timeout: float) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(timeout)
        line.connect(str(path))
        line.sendall(_line(command))
        answer = b""
        try:
            while not answer.endswith(b"\n"):
                piece = line.recv(65536)
                if not piece:
                    raise ConnectionRefusedError("the controller ended before it answered")
                answer += piece
        except TimeoutError:
            raise ControllerError(f"The controller did not answer within {timeout:.0f} s") from None
    return granted(json.loads(answer))


def run_program(
    name: str, what: str, *arguments: str, stdin: str = "", timeout: float = 300.0
) -> dict[str, Any]:
    """The answer of `transient_magics.controller.programs.NAME`, within `timeout` seconds.

    CloudError with its reason, or that `what` failed.
    """
    return _run_module(
        f"controller.programs.{name}", what, arguments, CloudError, stdin=stdin, timeout=timeout
    )


def fetch(store: str, project: str | None, folder: Path, *, results: bool) -> None:
    """Bring checkpoints, and `results` if wanted, from a run's place in a bucket into `folder`.
    Raises CloudError.
    """
    request = {
        "store": store,
        "project": project,
        "folder": str(folder.absolute()),
        "results": results,
    }
    run_program("fetch", "Fetching", stdin=json.dumps(request), timeout=6 * 3600.0)


_TAKE_AWAY = "run.fetch(FOLDER) takes what it needs to a machine that has it."


def run_model_program(
    what: str,
    *arguments: str,
    program: str = "serve",
    otherwise: str = _TAKE_AWAY,
    timeout: float = 3600.0,
) -> dict[str, Any]:
    """The answer of a `program` of `transient_magics.runtime.programs`, which needs the training
    stack on this machine.

    TrainingError or CellError with its reason, or that `what` failed; where the stack is not here,
    with what to do `otherwise`.
    """
    from importlib.util import find_spec

    if missing := [name for name in ("tensorflow", "tensor2tensor") if find_spec(name) is None]:
        raise TrainingError(
            f"{what} needs the training stack, and {missing[0]} is not installed on this machine",
            fix=f"`make venv` brings it; {otherwise}",
        )
    own = environment(os.environ)
    return _run_module(
        f"runtime.programs.{program}",
        what,
        arguments,
        TrainingError,
        timeout=timeout,
        environment=own,
    )


def _run_module(
    module: str,
    what: str,
    arguments: tuple[str, ...],
    failure: type[TransientError],
    *,
    stdin: str = "",
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    command = [sys.executable, "-m", f"transient_magics.{module}", *arguments]
    try:
        ended = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
            cwd="/",
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise failure(f"{what} did not end within {timeout:.0f} s") from None
    try:
        answer = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = ended.stderr.strip().splitlines()
        raise failure(f"{what} failed: {said[-1] if said else 'no answer'}") from None
    if "error" in answer:
        raise errors.from_record(answer, failure)
    return answer
