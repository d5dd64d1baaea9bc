"""Which GPU trains with what: the table in code, the wheel and the lock that it speaks of, and what docs/ says."""

from __future__ import annotations

import ast
import importlib.util
import re
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from transient_magics.catalog import ACCELERATORS, accelerators

ROOT = Path(__file__).parents[2]
GPUS = {name: entry for name, entry in ACCELERATORS.items() if name != "cpu" and not entry.withdrawn}


def built_with() -> dict[str, object]:
    """What TensorFlow's wheel says of its build, without starting TensorFlow."""
    found = importlib.util.find_spec("tensorflow")
    assert found
    assert found.origin
    text = (Path(found.origin).parent / "python/platform/build_info.py").read_text(encoding="utf-8")
    (pairs,) = re.findall(r"OrderedDict\((\[.*\])\)", text)
    return dict(ast.literal_eval(pairs))


def locked() -> dict[str, Version]:
    text = (ROOT / "locks/cuda.txt").read_text(encoding="utf-8")
    return {name: Version(version) for name, version in re.findall(r"^([a-z0-9-]+)==([^\s;]+)", text, re.MULTILINE)}


def test_the_table_says_what_the_wheel_was_built_with() -> None:
    build = built_with()
    assert build["cuda_compute_capabilities"] == [
        *(f"sm_{capability.replace('.', '')}" for capability in accelerators.BINARIES),
        f"compute_{accelerators.PTX.replace('.', '')}",
    ]
    assert str(build["cuda_version"]).startswith(f"{accelerators.TENSORFLOW_CUDA}.")
    assert str(locked()["nvidia-cuda-runtime-cu12"]).startswith(f"{accelerators.TENSORFLOW_CUDA}.")
    assert str(locked()["nvidia-cudnn-cu12"]).startswith(f"{accelerators.CUDNN}.")


def test_the_lock_has_all_that_tensorflow_asks_for_and_no_cudnn_that_gave_up_old_gpus() -> None:
    found = [each for each in map(Requirement, requires("tensorflow") or ()) if each.marker]
    wanted = {
        each.name: each.specifier for each in found if each.marker and each.marker.evaluate({"extra": "and-cuda"})
    }
    there = locked()
    assert wanted.keys() == there.keys()
    assert not [name for name, versions in wanted.items() if there[name] not in versions]
    assert there["nvidia-cudnn-cu12"] < Version("9.11")


def test_every_gpu_that_can_be_rented_runs_tensorflow_and_from_turing_on_cuda_13() -> None:
    assert not [name for name in GPUS if not accelerators.kernels(name)]
    assert [name for name in GPUS if not accelerators.runs_cuda_13(name)] == ["p100", "v100", "p4"]


def test_the_docs_say_the_same() -> None:
    text = (ROOT / "docs/gpus.md").read_text(encoding="utf-8").partition("## Jobs, Dask and bags")[0]
    rows = [
        f"| {name} | {entry.compute_capability} | {accelerators.kernels(name)} | "
        f"{'yes' if accelerators.runs_cuda_13(name) else 'no'} |"
        for name, entry in GPUS.items()
    ]
    assert [line for line in text.splitlines() if line.startswith("| ")][1:] == rows
    assert f"branch {accelerators.DRIVER.branch}, CUDA {accelerators.DRIVER.cuda}" in text
