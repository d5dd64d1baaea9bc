"""Whether work on a VM can use the VM's GPU, and whether it does.

Frameworks fall back to the CPU silently: PyTorch warns once and returns False from
`torch.cuda.is_available()`. A job would then train on a CPU at a GPU's price. Two checks prevent
that. Before a job's command starts, `refusal` compares the packages that the job brings with the
driver and the GPU. While work runs, `watch` asks the driver whether any process has used the GPU,
and reports if none has for three minutes.

GPUs of most emulated VMs exist only as names; `find_card` then returns None, and nothing is checked
or reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import TrainingError

UNUSED_SECONDS = 180.0
"""After this time without any use, the GPU is reported as unused."""
POLL_SECONDS = 10.0
_SMI_SECONDS = 30.0
DEVICES = Path("/sys/bus/pci/devices")
"""The devices of the PCI bus."""
_NVIDIA = "0x10de"
"""NVIDIA's vendor id on the PCI bus."""
_QUERY = "--query-gpu=name,driver_version,compute_cap"
_TORCH_VERSION = re.compile(r"^__version__\s*(?::[^=]*)?=\s*'([^']+)'", re.MULTILINE)
_TORCH_CUDA = re.compile(r"^cuda\s*(?::[^=]*)?=\s*'(\d+)\.(\d+)'", re.MULTILINE)
_PLUGIN = re.compile(r"(jax_cuda|cupy_cuda)(\d+)(?:_plugin|x)?-([0-9][\w.+]*)\.dist-info")
_NAMES = {"jax_cuda": "JAX", "cupy_cuda": "CuPy"}

LEAST_DRIVERS = {13: (580, 65), 12: (525, 60), 11: (450, 80)}
"""The oldest NVIDIA driver that runs programs built for a major version of CUDA.

Source: CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor
Version Compatibility" (580.65.06, 525.60.13 and 450.80.02), as quoted on 2026-11-27.
"""
LEAST_CAPABILITIES = {13: (7, 5)}
"""The oldest GPU, as compute capability, that a major version of CUDA compiles for.

Source: PyTorch issue 172352 (2026-01-13): CUDA 13.0 wheels start with Turing (7.5).
"""
_LAST_FOR_OLD_GPUS = "torch<2.8"
"""PyTorch whose default wheel is built for CUDA 12.6, which has kernels for Pascal and Volta.

Source: PyTorch 2.8.0 release notes (2025-08): "Removed support for Maxwell, Pascal, and Volta
architectures with CUDA
12.8 and 12.9 builds".
"""
_LAST_FOR_OLD_DRIVERS = "torch<2.11"
"""PyTorch whose default wheel is built for CUDA 12: from 2.11 on it is CUDA 13.0."""


@dataclass(frozen=True)
class Card:
    """The GPU of this VM.

    Attributes
    ----------
    name
        As the driver calls it, for example `Tesla T4`.
    driver
        The driver's version, major and minor.
    capability
        The compute capability, major and minor; (0, 0) if the driver does not report one.
    """

    name: str
    driver: tuple[int, int]
    capability: tuple[int, int]


@dataclass(frozen=True)
class Build:
    """A framework in a folder of packages, and the version of CUDA that it is built for."""

    framework: str
    cuda: tuple[int, int]


def find_card() -> Card | None:
    """Return the first GPU that programs on this VM may use, or None."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return None
    lines = _smi(_QUERY)
    if not lines:
        return None
    fields = [field.strip() for field in lines[0].split(",")]
    if len(fields) != 3:
        return None
    return Card(fields[0][:60], _version(fields[1]), _version(fields[2]))


def _silent_card() -> Card | None:
    """Return a GPU that the VM has and nvidia-smi does not report because of a fault; or None."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1")
    if hidden or shutil.which("nvidia-smi") is None:
        return None
    for vendor in DEVICES.glob("*/vendor"):
        with contextlib.suppress(OSError):
            if vendor.read_text(encoding="ascii").strip() == _NVIDIA:
                return Card("nvidia-smi does not answer", (0, 0), (0, 0))
    return None


def is_used() -> bool:
    """Return whether any process uses the GPU now.

    In a PID namespace the driver may hide processes, so a busy GPU counts too.
    """
    if _smi("--query-compute-apps=pid"):
        return True
    return any(
        field.strip() not in ("", "0", "[N/A]") for field in _smi("--query-gpu=utilization.gpu")
    )


async def watch(report: Callable[[Card, float], None]) -> None:
    """Report a GPU that no process uses, and report again when a process uses it.

    Parameters
    ----------
    report
        Called with the GPU and the seconds since the call: once after `UNUSED_SECONDS`, and with 0
        if the GPU is used later. Never called if the GPU is used in time.
    """
    started = time.monotonic()
    card = await asyncio.to_thread(find_card) or _silent_card()
    if card is None:
        return
    reported = False
    while not await asyncio.to_thread(is_used):
        seconds = time.monotonic() - started
        if seconds >= UNUSED_SECONDS and not reported:
            report(card, seconds)
            reported = True
        await asyncio.sleep(POLL_SECONDS)
    if reported:
        report(card, 0.0)


def insist(prefix: Path) -> None:
    """Raise TrainingError if packages below `prefix`, brought by work, cannot use this VM's GPU."""
    installed = Path(sysconfig.get_path("purelib", vars={"base": str(prefix)}))
    if why := refusal(installed, find_card() if installed.is_dir() else None):
        raise TrainingError(why)


def refusal(packages: Path, card: Card | None) -> str:
    """Return why frameworks in a folder of packages cannot use the GPU.

    The result is a clause with the remedy, or "" if they can.
    """
    if card is None or not packages.is_dir():
        return ""
    for build in builds(packages):
        if why := _why_not(build, card):
            return why
    return ""


def builds(packages: Path) -> Iterator[Build]:
    """Yield each framework of a folder of packages, found without importing any."""
    version = packages / "torch" / "version.py"
    if version.is_file():
        text = version.read_text(encoding="utf-8", errors="replace")
        cuda = _TORCH_CUDA.search(text)
        release = _TORCH_VERSION.search(text)
        if cuda:  # a wheel without CUDA is a choice; `watch` reports the unused GPU
            yield Build(f"PyTorch {release[1] if release else '?'}", (int(cuda[1]), int(cuda[2])))
    for folder in sorted(packages.glob("*.dist-info")):
        if match := _PLUGIN.fullmatch(folder.name):
            yield Build(f"{_NAMES[match[1]]} {match[3]}", (int(match[2]), 0))


def _why_not(build: Build, card: Card) -> str:
    major, minor = build.cuda
    cuda = f"CUDA {major}"
    if build.framework.startswith("PyTorch"):
        cuda += f".{minor}"
    least = LEAST_DRIVERS.get(major, (0, 0))
    if card.driver < least:
        installed = f"{card.driver[0]}.{card.driver[1]}"
        return (
            f"{build.framework} is built for {cuda}, which needs an NVIDIA driver "
            f"{least[0]}.{least[1]} or newer; this VM has {installed}, so it would compute on the "
            f"CPU. Take an older wheel (--pip '{_LAST_FOR_OLD_DRIVERS}'), or an --image with a "
            "newer driver"
        )
    oldest = LEAST_CAPABILITIES.get(major, (0, 0))
    if (0, 0) < card.capability < oldest:
        capability = f"{card.capability[0]}.{card.capability[1]}"
        return (
            f"{build.framework} is built for {cuda}, which has no kernels for this VM's "
            f"{card.name} (compute capability {capability}). Take an older wheel (--pip "
            f"'{_LAST_FOR_OLD_GPUS}'), or another GPU"
        )
    return ""


def _smi(query: str) -> list[str]:
    """Return the lines of nvidia-smi's answer to a query; none if it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SMI_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode != 0:
        return []
    return [line for line in answer.stdout.splitlines() if line.strip()]


def _version(text: str) -> tuple[int, int]:
    """Return major and minor of a version; (0, 0) if it has none."""
    match = re.match(r"(\d+)\.(\d+)", text)
    if match:
        return (int(match[1]), int(match[2]))
    return (0, 0)
