"""Which of CUDA's libraries TensorFlow would not find: without one of them it takes no GPU.

TensorFlow is not asked, for it would take the GPU. Its wheel looks for the libraries beside itself, where pip puts them
(`locks/cuda.txt`), but for one.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

_LIBRARIES = (
    "libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusolver.so.11",
    "libcusparse.so.12", "libcudnn.so.9",
)  # fmt: skip
"""What TensorFlow opens before it takes a GPU, in its order."""
_NOT_BESIDE = "libcusolver.so.11"
"""The one that it finds through the linker alone."""


def missing_library(packages: Path | None = None) -> str:
    """The first library that TensorFlow would not find, a clause, or nothing. `packages`: where TensorFlow lies."""
    if packages is None:
        found = importlib.util.find_spec("tensorflow")
        packages = Path(found.origin).parents[1] if found and found.origin else Path()
    for name in _LIBRARIES:
        installed = any(packages.glob(f"nvidia/*/lib/{name}"))
        if installed and name != _NOT_BESIDE:
            continue
        try:
            ctypes.CDLL(name)
        except OSError as error:
            if not str(error).startswith(f"{name}:"):  # it lacks another one itself
                return f"{name} cannot be loaded ({error})"
            where = "is installed where the linker does not look (name its folder in /etc/ld.so.conf.d, run ldconfig)"
            return f"{name} {where if installed else 'is missing'}"
    return ""
