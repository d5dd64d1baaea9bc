"""VMs that shrink: who gives how much, how a VM is kept to it, and what its clients and its controller see of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from emulated_cloud import Cloud, Running, eventually, http_request, processes, start
from hypothesis import given
from hypothesis import strategies as st

from transient_emulator.deflation import duty_cycle, throttle
from transient_emulator.deflation.policies import POLICIES, Deflatable, reclaim
from transient_emulator.deflation.throttle import ControlGroups, DutyCycle
from transient_magics.cloud.values import vm_of
from transient_magics.errors import DeclarationError
from transient_magics.protocol.machines import LEAST, WHOLE, Share, share_of

SHARES = "/emulator/v1/shares"
BURN = [sys.executable, "-S", "-c", "while True: pass"]


@st.composite
def servers(draw: st.DrawFn) -> list[Deflatable]:
    count = draw(st.integers(1, 8))
    part = st.floats(0, 1)
    sizes = [draw(st.integers(1, 96)) for _ in range(count)]
    return [Deflatable(f"vm-{n}", size, size * draw(part) / 2, draw(part)) for n, size in enumerate(sizes)]


@given(servers(), st.sampled_from(sorted(POLICIES)), st.floats(0, 1))
def test_what_is_given_is_what_is_reclaimed_and_nobody_gives_more_than_it_can(
    vms: list[Deflatable], policy: str, part: float
) -> None:
    """The sum is R, each x_i is from 0 to M_i - m_i, and more than there is to give is refused."""
    kept = {vm.name: vm.least if policy == "proportional" else vm.kept for vm in vms}
    room = {vm.name: vm.size - kept[vm.name] for vm in vms}
    wanted = part * sum(room.values())
    given_up = reclaim(wanted, vms, policy)
    assert sum(given_up.values()) == pytest.approx(wanted, abs=1e-6)
    assert all(-1e-9 <= given_up[name] <= room[name] + 1e-9 for name in room)
    with pytest.raises(DeclarationError, match="cannot be reclaimed"):
        reclaim(sum(room.values()) + 1, vms, policy)


def test_each_policy_has_its_order() -> None:
    vms = [Deflatable("dear", 8, 0, 0.5), Deflatable("cheap", 4, 0, 0.25), Deflatable("mean", 4, 0, 0.5)]
    assert reclaim(4, vms, "proportional") == {"dear": 2, "cheap": 1, "mean": 1}
    assert reclaim(3, vms, "priority") == pytest.approx({"dear": 4 / 3, "cheap": 1, "mean": 2 / 3})
    assert reclaim(4, vms, "deterministic") == {"cheap": 3, "dear": 1, "mean": 0}


@given(st.floats(LEAST, 1), st.floats(LEAST, 1))
def test_a_share_is_read_as_it_was_written(cpu: float, network: float) -> None:
    assert share_of(str(Share(cpu, network))) == Share(float(f"{cpu:.4g}"), float(f"{network:.4g}"))


@pytest.mark.parametrize("text", ["", "0.5", "0.5 2", "-1 1", "nan 1", "0 0", "half all", "0.5 1 1"])
def test_what_is_no_share_is_all_of_it(text: str) -> None:
    assert share_of(text) == WHOLE


def test_a_quota_is_written_as_each_version_of_control_groups_has_it(tmp_path: Path) -> None:
    """On folders made like those of the kernel's; version 2 as Debian 12 has it."""
    first = {"cpu.cfs_quota_us": "10000", "cpu.cfs_period_us": "20000"}
    for version, files in ((1, first), (2, {"cpu.max": "10000 20000"})):
        group = tmp_path / str(version) / "transient-7"
        group.mkdir(parents=True)
        (group / "cgroup.procs").write_text("11\n", encoding="utf-8")
        ControlGroups(group.parent, version).limit("7", 2.0, 0.25, lambda: [11, 12])
        assert {name: (group / name).read_text(encoding="utf-8") for name in files} == files
        assert (group / "cgroup.procs").read_text(encoding="utf-8") == "12", "only who is not in it yet is written"


def test_whoever_may_make_no_control_group_has_the_duty_cycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(throttle.available(tmp_path / "none"), DutyCycle)
    monkeypatch.setenv(throttle.VARIABLE, "cycle")
    assert isinstance(throttle.available(), DutyCycle)


@contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed at the end of the block."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def stopped_share(process: int, seconds: float = 2.0) -> float:
    """The part of the time in which a process is stopped."""
    seen: list[bool] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seen.append(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T")
        time.sleep(0.003)
    return sum(seen) / len(seen)


_MASTER = """
import sys, time
from transient_emulator.deflation.throttle import DutyCycle
cycle = DutyCycle()
while True:
    cycle.limit("vm", 1.0, 0.25, lambda: [int(sys.argv[1])])
    time.sleep(0.1)
"""


@pytest.mark.slow
def test_a_duty_cycle_stops_a_process_for_the_rest_of_each_period_and_lets_it_go_when_its_master_dies() -> None:
    with ending(subprocess.Popen(BURN)) as burner:
        master = subprocess.Popen([sys.executable, "-c", _MASTER, str(burner.pid)])
        with ending(master):
            eventually(lambda: stopped_share(burner.pid, 0.2) > 0)
            # Three quarters; on a busy machine it is stopped late, as it hears of that only when it has a processor.
            assert stopped_share(burner.pid) > 0.25
            (helper,) = processes(duty_cycle.__name__)
            os.kill(helper, signal.SIGTERM)
            assert stopped_share(burner.pid, 0.5) > 0, "no signal ends it before it has let go"
        eventually(lambda: stopped_share(burner.pid, 0.3) == 0)


def used(process: int) -> float:
    """Seconds of CPU."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[Running]:
    running = start(tmp_path / "state", "--port", "0", "--notice", "0.3")
    yield running
    running.process.terminate()
    assert running.process.wait(60) == 0


def shared(cloud: Cloud, name: str) -> Share:
    """What Compute Engine's list says of the VM, as a controller reads it."""
    return vm_of(cloud.get(name)).share


def change(cloud: Cloud, *names: str, **wanted: Any) -> tuple[int, Any]:
    vms = {str(cloud.get(name).id): 0.5 for name in names}
    return http_request(cloud.running.url, "POST", SHARES, {"vms": vms, **wanted})


@pytest.mark.slow
async def test_a_vm_is_shrunk_told_of_it_and_given_back(emulated: Running) -> None:
    """All that runs in it, what comes later included; by whoever asks, or by the weather; whatever dies meanwhile."""
    cloud = Cloud(emulated)
    for name in ("w0", "w1"):
        cloud.create(name)
    async with await cloud.ssh("w0") as connection:
        burner = await connection.create_process("transient-python -S -c 'while True: pass # burnt'")
        eventually(lambda: len(processes("# burnt")) > 0)
        await asyncio.sleep(1)
        pid = max(processes("# burnt"), key=used)
        assert change(cloud, "w0", cpu=0.2)[0] == 200
        eventually(lambda: shared(cloud, "w0") == Share(0.2, 1.0))
        await asyncio.sleep(1.5)
        began, before = time.monotonic(), used(pid)
        await asyncio.sleep(3.0)
        part = (used(pid) - before) / (time.monotonic() - began)
        assert part <= 0.27, "a fifth of the processor that an operation has"
        assert shared(cloud, "w1") == WHOLE

        status, answer = change(cloud, "w0", "w1", reclaim=100, policy="proportional")
        assert status == 400
        assert "cannot be reclaimed" in answer["error"]["message"]
        for wrong in ({"cpu": 0}, {"cpu": 2}, {"cpu": "x"}, {"reclaim": 1, "policy": "none"}, {"vms": 3}):
            assert change(cloud, "w0", **wrong)[0] == 400
        assert shared(cloud, "w0") == Share(0.2, 1.0)

        cloud.running.process.kill()  # its successor finds what was asked for
        cloud.running.process.wait()
    again = start(cloud.running.state, "--notice", "0.3")
    emulated.process, emulated.url = again.process, again.url
    cloud = Cloud(emulated)
    eventually(lambda: cloud.names() == {"w0", "w1"})
    assert shared(cloud, "w0") == Share(0.2, 1.0)
    pressed = http_request(emulated.url, "PATCH", "/emulator/v1/weather", {"pressure": "2cpu,for=3s"})
    assert pressed[0] == 200
    assert any("2 vCPUs" in line for line in pressed[1]["description"])
    eventually(lambda: shared(cloud, "w1") == Share(0.75, 1.0))
    assert shared(cloud, "w0") == Share(0.2, 1.0), "the lesser of both"
    eventually(lambda: shared(cloud, "w1") == WHOLE)
    assert change(cloud, "w0", cpu=1, network=1)[0] == 200
    eventually(lambda: shared(cloud, "w0") == WHOLE)
    burner.close()
    groups = [f"cpu*/transient-{cloud.get(name).id}" for name in ("w0", "w1")]
    cloud.delete("w0", "w1")
    eventually(lambda: not any(list(throttle.ROOT.glob(group)) for group in groups))
