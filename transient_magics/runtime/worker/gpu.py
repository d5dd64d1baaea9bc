"""Whether TensorFlow sees the GPU that this VM was rented for, and if not, what is likely to be the reason.

Without it TensorFlow trains on the CPU, many times slower and without a word, at the price of the GPU. GPUs of emulated
VMs are but names: the emulator says so in the VM's metadata, and nobody looks for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import subprocess
import time
from pathlib import Path
from typing import Any

from ...errors import TrainingError
from ..metadata import metadata_host
from ..tf import placement
from ..tf.cuda import missing_library
from ..tf.graph_mode import tensorflow

_NAMED_ONLY = "/computeMetadata/v1/instance/attributes/emulator-gpu"
_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)  # a metadata server may be away for a moment
_SMI_SECONDS = 30.0
_DRIVER = Path("/proc/driver/nvidia")


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
            ["nvidia-smi", "-L"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SMI_SECONDS,
            check=False,
            encoding="utf-8",
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
    return f"nvidia-smi and CUDA's driver see it; {missing_library() or 'its libraries may be too new for the driver'}"


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
