"""GPUs that Compute Engine attaches to VMs, their usual machines, and the software of such VMs.

The machines stay within Compute Engine's limits of vCPUs and memory per GPU (`machines`).
`withdrawn` GPUs run on the emulator only. Compute Engine sells the machines of `spot_only` GPUs as
Spot or Flex-start, never on demand, though it lists an on-demand price. `relative_step_seconds` is
the measured time of one ResNet-32 step (batch 128, one worker, one parameter server) in the CM-DARE
(ICDCS'20) data set `speed_data_base`; None if unpublished. `teraflops` is the peak in single
precision: for the K80 (one of its two chips) and the P100 CM-DARE's values, for others those of
NVIDIA's data sheets.

The software is NVIDIA's driver, TensorFlow's kernels, and the CUDA libraries of `locks/cuda.txt`.
TensorFlow's wheel has binary kernels for some compute capabilities; a binary runs on that one and
on later minors of the same major. For the newest capability, some kernels are only PTX, and for
later majors all are. The driver compiles PTX if it supports the version that CUDA
`TENSORFLOW_CUDA` writes. Libraries of CUDA 12.x run on every driver from 525 on. cuDNN 9.11 dropped
Pascal and Volta.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import unknown


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU model, and its usual machine with one such GPU.

    `compute_engine_name` is the API's name ('' for no GPU). `vcpus` and `memory_gb` are the
    machine's, `gpu_memory_gb` is the GPU's. A `bundled` GPU is part of its own machine types and is
    not attached to others. `compute_capability` is NVIDIA's number for the kernels it runs.
    """

    name: str
    compute_engine_name: str
    machine_type: str
    vcpus: int
    memory_gb: float
    gpu_memory_gb: float = 0.0
    compute_capability: str = ""
    bundled: bool = False
    spot_only: bool = False
    withdrawn: str = ""
    alternatives: tuple[str, ...] = ()
    relative_step_seconds: float | None = None
    teraflops: float = 0.0


_TABLE = (
    Accelerator("cpu", "", "n1-standard-4", 4, 15),
    Accelerator(
        "k80",
        "nvidia-tesla-k80",
        "n1-standard-4",
        4,
        15,
        12,
        "3.7",
        withdrawn="May 2024",
        alternatives=("t4", "l4"),
        relative_step_seconds=0.2193,
        teraflops=4.113,
    ),
    Accelerator(
        "p100",
        "nvidia-tesla-p100",
        "n1-standard-8",
        8,
        30,
        16,
        "6.0",
        relative_step_seconds=0.0820,
        teraflops=9.526,
    ),
    Accelerator(
        "v100",
        "nvidia-tesla-v100",
        "n1-standard-8",
        8,
        30,
        16,
        "7.0",
        relative_step_seconds=0.0641,
        teraflops=14.1,
    ),
    Accelerator("p4", "nvidia-tesla-p4", "n1-standard-4", 4, 15, 8, "6.1", teraflops=5.5),
    Accelerator("t4", "nvidia-tesla-t4", "n1-standard-4", 4, 15, 16, "7.5", teraflops=8.1),
    Accelerator("l4", "nvidia-l4", "g2-standard-4", 4, 16, 24, "8.9", bundled=True, teraflops=30.3),
    Accelerator(
        "a100",
        "nvidia-tesla-a100",
        "a2-highgpu-1g",
        12,
        85,
        40,
        "8.0",
        bundled=True,
        teraflops=19.5,
    ),
    Accelerator(
        "a100-80gb",
        "nvidia-a100-80gb",
        "a2-ultragpu-1g",
        12,
        170,
        80,
        "8.0",
        bundled=True,
        teraflops=19.5,
    ),
    Accelerator(
        "h100",
        "nvidia-h100-80gb",
        "a3-highgpu-1g",
        26,
        234,
        80,
        "9.0",
        bundled=True,
        spot_only=True,
        teraflops=66.9,
    ),
)

ACCELERATORS: dict[str, Accelerator] = {entry.name: entry for entry in _TABLE}


def accelerator(name: str) -> Accelerator:
    """Return the entry called `name`. Raises DeclarationError if it is unknown."""
    try:
        return ACCELERATORS[name]
    except KeyError:
        raise unknown("GPU", name, ACCELERATORS) from None


def living_alternative(name: str) -> str:
    """Return why a GPU cannot be used on Google's Compute Engine; '' if it is not withdrawn."""
    entry = accelerator(name)
    if not entry.withdrawn:
        return ""
    return f"Google withdrew the {name.upper()} in {entry.withdrawn}; use {' or '.join(entry.alternatives)} instead"


def never_on_demand(names: Iterable[str]) -> str:
    """Return a sentence about those GPUs that are not sold on demand; '' if all are."""
    found = [name.upper() for name in dict.fromkeys(names) if accelerator(name).spot_only]
    if not found:
        return ""
    return f"{' and '.join(found)}: sold as Spot only; Google lists an on-demand price but offers no such VM."


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
        The name of the repository's signing key there, and the fingerprint by which a VM accepts
        it.
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
"""The last branch for Pascal and Volta, and the first that runs CUDA 13.

`docs/gpus.md` has the sources.
"""
TENSORFLOW_CUDA = "12.5"
"""The CUDA version of TensorFlow's wheel."""
BINARIES = ("6.0", "7.0", "8.0", "8.9")
PTX = "9.0"
"""The compute capabilities of the kernels in TensorFlow's wheel. `PTX` has binaries too."""
CUDNN = "9.3"
"""The version in the lock. It supports compute capabilities from 5.0 to 9.0."""
CUDA_13_CAPABILITY = "7.5"
"""The oldest compute capability that CUDA 13 compiles for, and so PyTorch from 2.11 on."""


def kernels(name: str) -> str:
    """Return the TensorFlow kernels for a GPU, as `docs/gpus.md` explains them; '' if none."""
    version = _version(accelerator(name).compute_capability)
    fitting = [
        binary
        for binary in (*BINARIES, PTX)
        if _version(binary)[0] == version[0] and _version(binary) <= version
    ]
    compiled_later = f"compute_{PTX.replace('.', '')}"
    if fitting and fitting[-1] != PTX:
        return f"sm_{fitting[-1].replace('.', '')}"
    if fitting:
        return f"sm_{PTX.replace('.', '')}, and {compiled_later} for some"
    if version >= _version(PTX):
        return compiled_later
    return ""


def runs_cuda_13(name: str) -> bool:
    """Return whether programs built for CUDA 13 run on a GPU."""
    return _version(accelerator(name).compute_capability) >= _version(CUDA_13_CAPABILITY)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
