"""What a worker makes of the answers at the other end of its line."""

from __future__ import annotations

import socket
import threading

from transient_magics.runtime.protocol import encode
from transient_magics.runtime.worker_link import ChiefLink


def test_a_worker_leaves_where_the_chief_of_another_run_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = ChiefLink(f"127.0.0.1:{server.getsockname()[1]}", "a token of before", "worker-1", "")
        told = threading.Event()
        link.on_told = told.set
        link.start()
        connection, _ = server.accept()
        with connection:
            assert b'"join"' in connection.recv(1 << 16)
            connection.sendall(encode({"ok": False, "error": "wrong token"}))
            assert told.wait(60)
    assert link.told == "told to leave"
