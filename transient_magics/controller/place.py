"""Where this process, a controller, runs: on a user's machine, or on a VM of its cluster; and its
socket there.
"""

from __future__ import annotations

import os
from pathlib import Path

from .. import places

HERE = "TRANSIENT_MAGICS_SEAT"
"""The environment variable with the VM's name."""


def here() -> str:
    """The VM on which this process is a cluster's controller; empty: it runs on a user's machine."""
    return os.environ.get(HERE, "")


def command_socket(directory: Path) -> Path:
    """Where the controller of the cluster in `directory` takes commands: on a VM the path is short
    enough in there.
    """
    if here():
        return directory / "command.sock"
    return places.command_socket(directory.name)
