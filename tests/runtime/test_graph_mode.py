"""For which machine a graph is built."""

from __future__ import annotations

import os

import pytest

from transient_magics.runtime.tf.graph_mode import GPU, has_gpu


def test_a_gpu_that_is_hidden_from_a_process_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GPU, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/proc/driver/nvidia")
    assert has_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert not has_gpu()
    monkeypatch.setenv(GPU, "1")
    assert has_gpu(), "a graph for other machines"
