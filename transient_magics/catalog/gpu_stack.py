"""The software on a GPU's VM: NVIDIA's driver, TensorFlow's kernels, and the CUDA libraries of `locks/cuda.txt`.

TensorFlow's wheel has kernels in binary form for some compute capabilities; a binary runs on that one and on later
minors of the same major. For the rest it has PTX, which the driver compiles if it knows the version that CUDA
`TENSORFLOW_CUDA` writes. Libraries of CUDA 12.x run on every driver from 525 on. cuDNN 9.11 gave up Pascal and Volta.
"""

from __future__ import annotations

from dataclasses import dataclass

from .accelerators import accelerator


@dataclass(frozen=True)
class Driver:
    """A branch of NVIDIA's driver, and where VMs install it from.

    Attributes
    ----------
    branch
        The major version of the driver.
    cuda
        The newest CUDA that it runs, and whose PTX it compiles.
    repository
        The address of the repository of packages for the VMs' Debian.
    key, fingerprint
        The name of the repository's signing key there, and the fingerprint by which a VM accepts it.
    """

    branch: int
    cuda: str
    repository: str
    key: str
    fingerprint: str


DRIVER = Driver(
    branch=580,
    cuda="13.0",
    repository="https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64",
    key="3bf863cc.pub",
    fingerprint="EB693B3035CD5710E231E123A4B469963BF863CC",
)
"""The last branch for Pascal and Volta, and the first that runs CUDA 13 (`docs/gpus.md` has the sources)."""
TENSORFLOW_CUDA = "12.5"
"""With which CUDA TensorFlow's wheel was built."""
BINARIES, PTX = ("6.0", "7.0", "8.0", "8.9"), "9.0"
"""The compute capabilities that TensorFlow's wheel has kernels for."""
CUDNN = "9.3"
"""Of the lock. It supports compute capabilities from 5.0 to 9.0."""
CUDA_13_CAPABILITY = "7.5"
"""The oldest compute capability that CUDA 13 compiles for, and so PyTorch from 2.11 on."""


def kernels(name: str) -> str:
    """Return the kernels of TensorFlow that a GPU runs: `sm_70` (binary), `compute_90` (PTX), or nothing."""
    asked = _version(accelerator(name).compute_capability)
    fitting = [each for each in BINARIES if _version(each)[0] == asked[0] and _version(each) <= asked]
    if fitting:
        return f"sm_{fitting[-1].replace('.', '')}"
    return f"compute_{PTX.replace('.', '')}" if asked >= _version(PTX) else ""


def runs_cuda_13(name: str) -> bool:
    """Return whether programs built for CUDA 13 run on a GPU."""
    return _version(accelerator(name).compute_capability) >= _version(CUDA_13_CAPABILITY)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
