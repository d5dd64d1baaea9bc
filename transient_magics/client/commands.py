"""Talking to a cluster's controller: start it where none is in charge, send a command, get the
answer.

The lock that a controller holds is the truth about whether there is one; the socket is how it is
spoken to.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .. import places
from ..errors import ClusterError, ControllerError, granted
from ..journal import kept
from ..journal.declared import unreadable
from ..journal.lock import held
from ..protocol import layout
from ..protocol.cluster_commands import Command, Ping

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
            return _ask(places.command_socket(directory.name), command, timeout)
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
        return str(_ask(places.command_socket(directory.name), Ping(), timeout).get("trouble", ""))
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


def _ask(path: Path, command: Command, timeout: float) -> dict[str, Any]:
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
