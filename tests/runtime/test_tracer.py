"""What a worker answers to whoever wants a trace of its step."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from transient_magics.protocol import layout
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.worker import meter
from transient_magics.runtime.worker.meter import WARM, Tracer


class Metadata:
    """Of a traced step; it can be read once `readable` is set."""

    def __init__(self) -> None:
        self.readable = threading.Event()

    @property
    def step_stats(self) -> SimpleNamespace:
        assert self.readable.wait(60)
        return SimpleNamespace(dev_stats=[])


def test_nobody_is_refused_the_trace_that_is_being_written_and_the_next_one_has_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "_CHECK_SECONDS", 0.0)
    tracing, metadata = Tracer(RunFolder(tmp_path), "worker-0"), Metadata()
    wanted, trace, refused = (tmp_path / name for name in (layout.TRACE_WANTED, layout.TRACE, layout.TRACE_REFUSED))
    wanted.touch()
    tracing.took({"run_metadata": metadata}, 30, time.time(), seconds=0.5, usual=0.1)
    assert tracing.options(WARM) == {}
    assert not refused.exists()
    metadata.readable.set()
    deadline = time.monotonic() + 60
    while not trace.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert trace.exists()
    assert not refused.exists()
    wanted.touch()
    assert tracing.options(WARM) == {}
    assert 200 < int(refused.read_text(encoding="utf-8")) <= 300
    assert not wanted.exists(), "it is answered once"
