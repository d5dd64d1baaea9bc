"""Links of emulated VMs: shaped as soon as a VM has a network, and retried after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from transient_emulator.network import delay_line
from transient_emulator.network.isolation import Isolation
from transient_emulator.vms.links import Links
from transient_emulator.vms.machine import Machine, Plan
from transient_emulator.weather.settings import Link

NEAR, FAR = "us-central1-c", "us-west1-b"
GIGABIT = Link(1e9)


class FakeMachine:
    """A VM's processes and network. There is no network to shape while it is off."""

    def __init__(self, is_on: bool = True) -> None:
        self.is_on = is_on
        self.rate: float | None = None
        self.far: set[str] = set()
        self.failures = 0
        self.failed = threading.Event()

    def shape(self, rate: float | None, far_rate: float | None, far: Collection[str], late: bool) -> None:
        if not self.is_on:
            return
        if self.failures:
            self.failures -= 1
            self.rate = None  # the kernel took a part of it
            self.failed.set()
            raise OSError("no such device")
        self.rate = rate
        self.far = set(far)


class Site:
    """VMs without processes, in a weather that only has links."""

    def __init__(self, link: Link | None, settle_timeout: float = 60.0) -> None:
        self.settings = SimpleNamespace(link=link)
        self.hosts: dict[str, Any] = {}
        weather = SimpleNamespace(settings=self.settings, on_change=lambda listener: None)
        self.links = Links(cast("Any", weather), lambda: self.hosts, settle_timeout)

    def add(self, name: str, machine: FakeMachine, zone: str = NEAR, address: str = "10.128.0.2") -> None:
        record = SimpleNamespace(name=name, zone=zone, address=address, attributes=dict)
        self.hosts[name] = SimpleNamespace(record=record, machine=machine)


@contextlib.asynccontextmanager
async def running(site: Site) -> AsyncIterator[None]:
    task = asyncio.create_task(site.links.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_links_of_a_vm_that_comes_are_shaped_before_anything_in_it_answers() -> None:
    site = Site(GIGABIT)
    async with running(site):
        for name in ("vm-1", "vm-2"):
            machine = FakeMachine()
            site.add(name, machine)
            await site.links.settle()
            assert machine.rate == 1e9


async def test_a_vm_that_boots_while_another_is_shaped_has_its_link_when_it_is_on() -> None:
    """Without that, its frames took the direct way to another region, and a round trip half of its time."""
    site = Site(Link(1e9, far=1e8))
    first, booting = FakeMachine(), FakeMachine(is_on=False)
    site.add("first", first, NEAR, "10.128.0.2")
    site.add("booting", booting, FAR, "10.128.0.3")
    async with running(site):
        await site.links.settle()
        assert first.far == {"10.128.0.3"}
        booting.is_on = True
        await site.links.settle()
        assert booting.far == {"10.128.0.2"}


async def test_a_vm_that_is_reset_between_two_passes_has_its_link() -> None:
    site = Site(GIGABIT)
    async with running(site):
        site.add("vm", FakeMachine())
        await site.links.settle()
        after_reset = FakeMachine()
        site.add("vm", after_reset)
        await site.links.settle()
        assert after_reset.rate == 1e9


async def test_a_vm_whose_link_cannot_be_shaped_at_first_does_not_answer_before_it_is() -> None:
    site = Site(GIGABIT)
    machine = FakeMachine()
    machine.failures = 2
    site.add("vm", machine)
    async with running(site):
        await site.links.settle()
        assert machine.rate == 1e9


async def test_a_link_that_a_failure_left_half_shaped_is_shaped_again_for_the_former_weather() -> None:
    site = Site(GIGABIT)
    machine = FakeMachine()
    site.add("vm", machine)
    async with running(site):
        await site.links.settle()
        site.settings.link = Link(5e8)
        machine.failures = 1000
        site.links.wake()
        await asyncio.to_thread(machine.failed.wait)
        site.settings.link = GIGABIT
        machine.failures = 0
        await site.links.settle()
        assert machine.rate == 1e9


async def test_a_vm_that_is_switched_off_while_it_is_shaped_keeps_no_other_waiting() -> None:
    class Dying(FakeMachine):
        def shape(self, rate: float | None, far_rate: float | None, far: Collection[str], late: bool) -> None:
            self.is_on = False
            raise OSError("no such process")

    site = Site(GIGABIT)
    machine = FakeMachine()
    site.add("dying", Dying())
    site.add("vm", machine)
    async with running(site), asyncio.timeout(30):
        await site.links.settle()
        assert machine.rate == 1e9


async def test_a_vm_boots_although_links_cannot_be_shaped() -> None:
    site = Site(GIGABIT, settle_timeout=0.01)
    await site.links.settle()  # the control loop is not there


async def test_a_line_that_cannot_be_started_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0
    started_again = asyncio.Event()

    def busy() -> int:
        nonlocal attempts
        attempts += 1
        if attempts == 3:
            started_again.set()
        raise OSError("device or resource busy")

    monkeypatch.setattr(delay_line, "open_tap", busy)
    async with running(Site(Link(1e9, far=1e8, round_trip=0.06))):
        await started_again.wait()


def test_the_network_of_a_vm_that_is_off_cannot_be_shaped(tmp_path: Path) -> None:
    plan = Plan("1", "vm", 2, "10.128.0.2", tmp_path, tmp_path / "home", "transient")
    machine = Machine(plan, Isolation.FULL, lambda: None)
    assert not machine.is_on
    with pytest.raises(OSError, match="VM vm is not running"):
        machine.shape(1e9)
