"""Versions that the kernel and the VMs of a Dask cluster must share, without importing Dask."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version

SAME = ("dask", "distributed", "cloudpickle")
"""Packages that must have the same version in the kernel and on the VMs.

Python must have the same minor version.
"""


def versions() -> dict[str, str]:
    """Return the versions of Python and of `SAME` in this process, without importing them.

    Raises PackageNotFoundError.
    """
    return {"python": platform.python_version(), **{name: version(name) for name in SAME}}


def mismatch(here: Mapping[str, str], there: Mapping[str, str]) -> tuple[str, str]:
    """Return the mismatch between the versions `here` and `there`, and its fix; else empty texts.

    Functions are sent as byte code, which depends on the minor version of Python. The protocol
    between client and scheduler depends on the version of Dask.
    """
    if _minor(here["python"]) != _minor(there["python"]):
        what = (
            f"This kernel has Python {_minor(here['python'])} and the VMs have "
            f"{_minor(there['python'])}"
        )
        return what, f"Use a kernel with Python {_minor(there['python'])}."
    other = [name for name in SAME if here[name] != there[name]]
    if not other:
        return "", ""
    mine, theirs = (", ".join(f"{name} {side[name]}" for name in other) for side in (here, there))
    requirements = " ".join(f"{name}=={there[name]}" for name in other)
    return (
        f"This kernel has {mine} and the VMs have {theirs}",
        f"pip install {requirements}, and restart the kernel.",
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
