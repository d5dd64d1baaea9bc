"""What trains on which GPU: Debian 12's driver, TensorFlow's own kernels, the CUDA libraries of `locks/cuda.txt`.

TensorFlow's wheel has kernels in binary form for some compute capabilities; a binary runs on that one and on later
minors of the same major. For the rest it has PTX, which the driver compiles if it knows the version that CUDA
`TENSORFLOW_CUDA` writes. Libraries of CUDA 12.x run on every driver from 525 on. cuDNN 9.11 gave up Pascal and Volta.
"""

from __future__ import annotations

from .accelerators import accelerator

DRIVER, DRIVER_CUDA = 535, "12.2"
"""Debian 12's branch, and the newest CUDA whose PTX it compiles."""
TENSORFLOW_CUDA, PTX_DRIVER = "12.5", 555
"""With which CUDA TensorFlow's wheel was built, and the first branch that compiles PTX of it."""
BINARIES, PTX = ("6.0", "7.0", "8.0", "8.9"), "9.0"
"""The compute capabilities that TensorFlow's wheel has kernels for."""
CUDNN = "9.3"
"""Of the lock. It supports compute capabilities from 5.0 to 9.0."""


def kernels(name: str) -> str:
    """The kernels of TensorFlow that a GPU runs: `sm_70` (binary), `compute_90` (PTX), or nothing."""
    asked = _version(accelerator(name).compute_capability)
    fitting = [each for each in BINARIES if _version(each)[0] == asked[0] and _version(each) <= asked]
    if fitting:
        return f"sm_{fitting[-1].replace('.', '')}"
    return f"compute_{PTX.replace('.', '')}" if asked >= _version(PTX) else ""


def least_driver(name: str) -> int:
    """The oldest branch of NVIDIA's driver on which TensorFlow trains with this GPU."""
    return PTX_DRIVER if kernels(name).startswith("compute") else 525


def stack_refusal(name: str) -> str:
    """Why what VMs install by themselves does not train on this GPU (a sentence without its point), or nothing."""
    if name == "cpu" or least_driver(name) <= DRIVER:
        return ""
    return (
        f"The {name.upper()} takes an NVIDIA driver {least_driver(name)} or newer, which compiles the kernels that "
        f"TensorFlow has for it (PTX of CUDA {TENSORFLOW_CUDA}); Debian 12 has {DRIVER}"
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
