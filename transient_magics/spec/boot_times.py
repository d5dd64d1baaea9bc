"""How long VMs take to be there: what they boot from decides.

A VM whose image has all that it needs answers within two minutes; one that installs it takes longer, with a GPU most.
Without TensorFlow there is a twelfth to install: 27 packages of 0.2 GB on disk, where 102 have 2.7 GB.
"""

from __future__ import annotations

from ..catalog import accelerator
from .cluster import JOBS, ClusterSpec

_BAKED_PATIENCE, _INSTALL_PATIENCE, _GPU_PATIENCE = 600.0, 900.0, 1800.0
_BAKED_BOOT, _INSTALL_BOOT, _GPU_BOOT = 120.0, 300.0, 600.0  # the least; those that install by estimate
_LIGHT_BOOT, _LIGHT_GPU_BOOT = 180.0, 420.0  # the same where no TensorFlow is installed, and none of its CUDA libraries


def image_of(spec: ClusterSpec, gpu: str) -> str:
    """The image that VMs with this GPU boot from; empty: plain Debian."""
    return spec.image or "" if spec.image_for_gpus or not has_gpu(gpu) else ""


def has_gpu(name: str) -> bool:
    """Whether what the catalog calls so is a GPU; nothing and `cpu` are none."""
    return bool(name and accelerator(name).compute_engine_name)


def patience(spec: ClusterSpec, gpu: str) -> float:
    """Seconds without a word of the start-up script, or an answer, after which a VM is taken for failed.

    They follow from the longest step: some 0.7 GB of packages for TensorFlow, with a GPU 2.5 GB more and a driver that
    is built there.
    """
    return _by_image(spec, gpu, _BAKED_PATIENCE, _INSTALL_PATIENCE, _GPU_PATIENCE)


def least(spec: ClusterSpec, gpu: str) -> float:
    """Seconds that such a VM needs at least before it is of any use; 0 on the emulator, where that is up to it."""
    return 0.0 if spec.emulated else usual(spec, gpu)


def usual(spec: ClusterSpec, gpu: str) -> float:
    """The same on Compute Engine, of an emulated cluster too."""
    if spec.purpose == JOBS:
        return _by_image(spec, gpu, _BAKED_BOOT, _LIGHT_BOOT, _LIGHT_GPU_BOOT)
    return _by_image(spec, gpu, _BAKED_BOOT, _INSTALL_BOOT, _GPU_BOOT)


def _by_image(spec: ClusterSpec, gpu: str, baked: float, installing: float, with_driver: float) -> float:
    if image_of(spec, gpu):
        return baked
    return with_driver if has_gpu(gpu) else installing
