"""For which machine a graph is built: whether it has a GPU that TensorFlow would take."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from tests.runtime import programs
from tests.runtime.machine_room import until
from transient_magics.runtime.tf import graph_mode
from transient_magics.runtime.tf.graph_mode import GPU, has_gpu, missing_library, prepare
from transient_magics.runtime.worker.measuring import OwnServer

OPTIMIZERS = """
from transient_magics.runtime.tf import placement
config = placement.plain_config(1)
placement.optimise_briefly(config)
print(len(config.graph_options.rewrite_options.optimizers))
"""


def test_a_gpu_that_is_hidden_from_a_process_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GPU, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/proc/driver/nvidia")
    graph_mode._has_libraries.cache_clear()
    assert not has_gpu(), "TensorFlow is installed here without CUDA's libraries"
    monkeypatch.setattr(graph_mode, "_has_libraries", lambda: True)
    assert has_gpu()
    for hidden in ("-1", ""):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert not has_gpu()
    monkeypatch.setenv(GPU, "1")
    assert has_gpu(), "a graph for other machines"


@pytest.mark.training
@pytest.mark.parametrize(("gpu", "chosen"), [("0", 4), ("1", 0)])
def test_for_a_gpu_no_optimizer_of_the_graph_is_left_out(
    monkeypatch: pytest.MonkeyPatch, gpu: str, chosen: int
) -> None:
    monkeypatch.setenv(GPU, gpu)
    assert int(programs.run(OPTIMIZERS, own=True)) == chosen


@pytest.mark.training
def test_the_parameter_server_that_is_measured_beside_a_worker_is_without_its_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    server = OwnServer(1, "127.0.0.1", 1)
    try:
        told = Path(f"/proc/{server._process.pid}/environ")
        until(lambda: told.read_bytes().count(b"\0") > 1, "its environment")  # it is empty in the middle of an exec
        assert b"CUDA_VISIBLE_DEVICES=-1" in told.read_bytes().split(b"\0")
    finally:
        server.close()


def test_tensorflow_takes_of_a_card_what_it_needs_and_none_hides_one_that_lacks_a_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH"):
        monkeypatch.setenv(name, "")  # which is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/proc/driver/nvidia")
    monkeypatch.setattr(graph_mode, "_has_libraries", lambda: False)
    prepare()
    assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ, "CUDA's driver, asked for the reason, would see none"
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    prepare()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"


def test_a_library_that_tensorflow_does_not_find_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_library(tmp_path) == "libcudart.so.12 is missing"
    for package, name in (
        ("cuda_runtime", "cudart.so.12"), ("cublas", "cublas.so.12"), ("cublas", "cublasLt.so.12"),
        ("cufft", "cufft.so.11"), ("cusolver", "cusolver.so.11"), ("cusparse", "cusparse.so.12"),
        ("cudnn", "cudnn.so.9"),
    ):  # fmt: skip
        (tmp_path / "nvidia" / package / "lib").mkdir(parents=True, exist_ok=True)
        (tmp_path / "nvidia" / package / "lib" / f"lib{name}").touch()
    said = missing_library(tmp_path)
    assert said.startswith("libcusolver.so.11 is installed in a folder that the linker does not search"), (
        "the others lie beside"
    )

    def load(name: str) -> None:
        raise OSError("libnvJitLink.so.12: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", load)
    said = missing_library(tmp_path)
    assert said == "libcusolver.so.11 cannot be loaded (libnvJitLink.so.12: cannot open shared object file)"
