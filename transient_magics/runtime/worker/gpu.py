"""The accelerator of a worker: whether TensorFlow finds the GPU, and how it is emulated.

Without its GPU, TensorFlow would train on the CPU without a message: many times slower, and at the
price of the GPU. Emulated VMs have GPUs in name only. The VM's metadata show that, and then no
GPU is required.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import TrainingError, reason_of
from ..metadata import metadata_host
from ..tf import placement
from ..tf.graph_mode import missing_library, tensorflow
from ..training.graph.worker import WorkerGraph

_EMULATED_GPU = "/computeMetadata/v1/instance/attributes/emulator-gpu"
_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)  # a metadata server may be away for a moment
_SMI_SECONDS = 30.0
_DRIVER = Path("/proc/driver/nvidia")

_PACE = "/computeMetadata/v1/instance/attributes/emulator-pace"
_POLL_SECONDS = 60
_PAUSE = 2.0


class GpuUnseenError(TrainingError):
    """TensorFlow does not find the VM's GPU. `what` is a clause with the likely reason."""


def require_gpu(name: str, server: Any, threads: int) -> None:
    """Check that TensorFlow's `server` has the GPU `name`.

    Raises
    ------
    GpuUnseenError
        It has none, and the VM is not an emulated one.
    """
    if _is_emulated():
        return
    with tensorflow().Session(server.target, config=placement.plain_config(threads)) as session:
        found = any(device.device_type == "GPU" for device in session.list_devices())
    if not found:
        raise GpuUnseenError(f"TensorFlow cannot use the GPU ({name}): {likely_reason()}")


def likely_reason(driver: Path = _DRIVER) -> str:
    """Return why TensorFlow finds no GPU, a clause."""
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
        return f"nvidia-smi cannot be run ({reason_of(error)})"
    except subprocess.TimeoutExpired:
        return "nvidia-smi does not answer"
    lines = (line.strip() for line in (smi.stdout + smi.stderr).splitlines())
    first = next(filter(None, lines), "nothing")
    if smi.returncode or not first.startswith("GPU "):
        return f"nvidia-smi printed: {first}"
    try:
        code = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError as error:
        return f"nvidia-smi sees it, but CUDA's driver library cannot be loaded ({error})"
    if code:
        return (
            f"nvidia-smi sees it, but CUDA does not start (error {code}): "
            "driver and libcuda may not fit each other"
        )
    why = missing_library() or "its libraries may be too new for the driver"
    return f"nvidia-smi and CUDA's driver see it; {why}"


def _is_emulated() -> bool:
    """Return whether the emulator's metadata say that the GPU is one in name only.

    Google's metadata servers answer 404 for this attribute. Without any answer no GPU is required.
    """
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
        connection.request("GET", _EMULATED_GPU, headers={"Metadata-Flavor": "Google"})
        return connection.getresponse().status
    finally:
        connection.close()


class Pace:
    """The least time of a step on the accelerator that an emulated VM represents.

    The emulator's weather (`--gpu-speed published`) writes two numbers into the VM's metadata: the
    published seconds of a step on its GPU, and their ratio to those of a K80. With `--pace`, a step
    takes that time on a K80, and on other GPUs in proportion. Without it, a step takes the
    published seconds. Google's VMs have no such attribute, so there only `--pace` counts.

    All of these are seconds of a step with the declared mini-batch. Other mini-batches
    (`--batching`) take time in proportion, as on a GPU that its examples keep busy. So a slow GPU
    gets faster steps with fewer examples.
    """

    def __init__(self, declared: float | None, host: str | None = None) -> None:
        """Create the pace of a run with `declared` seconds (`--pace`)."""
        self._declared = declared or 0.0
        self._host = host
        self._published = 0.0
        self._relative = 0.0
        self._stopped = threading.Event()

    @property
    def seconds(self) -> float:
        """Least seconds of a step now; 0 without a pace."""
        if not self._relative:
            return self._declared
        return self._declared * self._relative or self._published

    def of(self, part: float) -> float:
        """Return the least seconds of a step with `part` times the declared mini-batch."""
        return self.seconds * part

    @property
    def speed(self) -> float:
        """Speed of this VM relative to a K80; 0 if unknown."""
        if self._relative:
            return 1 / self._relative
        return 0.0

    def start(self) -> None:
        """Follow the metadata on a daemon thread."""
        threading.Thread(target=self._follow, daemon=True, name="pace").start()

    def stop(self) -> None:
        """Stop following after the poll in flight."""
        self._stopped.set()

    def _follow(self) -> None:
        etag = "0"
        while not self._stopped.is_set():
            try:
                status, text, etag = self._poll(etag)
            except (OSError, http.client.HTTPException):
                status = 0
                text = ""
            if status == 404:
                return
            try:
                seconds, relative = map(float, text.split())
            except ValueError:  # no answer: the server is down or restarts
                self._stopped.wait(_PAUSE)
            else:
                self._published = seconds
                self._relative = relative
                if etag == "0":  # without an etag, each poll returns immediately
                    self._stopped.wait(_PAUSE)

    def _poll(self, etag: str) -> tuple[int, str, str]:
        """Make one long poll; return status, body and the etag for the next one."""
        connection = http.client.HTTPConnection(
            self._host or metadata_host(), timeout=_POLL_SECONDS + 15
        )
        try:
            query = f"wait_for_change=true&last_etag={etag}&timeout_sec={_POLL_SECONDS}"
            connection.request("GET", f"{_PACE}?{query}", headers={"Metadata-Flavor": "Google"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers.get("ETag", "0")
        finally:
            connection.close()


class DelayedPush:
    """Asynchronous steps of an emulated accelerator, whose gradients are pushed when its pace ends.

    So a gradient is as stale as on a real accelerator: variables are pulled when the step begins,
    and gradients pushed when its pace has passed. If this machine pushed them as soon as it has
    them, no other worker's step would come in between. No gradient would be stale, and a run with
    many slow workers as accurate as a run with one.

    A step is one run of the graph in two parts. The share of the gradients, with which each is
    multiplied before it is sent, is fed to the second part only.
    """

    def __init__(self, built: WorkerGraph, stop: threading.Event) -> None:
        self._built = built
        self._stop = stop
        self._computed = [built.loss, built.before, built.examples, built.weight]
        self._computed += [built.fed, built.pulled, built.forward]
        self._metrics: list[Any] = []
        if built.metrics is not None:
            self._metrics.append(built.metrics)
        self._pushed = [built.after, built.backward]
        self._pushing = 0.0

    def take(self, session: Any, feeds: Mapping[Any, Any], pace: float) -> tuple[Any, ...]:
        """Take one step that lasts `pace` seconds, or as long as it takes.

        Returns loss, global step before and after, examples, weight, and the values of
        `meter.moments` and `meter.metrics`. Once `stop` is set, gradients are pushed immediately.
        """
        began = time.monotonic()
        share = self._built.share
        first = {key: value for key, value in feeds.items() if key is not share}
        computed = [*self._computed, *self._metrics]
        step = session.partial_run_setup([*computed, *self._pushed], [*feeds])
        loss, before, examples, weight, *seen = session.partial_run(step, computed, first)
        moments = seen[:3]
        self._stop.wait(max(0.0, pace - self._pushing - (time.monotonic() - began)))
        pushed = time.monotonic()
        after, backward = session.partial_run(step, self._pushed, {share: feeds[share]})
        self._pushing = time.monotonic() - pushed
        return loss, before, after, examples, weight, [*moments, backward], seen[3:]
