"""The one check for names: of clusters, runs, images, VMs and workers.

Whatever passes can be a part of a path, of a label and of a VM's name, and nothing else.
"""

from __future__ import annotations

import re

LONGEST_NAME = 40
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)


def is_name(value: object) -> bool:
    """Whether it is a name as Compute Engine allows them: a-z, 0-9 and '-', a letter first, 40
    characters at most.
    """
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def checked_name(value: object) -> str:
    """The same, if it is a name. Raises ValueError."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError(f"no name: {value!r:.80}")


def is_path(value: object) -> bool:
    """Whether it is a relative path, of names of files that lead nowhere else."""
    try:
        return isinstance(value, str) and all(checked_file(part) for part in value.split("/"))
    except ValueError:
        return False


def checked_file(value: object) -> str:
    """The same, if it names one file or folder and leads nowhere else. Raises ValueError.

    For files that others name; there is no reason for them to have a name that a shell or a
    terminal trips over.
    """
    if (
        isinstance(value, str)
        and 0 < len(value) <= 255
        and value not in (".", "..")
        and value.isprintable()
        and not {"/", "\\"} & {*value}
    ):
        return value
    raise ValueError(f"no file's name: {value!r:.80}")
