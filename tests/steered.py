"""A cluster whose real controller runs in the test's own process, where a test can shorten what it waits for."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tests.homes import own_home
from transient_magics import emulator, places
from transient_magics.client import Cluster, Declaration
from transient_magics.client.declaring import specify
from transient_magics.controller.cluster import Controller
from transient_magics.journal import ClusterState

PATIENCE = 200.0


@contextmanager
def swift_emulator() -> Iterator[str]:
    """The URL of an emulator whose VMs boot and go in half a second, in a home of its own."""
    with own_home(), emulator.hold():
        yield emulator.ensure(options=("--boot", "0.3", "--notice", "0.5"))


def weather(url: str, **given: Any) -> None:
    """Set the weather of an emulator."""
    request = urllib.request.Request(f"{url}/emulator/v1/weather", json.dumps(given).encode(), method="PATCH")
    urllib.request.urlopen(request, timeout=10).close()


class Steered:
    """`cluster` may be read and never followed: whoever follows it starts a controller beside this one."""

    def __init__(self, name: str) -> None:
        self.cluster = Cluster(name)

    async def until(self, reached: Callable[[ClusterState], object], seconds: float = PATIENCE) -> ClusterState:
        """The state once it is as it should be; it is within so many seconds."""
        async with asyncio.timeout(seconds):
            while not reached(state := self.cluster.state):  # noqa: ASYNC110 (following it starts a controller)
                await asyncio.sleep(0.05)
        return state


@asynccontextmanager
async def steered(declaration: Declaration) -> AsyncIterator[Steered]:
    """Declared, and at the end deleted. `declaration` names it, and this process has a home of its own."""
    spec = specify(declaration)
    directory = places.cluster(spec.name)
    directory.joinpath("runs").mkdir(parents=True)
    (directory / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    controller = Controller(directory)
    governing = asyncio.create_task(controller.run())
    found = Steered(spec.name)
    try:
        yield found
    finally:
        if not governing.done():
            controller._recorder.begin_deletion("the test is over")
        async with asyncio.timeout(PATIENCE):
            await governing
