"""Packages that do not fit the GPU, and a GPU that no process uses, with a stand-in for nvidia-smi."""

from __future__ import annotations

import asyncio
import os
import re
import zipfile
from pathlib import Path

import pytest

from tests.processes import until
from tests.runtime.test_jobs import OneJob, running
from transient_magics.protocol import layout
from transient_magics.runtime import gpu_use
from transient_magics.runtime.gpu_use import Card, find_card, refusal

T4 = Card("Tesla T4", (580, 95), (7, 5))
OLD_DRIVER = Card("Tesla T4", (535, 309), (7, 5))
V100 = Card("Tesla V100-SXM2-16GB", (580, 95), (7, 0))
SMI = """#!/bin/sh
case "$1" in
--query-gpu=name*) echo "{card}" ;;
--query-compute-apps=pid) cat {folder}/processes 2>/dev/null ;;
--query-gpu=utilization.gpu) echo 0 ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stand-in for nvidia-smi, and with `processes`: the PIDs that use the GPU."""
    folder = tmp_path / "smi"
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(SMI.format(card="Tesla T4, 535.309.01, 7.5", folder=folder), encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


def torch(folder: Path, version: str, cuda: str | None) -> Path:
    """Write what PyTorch's wheel says of its build, in the form that it has."""
    (folder / "torch").mkdir(parents=True, exist_ok=True)
    (folder / "torch" / "version.py").write_text(build_of(version, cuda), encoding="utf-8")
    return folder


def build_of(version: str, cuda: str | None) -> str:
    return (
        "from typing import Optional\n\n__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']\n"
        f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
    )


@pytest.mark.parametrize(
    ("version", "cuda", "card", "says"),
    [
        ("2.14.1+cu130", "13.0", OLD_DRIVER, r"2\.14\.1.* CUDA 13\.0, .*580\.65 or newer; .*535\.309, .*torch<2\.11"),
        ("2.14.1+cu130", "13.0", T4, ""),
        ("2.10.0+cu128", "12.8", OLD_DRIVER, ""),
        ("2.14.1+cu130", "13.0", V100, "no kernels for this VM's Tesla V100.*7.0.*torch<2.8"),
        ("2.7.1+cu126", "12.6", V100, ""),
        ("2.13.0+cpu", None, OLD_DRIVER, ""),
        ("2.14.1+cu130", "13.0", Card("of an old driver", (580, 95), (0, 0)), ""),
    ],
)  # fmt: skip
def test_pytorch_is_compared_with_driver_and_gpu(
    tmp_path: Path, version: str, cuda: str | None, card: Card, says: str
) -> None:
    why = refusal(torch(tmp_path, version, cuda), card)
    if says:
        assert re.search(says, why), why
    else:
        assert why == ""


@pytest.mark.parametrize(
    ("package", "names"),
    [
        ("jax_cuda13_plugin-0.11.2", "JAX 0.11.2 is built for CUDA 13,"),
        ("cupy_cuda13x-14.2.0", "CuPy 14.2.0 is built for CUDA 13,"),
        ("jax_cuda12_plugin-0.11.2", ""),
        ("jaxlib-0.11.2", ""),
    ],
)
def test_so_are_jax_and_cupy(tmp_path: Path, package: str, names: str) -> None:
    (tmp_path / f"{package}.dist-info").mkdir()
    why = refusal(tmp_path, OLD_DRIVER)
    assert why.startswith(names) if names else why == ""


def test_nothing_is_compared_without_a_gpu(tmp_path: Path, smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_card() == OLD_DRIVER
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert find_card() is None
    assert refusal(torch(tmp_path, "2.14.1+cu130", "13.0"), None) == ""


@pytest.mark.slow
async def test_a_job_whose_pytorch_does_not_fit_fails_before_its_command(tmp_path: Path, smi: Path) -> None:
    job = OneJob(tmp_path, "echo it runs")
    wheels = job.folder / layout.WHEELS
    wheels.mkdir()
    about = "torch-2.14.1.dist-info"
    with zipfile.ZipFile(wheels / "torch-2.14.1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch/version.py", build_of("2.14.1+cu130", "13.0"))
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.14.1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in (*wheel.namelist(), f"{about}/RECORD")))
    async with running(job):
        ended = await job.until("job.exited")
    assert "needs an NVIDIA driver 580.65 or newer" in ended["reason"]
    assert "it runs" not in job.output


async def test_an_unused_gpu_is_reported_once_and_again_when_it_is_used(
    smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_use, "UNUSED_SECONDS", 0.2)
    monkeypatch.setattr(gpu_use, "POLL_SECONDS", 0.05)
    reported: list[tuple[str, bool]] = []
    watching = asyncio.create_task(gpu_use.watch(lambda card, seconds: reported.append((card.name, seconds > 0))))
    async with asyncio.timeout(30):
        await until(lambda: reported)
        await asyncio.sleep(0.3)
        assert reported == [("Tesla T4", True)]
        (smi / "processes").write_text("4711\n", encoding="utf-8")
        await watching
    assert reported == [("Tesla T4", True), ("Tesla T4", False)]


async def test_a_gpu_that_nvidia_smi_does_not_see_is_reported_as_unused(
    smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (smi / "nvidia-smi").write_text("#!/bin/sh\necho 'Failed to initialize NVML' >&2; exit 9\n", encoding="utf-8")
    device = tmp_path / "pci" / "0000:00:04.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n", encoding="utf-8")
    monkeypatch.setattr(gpu_use, "DEVICES", tmp_path / "pci")
    monkeypatch.setattr(gpu_use, "UNUSED_SECONDS", 0.1)
    monkeypatch.setattr(gpu_use, "POLL_SECONDS", 0.05)
    reported: list[str] = []
    watching = asyncio.create_task(gpu_use.watch(lambda card, _: reported.append(card.name)))
    await until(lambda: reported)
    watching.cancel()
    assert reported == ["nvidia-smi does not answer"]


async def test_a_gpu_that_is_used_in_time_is_not_reported(smi: Path) -> None:
    (smi / "processes").write_text("4711\n", encoding="utf-8")
    async with asyncio.timeout(30):
        await gpu_use.watch(lambda card, seconds: pytest.fail(f"{card.name} unused for {seconds} s"))
