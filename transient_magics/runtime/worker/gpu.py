"""The accelerator of a worker: whether TensorFlow sees the GPU, and how an emulated VM stands for
one.

Without it TensorFlow trains on the CPU, many times slower and without a word, at the price of the
GPU. GPUs of emulated VMs are but names: the emulator says so in the VM's metadata, and nobody looks
for them.
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

from ...errors import TrainingError
from ..metadata import metadata_host
from ..tf import placement
from ..tf.graph_mode import missing_library, tensorflow
from ..training.graph.worker import WorkerGraph

_NAMED_ONLY = "/computeMetadata/v1/instance/attributes/emulator-gpu"
_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)  # a metadata server may be away for a moment
_SMI_SECONDS = 30.0
_DRIVER = Path("/proc/driver/nvidia")

_PATH = "/computeMetadata/v1/instance/attributes/emulator-pace"
_POLL_SECONDS = 60
_PAUSE = 2.0


class GpuUnseenError(TrainingError):
    """TensorFlow does not see the VM's GPU. `what` is a clause with the likely reason."""


def require_gpu(name: str, server: Any, threads: int) -> None:
    """See that the devices of TensorFlow's `server` have a GPU; `name`: what it should be. Raises
    GpuUnseenError.
    """
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
    said = next(
        (line.strip() for line in (smi.stdout + smi.stderr).splitlines() if line.strip()), "nothing"
    )
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


# How long a step takes on the accelerator that an emulated VM stands for.
#
# The emulator's weather (`--gpu-speed published`) writes two numbers into the VM's metadata: the
# seconds of a step as published for its GPU, and how they relate to a K80's. A run's own `--pace`,
# the least seconds of a step, then counts for a K80, and for other GPUs in proportion; without one
# the published seconds do. Google's VMs have no such attribute, and nothing is paced there but by
# `--pace`.
#
# All these are seconds of a step with the declared mini-batch. A worker with another one
# (`--batching`) takes time in proportion to it, as a GPU does that is busy with examples; so a slow
# GPU is helped by fewer of them.


class Pace:
    """The pace of this VM's steps; follows the weather while it changes."""

    def __init__(self, declared: float | None, host: str | None = None) -> None:
        """`declared` are the seconds of `--pace`."""
        self._declared = declared or 0.0
        self._host = host
        self._published = 0.0
        self._relative = 0.0
        self._over = threading.Event()

    @property
    def seconds(self) -> float:
        """The least seconds of a step now; 0 for no pace."""
        if not self._relative:
            return self._declared
        return self._declared * self._relative or self._published

    def of(self, part: float) -> float:
        """The least seconds of a step with `part` times the declared mini-batch."""
        return self.seconds * part

    @property
    def speed(self) -> float:
        """How many times as fast as a K80 this VM is; 0 where nothing says so."""
        if self._relative:
            return 1 / self._relative
        return 0.0

    def start(self) -> None:
        """Follow the metadata in a thread that ends with the process."""
        threading.Thread(target=self._follow, daemon=True, name="pace").start()

    def stop(self) -> None:
        """Follow no longer, after the poll that is under way."""
        self._over.set()

    def _follow(self) -> None:
        etag = "0"
        while not self._over.is_set():
            try:
                status, text, etag = self._ask(etag)
            except (OSError, http.client.HTTPException):
                status = 0
                text = ""
            if status == 404:
                return
            try:
                seconds, relative = map(float, text.split())
            except ValueError:  # not an answer: the server is down or being started again
                self._over.wait(_PAUSE)
            else:
                self._published = seconds
                self._relative = relative
                if etag == "0":  # without one every poll would answer at once
                    self._over.wait(_PAUSE)

    def _ask(self, etag: str) -> tuple[int, str, str]:
        """One long poll: status, body and the etag to go on with."""
        connection = http.client.HTTPConnection(
            self._host or metadata_host(), timeout=_POLL_SECONDS + 15
        )
        try:
            query = f"wait_for_change=true&last_etag={etag}&timeout_sec={_POLL_SECONDS}"
            connection.request("GET", f"{_PATH}?{query}", headers={"Metadata-Flavor": "Google"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers.get("ETag", "0")
        finally:
            connection.close()


# An asynchronous step of an emulated accelerator: what it computes with is as old at its end as on
# a real one.
#
# Variables are pulled when the step begins, and gradients are pushed when its pace is over. Were
# they pushed as soon as this machine's cores have them, no other worker's step would ever come in
# between: nobody's gradients were late, and a run with many slow workers as accurate as with one.
#
# The step is one run of the graph, in two parts: the share of the gradients, by which each is
# multiplied before it is sent, is fed to the second one only.


class Held:
    """Takes steps whose gradients are held back; answers as one run of loss, before, after,
    examples, weight and the moments of `split.moments` does.
    """

    def __init__(self, built: WorkerGraph, stop: threading.Event) -> None:
        self._built = built
        self._stop = stop
        self._computed = [built.loss, built.before, built.examples, built.weight]
        self._computed += [built.fed, built.pulled, built.forward]
        self._pushed = [built.after, built.backward]
        self._pushing = 0.0

    def take(self, session: Any, feeds: Mapping[Any, Any], pace: float) -> tuple[Any, ...]:
        """One step that lasts `pace` seconds, or as long as it takes; once `stop` is set nothing is
        held any more.
        """
        began = time.monotonic()
        share = self._built.share
        first = {key: value for key, value in feeds.items() if key is not share}
        step = session.partial_run_setup([*self._computed, *self._pushed], [*feeds])
        loss, before, examples, weight, *seen = session.partial_run(step, self._computed, first)
        self._stop.wait(max(0.0, pace - self._pushing - (time.monotonic() - began)))
        pushed = time.monotonic()
        after, backward = session.partial_run(step, self._pushed, {share: feeds[share]})
        self._pushing = time.monotonic() - pushed
        return loss, before, after, examples, weight, [*seen, backward]
