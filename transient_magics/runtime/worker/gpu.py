"""Whether TensorFlow sees the GPU that this VM was rented for, and if not, what is likely to be the reason.

Without it TensorFlow trains on the CPU, many times slower and without a word, at the price of the GPU. GPUs of emulated
VMs are but names: the emulator says so in the VM's metadata, and nobody looks for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import importlib.util
import subprocess
import time
from pathlib import Path
from typing import Any

from ...errors import TrainingError
from ..metadata import metadata_host
from ..tf import placement
from ..tf.graph_mode import tensorflow

_NAMED_ONLY = "/computeMetadata/v1/instance/attributes/emulator-gpu"
_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)  # a metadata server may be away for a moment
_SMI_SECONDS = 30.0
_DRIVER = Path("/proc/driver/nvidia")
_LIBRARIES = (
    "cudart.so.12",
    "cublas.so.12",
    "cublasLt.so.12",
    "cufft.so.11",
    "cusolver.so.11",
    "cusparse.so.12",
    "cudnn.so.9",
)
"""What TensorFlow opens before it takes a GPU, in its order."""
_NOT_BESIDE = "cusolver.so.11"
"""The one that it finds through the linker alone; for the others it looks beside itself, where pip puts them."""


class GpuUnseenError(TrainingError):
    """TensorFlow does not see the VM's GPU. `what` is a clause with the likely reason."""


def insist(name: str, server: Any, threads: int) -> None:
    """See that the devices of TensorFlow's `server` have a GPU; `name`: what it should be. Raises GpuUnseenError."""
    if _is_but_a_name():
        return
    with tensorflow().Session(server.target, config=placement.plain_config(threads)) as session:
        found = any(device.device_type == "GPU" for device in session.list_devices())
    if not found:
        raise GpuUnseenError(f"TensorFlow does not see its GPU ({name}): {likely_reason()}")


def likely_reason(driver: Path = _DRIVER) -> str:
    """Why TensorFlow sees no GPU, a clause."""
    if not driver.exists():
        return "the NVIDIA driver is not loaded"
    try:
        smi = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, errors="replace", timeout=_SMI_SECONDS, check=False
        )
    except OSError as error:
        return f"nvidia-smi cannot be run ({error.strerror})"
    except subprocess.TimeoutExpired:
        return "nvidia-smi does not answer"
    said = next((line.strip() for line in (smi.stdout + smi.stderr).splitlines() if line.strip()), "nothing")
    if smi.returncode or not said.startswith("GPU "):
        return f"nvidia-smi says: {said}"
    try:
        code = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError as error:
        return f"nvidia-smi sees it, but CUDA's driver library cannot be loaded ({error})"
    if code:
        return f"nvidia-smi sees it, but CUDA does not start (error {code}): driver and libcuda may not fit each other"
    return (
        f"nvidia-smi and CUDA's driver see it, but {missing_library() or 'its libraries may be too new for the driver'}"
    )


def missing_library(packages: Path | None = None) -> str:
    """The first library that TensorFlow does not find, a clause, or nothing. `packages`: where it is installed."""
    if packages is None:
        found = importlib.util.find_spec("tensorflow")
        packages = Path(found.origin).parents[1] if found and found.origin else Path()
    for name in _LIBRARIES:
        installed = any(packages.glob(f"nvidia/*/lib/lib{name}"))
        if installed and name != _NOT_BESIDE:
            continue
        try:
            ctypes.CDLL(f"lib{name}")
        except OSError:
            where = "is installed, but the linker does not find it (name its folder in /etc/ld.so.conf.d, run ldconfig)"
            return f"lib{name} {where if installed else 'is missing'}"
    return ""


def _is_but_a_name() -> bool:
    """Whether the emulator says so. Google's metadata have no such attribute; silence says nothing."""
    for pause in (*_PAUSES, 0.0):
        with contextlib.suppress(OSError, http.client.HTTPException):
            status = _status()
            if status in (200, 404):
                return status == 200
        time.sleep(pause)
    return True


def _status() -> int:
    connection = http.client.HTTPConnection(metadata_host(), timeout=10)
    try:
        connection.request("GET", _NAMED_ONLY, headers={"Metadata-Flavor": "Google"})
        return connection.getresponse().status
    finally:
        connection.close()
