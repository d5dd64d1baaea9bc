"""A process that waits for its role with everything imported, so that training begins seconds earlier.

TensorFlow and Tensor2Tensor take seconds to import, which pass while the run's code is checked, other VMs boot and
files are copied. The process is the role's own program without an assignment; that comes as a line on its
input, and the end of its input (the agent died) ends it. It is used once. Whoever finds none that lives starts the
role the plain way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .folder import RunFolder
from .role import environment

_MODULES = {"ps": "parameter_server", "worker": "worker"}


def spawn(role: str, name: str, folder: RunFolder, arguments: Sequence[str], stdin: int) -> subprocess.Popen[bytes]:
    """Start the program of a role in its run's folder, its output going to the role's log."""
    for path in (folder.path.parent, folder.path, folder.logs):  # it may come before the files of the run
        path.mkdir(exist_ok=True, mode=0o700)
    with open(log_file(folder, name), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.{_MODULES[role]}", "--run-folder", str(folder.path), *arguments],
            stdin=stdin,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder.path,
            env=environment(os.environ),
        )


def log_file(folder: RunFolder, name: str) -> Path:
    """Where the output of the role called `name` goes."""
    return folder.logs / f"{name}.log"


class Standby:
    """A process that waits to be `role` under `name` in the run of `folder`; `own`: its model is the cell's own."""

    def __init__(self, role: str, name: str, folder: RunFolder, *, own: bool) -> None:
        arguments = ["--standby", "own" if own else "registered"]
        self._process = spawn(role, name, folder, arguments, subprocess.PIPE)

    def take(self, arguments: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Give it the rest of its arguments; None if it has died."""
        assert self._process.stdin is not None
        try:
            with self._process.stdin as line:
                line.write(json.dumps(arguments).encode() + b"\n")
        except BrokenPipeError:
            self._process.wait()
            return None
        return self._process

    def end(self) -> None:
        """It is not needed any more."""
        self._process.kill()
        self._process.communicate()
