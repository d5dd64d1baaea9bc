"""Whose a connection is, asked for alone and looked up in the kernel's tables: the same answers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest

from transient_emulator.network.ownership import belongs, open_sources


@pytest.fixture(params=["asked", "looked up"])
def sources(request: pytest.FixtureRequest) -> Iterator[list[int]]:
    opened = open_sources()
    assert len(opened) == 3, "this kernel can be asked, and has both tables"
    yield opened[:1] if request.param == "asked" else opened[1:]
    for each in opened:
        os.close(each)


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_an_open_connection_belongs_to_its_user_alone(sources: list[int], host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        with socket.create_connection((host, place[1])) as client:
            here = ("127.0.0.1", client.getsockname()[1])
            taken, there = server.accept()
            with taken:
                assert there == here
                assert belongs(sources, os.getuid(), here, place)
                assert belongs(sources, os.getuid(), here, place), "as often as one asks"
                assert not belongs(sources, os.getuid() + 1, here, place)
                assert not belongs(sources, os.getuid(), (here[0], 1), place), "that one does not exist"


def test_a_connection_whose_client_has_gone_belongs_to_nobody_not_even_root(sources: list[int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        client = socket.create_connection(place)
        here = client.getsockname()
        taken, _ = server.accept()
        with taken:
            taken.sendall(b"never read")
            client.shutdown(socket.SHUT_WR)
            client.close()
            deadline = time.monotonic() + 30
            while belongs(sources, 0, here, place) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not belongs(sources, 0, here, place)


def test_where_the_kernel_cannot_be_asked_its_tables_tell() -> None:
    opened = open_sources()
    deaf, other = socket.socketpair()  # not a kernel: it does not answer
    deaf.setblocking(False)
    with socket.create_server(("127.0.0.1", 0)) as server, deaf, other:
        place = server.getsockname()
        with socket.create_connection(place) as client:
            assert belongs([deaf.fileno(), *opened[1:]], os.getuid(), client.getsockname(), place)
    for each in opened:
        os.close(each)
