"""Links to agents that accept connections and do not answer, in seconds of an event loop that does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from tests import virtual_time
from transient_magics.controller.vms.link import Hooks, Link
from transient_magics.remote import Connection

ANSWER = b'{"ok": true, "processes": []}\n'


class Agent:
    """An agent that answers the first `answers` commands and hangs from then on."""

    def __init__(self, answers: int) -> None:
        self.answers = answers


class Writer:
    """The controller's end of a socket to an agent, which answers into `reader`."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.reader = asyncio.StreamReader()

    def write(self, command: bytes) -> None:
        if self.agent.answers:
            self.agent.answers -= 1
            self.reader.feed_data(ANSWER)

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        pass


class OneVm:
    """A connection to a VM that has the code already. The next of `agents` runs once the one before is killed."""

    def __init__(self, *agents: Agent) -> None:
        self.closed = asyncio.Event()
        self.agents = list(agents)
        self.killed_at: list[float] = []
        self.ready_at: list[float] = []

    async def exists(self, path: str) -> bool:
        return True

    async def open_socket(self, path: str) -> tuple[asyncio.StreamReader, Writer]:
        writer = Writer(self.agents[0])
        return writer.reader, writer

    async def follow(self, path: str, offset: int, **limits: object) -> AsyncIterator[tuple[int, bytes]]:
        await asyncio.Event().wait()
        yield 0, b""

    async def run(self, command: str, **limits: object) -> str:
        if command.startswith("kill -9"):
            self.killed_at.append(asyncio.get_running_loop().time())
            self.agents.pop(0)
        return ""

    async def close(self) -> None:
        self.closed.set()

    async def answers_after(self, seconds: float) -> bool:
        """Keep a link to the VM for `seconds`. Return whether its agent counts as answering then."""

        async def connect() -> Connection:
            return cast(Connection, self)

        def ready(_: str) -> None:
            self.ready_at.append(asyncio.get_running_loop().time())

        link = Link("worker-0", connect, Hooks(ready, lambda _: None, lambda *_: None, lambda *_: None))
        task = asyncio.create_task(link.run())
        await asyncio.wait([task], timeout=seconds)
        answering = link.answering
        task.cancel()
        await asyncio.wait([task])
        return answering


@pytest.mark.parametrize("hanging", [1, 3])
def test_an_agent_that_never_answers_is_replaced_after_15_seconds(hanging: int) -> None:
    async def main() -> None:
        vm = OneVm(*[Agent(answers=0) for _ in range(hanging)], Agent(answers=10_000))
        assert await vm.answers_after(120)
        assert vm.killed_at == pytest.approx([15.0 * number for number in range(1, hanging + 1)], abs=2)
        assert vm.ready_at == pytest.approx([vm.killed_at[-1]], abs=2)

    virtual_time.run(main())


@pytest.mark.parametrize(("seconds", "answering"), [(70, True), (80, False)])
def test_a_vm_counts_as_answering_for_15_seconds_after_its_agent_hung(seconds: float, answering: bool) -> None:
    """The agent answers once a second for a minute before."""

    async def main() -> bool:
        return await OneVm(Agent(answers=60)).answers_after(seconds)

    assert virtual_time.run(main()) is answering


def test_an_agent_that_hangs_after_a_minute_is_replaced_within_half_a_minute() -> None:
    async def main() -> None:
        vm = OneVm(Agent(answers=60), Agent(answers=10_000))
        assert await vm.answers_after(300)
        assert vm.killed_at == pytest.approx([60 + 15 + 15], abs=5)
        assert len(vm.ready_at) == 2

    virtual_time.run(main())
