"""Which versions the kernel and the VMs of a Dask cluster have to share. Nothing of Dask is
imported for that.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version

SAME = ("dask", "distributed", "cloudpickle")
"""What has to have the same version in the kernel and on the VMs; of Python the same minor version.
"""


def versions() -> dict[str, str]:
    """Those of this process: of Python and of `SAME`, without importing any. Raises
    PackageNotFoundError.
    """
    return {"python": platform.python_version(), **{name: version(name) for name in SAME}}


def mismatch(here: Mapping[str, str], there: Mapping[str, str]) -> tuple[str, str]:
    """What keeps a kernel with the versions `here` from VMs with those `there`, and what mends it;
    empty: nothing.

    Functions travel as byte code, which is another with each minor version of Python; what client
    and scheduler say to each other changes from one version of Dask to the next.
    """
    if _minor(here["python"]) != _minor(there["python"]):
        what = f"This kernel has Python {_minor(here['python'])} and the VMs have {_minor(there['python'])}"
        return what, f"Use a kernel with Python {_minor(there['python'])}."
    other = [name for name in SAME if here[name] != there[name]]
    if not other:
        return "", ""
    mine, theirs = (", ".join(f"{name} {side[name]}" for name in other) for side in (here, there))
    wanted = " ".join(f"{name}=={there[name]}" for name in other)
    return (
        f"This kernel has {mine} and the VMs have {theirs}",
        f"pip install {wanted}, and restart the kernel.",
    )


def _minor(told: str) -> str:
    return ".".join(told.split(".")[:2])
