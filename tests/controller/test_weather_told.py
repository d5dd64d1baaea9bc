"""What an emulator says of its weather is checked before anybody goes by it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from transient_magics.controller.vms.access import Access, WantedBack
from transient_magics.errors import UnreachableError
from transient_magics.spec import ClusterSpec

ANCHORS = [[0.0, 0.0, 1.0]]
WANTED = {"number": 1, "vms": ["17", "18"], "until": 1e9}


class Emulator(ThreadingHTTPServer):
    """Answers every question with `says`, whose last `cut` bytes are missing."""

    says: Any = None
    cut = 0


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Emulator)
        content = json.dumps(self.server.says).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) - self.server.cut])

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # seconds that a shutdown may take
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def to(emulator: Emulator) -> Access:
    access = Access(ClusterSpec(name="c", groups=(), zones=("us-central1-a",), prices={}))
    access.engine = SimpleNamespace(endpoint=f"http://127.0.0.1:{emulator.server_port}")  # type: ignore[assignment]
    return access


async def test_it_says_how_fast_time_passes_and_what_is_wanted_back(emulator: Emulator) -> None:
    emulator.says = {"anchors": ANCHORS, "link_bits_per_second": 8e6, "wanted_back": WANTED, "of a newer version": 1}
    access = to(emulator)
    clock, wanted = await access.weather()
    assert (clock.anchors, clock.rate) == (((0.0, 0.0, 1.0),), 1.0)
    assert wanted == WantedBack(1, ("17", "18"), 1e9)
    assert access.link == 1e6


@pytest.mark.parametrize(
    "says",
    [
        {},
        [],
        {"anchors": []},
        {"anchors": [[0.0, 0.0]]},
        {"anchors": [["0", 0.0, 1.0]]},
        {"anchors": [[0.0, 0.0, 0.0]]},
        {"anchors": ANCHORS, "link_bits_per_second": "8mbit"},
        {"anchors": ANCHORS, "link_bits_per_second": 0.0},
        {"anchors": ANCHORS, "wanted_back": {**WANTED, "number": "1"}},
        {"anchors": ANCHORS, "wanted_back": {**WANTED, "number": 0}},
        {"anchors": ANCHORS, "wanted_back": {**WANTED, "vms": "17"}},
        {"anchors": ANCHORS, "wanted_back": {**WANTED, "until": None}},
    ],
)
async def test_what_makes_no_sense_is_refused_in_a_sentence(emulator: Emulator, says: Any) -> None:
    emulator.says = says
    with pytest.raises(UnreachableError, match="The emulator sent an invalid weather: "):
        await to(emulator).weather()


async def test_an_emulator_that_ends_in_the_middle_of_its_answer_is_unreachable(emulator: Emulator) -> None:
    emulator.says = {"anchors": ANCHORS}
    emulator.cut = 2
    with pytest.raises(UnreachableError, match="does not answer"):
        await to(emulator).weather()
