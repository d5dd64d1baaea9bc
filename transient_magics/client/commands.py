"""Commands to a cluster's controller, and short programs in processes of their own.

A controller holds a lock while it runs, and receives commands on its socket.
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
    checked_answer,
    reason_of,
)
from ..journal import kept
from ..journal.declared import unreadable
from ..journal.lock import is_locked
from ..protocol import layout
from ..protocol.cluster_commands import Command, Ping
from ..runtime.role import environment

_START_SECONDS = 20.0
_START_AGAIN_SECONDS = 5.0
SWEPT = "To find its VMs: `transient cluster sweep`."


def in_charge(directory: Path) -> bool:
    """Return whether a process holds the lock of the cluster, or image build, in `directory`."""
    return is_locked(directory)


def start_controller(directory: Path) -> subprocess.Popen[bytes]:
    """Start a controller that outlives this process.

    It exits if another controller holds the lock.
    """
    return start("", directory)


@places.reporting()
def start(program: str, directory: Path) -> subprocess.Popen[bytes]:
    """Start a program of `transient_magics.controller` that outlives this process.

    Parameters
    ----------
    program
        The module; empty for the controller itself.
    directory
        The folder of the cluster or of the image build.

    Raises
    ------
    ControllerError
        This machine cannot start the process.
    HomeError
        The log cannot be written.
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
                f"The controller of {directory.name} could not be started: {reason_of(error)}"
            ) from error


@places.reporting()
def send(directory: Path, command: Command, timeout: float = 30.0) -> dict[str, Any]:
    """Send a command to a cluster's controller and return the answer.

    A controller is started if none is running.

    Parameters
    ----------
    directory
        The folder of the cluster.
    command
        The command.
    timeout
        The time limit of the answer, in seconds.

    Raises
    ------
    TransientError
        The controller refused the command.
    ControllerError
        The controller does not answer.
    ClusterError
        The cluster is deleted, or its folder is unreadable.
    """
    deadline = time.monotonic() + _START_SECONDS
    started = 0.0
    while True:
        # Checked repeatedly: a controller that is being killed holds its lock to the end.
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
                    what, fix=f"See its log: {directory / layout.CONTROLLER_LOG}"
                ) from None
            time.sleep(0.05)


def trouble(directory: Path, timeout: float = 2.0) -> str:
    """Return the present trouble from the controller, in a sentence; empty if there is none.

    The journal does not have trouble such as a full disk, or a controller that does not answer.
    """
    try:
        return str(
            _request(places.command_socket(directory.name), Ping(), timeout).get("trouble", "")
        )
    except ControllerError:
        return f"the controller of {directory.name} has not answered within {timeout:.0f} s"
    except OSError:  # the controller is starting, or has just ended
        return ""


def _refuse_deleted(directory: Path) -> None:
    state = kept(directory / layout.JOURNAL).read()
    if state.over:
        name = directory.name
        if directory.parent == places.past():
            name = state.name
        raise ClusterError(f"{name} is deleted", fix="Declare another cluster.")


def _line(command: Command) -> bytes:
    try:
        return command.encoded
    except ValueError as error:
        raise ClusterError(f"The command cannot be sent: {error}") from None


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
            raise ControllerError(
                f"The controller did not answer within {timeout:.0f} s",
                fix="Try again in a moment.",
            ) from None
    return checked_answer(json.loads(answer))


def run_program(
    name: str, what: str, *arguments: str, stdin: str = "", timeout: float = 300.0
) -> dict[str, Any]:
    """Run the program `transient_magics.controller.programs.NAME` and return its answer.

    Parameters
    ----------
    name
        The module.
    what
        The first words of the error if the program gives no reason, such as `Fetching`.
    arguments
        The arguments of the program.
    stdin
        The text that it reads.
    timeout
        The time limit, in seconds.

    Raises
    ------
    CloudError
        The program failed. Errors of other types that it reports are raised as they are.
    """
    return _run_module(
        f"controller.programs.{name}", what, arguments, CloudError, stdin=stdin, timeout=timeout
    )


def fetch(store: str, project: str | None, folder: Path, *, results: bool) -> None:
    """Copy checkpoints, and with `results` everything else, of a run from its bucket to `folder`.

    Raises
    ------
    CloudError
        The copy failed.
    """
    request = {
        "store": store,
        "project": project,
        "folder": str(folder.absolute()),
        "results": results,
    }
    run_program("fetch", "Fetching", stdin=json.dumps(request), timeout=6 * 3600.0)


_TAKE_AWAY = "or copy the run with run.fetch(FOLDER) to a machine that has them."


def run_model_program(
    what: str,
    *arguments: str,
    program: str = "serve",
    otherwise: str = _TAKE_AWAY,
    timeout: float = 3600.0,
) -> dict[str, Any]:
    """Run a program of `transient_magics.runtime.programs`, which needs TensorFlow here.

    Parameters
    ----------
    what
        The first words of errors, such as `A prediction of run-1`.
    arguments
        The arguments of the program.
    program
        The module.
    otherwise
        The advice if the training stack is not installed.
    timeout
        The time limit, in seconds.

    Raises
    ------
    TrainingError or CellError
        The program failed, or the training stack is not installed on this machine.
    """
    from importlib.util import find_spec

    if missing := [name for name in ("tensorflow", "tensor2tensor") if find_spec(name) is None]:
        raise TrainingError(
            f"{what} needs TensorFlow and Tensor2Tensor, but {missing[0]} is not installed here",
            fix=f"Run `make venv` in a checkout to install them; {otherwise}",
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
        *_, reason = ["no answer", *ended.stderr.strip().splitlines()]
        raise failure(f"{what} failed: {reason}") from None
    if "error" in answer:
        raise errors.from_message(answer, failure)
    return answer
