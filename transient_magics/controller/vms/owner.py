"""Whose VMs are: labels by which a sweep tells this user's from others', and those of this machine
from all of his.

A login name says nothing (every container's user is `root` or `jovyan`), so the owner is known by
the credentials' principal, and the machine by a number drawn for its home directory. A cluster
keeps the labels that it began with.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from ... import places
from ...cloud import ComputeEngine
from ...files import write_atomically

OWNER_LABEL = "transient-magics-owner"
MACHINE_LABEL = "transient-magics-machine"
USER_LABEL = "transient-magics-user"
"""A hash of the principal, the number of the home directory, and for human eyes the login name."""
MEASURE_LABEL = "transient-magics-measurement"
"""On VMs that were asked for only to see whether there are any: the id of the measurement."""
OWNER = "owner.json"
"""In a cluster's folder: the labels that say whose its VMs are."""


async def whose(engine: ComputeEngine) -> dict[str, str]:
    """The labels of what is made from here with these credentials. On the emulator the user is the
    principal.

    Raises CloudError where Google does not say whose credentials they are.
    """
    principal = await engine.principal() or f"emulator/{user()}"
    return {
        OWNER_LABEL: hashlib.sha256(principal.lower().encode()).hexdigest()[:16],
        MACHINE_LABEL: places.identity(),
        USER_LABEL: user(),
    }


async def note(engine: ComputeEngine, directory: Path) -> None:
    """Have the labels of the cluster in `directory` written down there, once. Raises CloudError."""
    if not (directory / OWNER).exists():
        labels = json.dumps(await whose(engine))
        write_atomically(
            directory / OWNER, labels, durable=False
        )  # no controller could begin with half of it


def noted(directory: Path) -> Mapping[str, str]:
    """What was noted of the cluster in `directory`; without it, what can be said without asking
    anybody.
    """
    try:
        return json.loads((directory / OWNER).read_text(encoding="utf-8"))
    except FileNotFoundError:  # its controller began before there was such a note
        return {USER_LABEL: user()}


def user() -> str:
    """This user's login name, as a label may hold it."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # an account without a name
        return "unknown"
    return re.sub(r"[^a-z0-9_-]", "-", name.lower())[:63] or "unknown"
