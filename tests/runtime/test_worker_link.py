"""What a worker makes of the answers at the other end of its line."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from transient_magics.protocol.messages import encode
from transient_magics.runtime.role import STUCK
from transient_magics.runtime.worker import __main__ as worker
from transient_magics.runtime.worker.chief_link import ChiefLink


def test_a_worker_waits_where_the_chief_of_the_run_before_answers_and_leaves_where_that_of_a_later_one_does():
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = ChiefLink(f"127.0.0.1:{server.getsockname()[1]}", "its run's token", "worker-1", "")
        told = threading.Event()
        link.on_stop = told.set
        link.start()
        for answer in ({"ok": False, "error": "wrong token"}, {"do": "joined", "number": 4, "active": 1}):
            connection, _ = server.accept()
            with connection:
                assert b'"join"' in connection.recv(1 << 16)
                connection.sendall(encode(answer))
                assert link.numbered.wait(60 if "number" in answer else 0.5) is ("number" in answer)
            assert not told.is_set()
        connection, _ = server.accept()
        with connection:
            assert b'"join"' in connection.recv(1 << 16)
            connection.sendall(encode({"ok": False, "error": "wrong token"}))
            assert told.wait(60)
    assert (link.number, link.stop_reason) == (4, "told to leave")


@pytest.mark.slow
def test_time_in_which_a_server_is_away_is_no_time_without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    limit = 1.5
    monkeypatch.setattr(worker, "_STUCK_AT_LEAST", limit)
    monkeypatch.setattr(worker, "_STUCK_BEFORE_FIRST", 4 * limit)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    watched = object.__new__(worker.Worker)
    watched._link = SimpleNamespace(connected=threading.Event(), leave=lambda reason: None)  # type: ignore[assignment]
    watched._role = SimpleNamespace(  # type: ignore[assignment]
        assignment=SimpleNamespace(ps=[f"127.0.0.1:{port}"]), end=ended.append
    )
    meter = SimpleNamespace(steps=7, usual=0.01)
    training = SimpleNamespace(stop=threading.Event(), meter=meter, alive=time.monotonic(), starved=False)
    watched._training = training  # type: ignore[assignment]
    watched._steps_when_away = 0
    watched._link.connected.set()

    def look(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not ended:
            watched._watchdog(asleep=0.05)
            time.sleep(0.05)

    look(1.5 * limit)
    assert not ended, "the server is away"
    with socket.create_server(("127.0.0.1", port)):
        look(2 * limit)
        assert not ended, "it has come back, and variables are restored"
        training.starved = True
        look(2 * limit)
        assert not ended, "it waits for mini-batches that other VMs prepare"
        training.starved = False
        look(60)
        assert ended == [STUCK], "it answers, and still there is no step"
