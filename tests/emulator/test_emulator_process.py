from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from emulated_cloud import PROJECT, ZONE, Cloud, Running, ask_metadata, eventually, http_request, processes, start
from google.api_core import exceptions

from transient_magics import emulator
from transient_magics.controller.vms.access import to_project
from transient_magics.errors import UnreachableError

pytestmark = pytest.mark.slow


def end(running: Running) -> None:
    running.process.terminate()
    assert running.process.wait(60) == 0
    eventually(lambda: processes(str(running.state)) == [])


async def test_vms_survive_an_emulator_that_is_killed(state: Path) -> None:
    first = start(state)
    cloud = Cloud(first)
    for name in ("stays", "dies", "goes"):
        cloud.create(name, metadata={"emulator-notice-seconds": "2"}, scheduling__instance_termination_action="DELETE")
    async with await cloud.ssh("stays") as connection:
        await connection.run("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > pid")
    booting = cloud.insert("boots")
    cloud.preempt("goes")
    lost = cloud.get("dies")
    first.process.kill()
    first.process.wait()
    for process in processes(f"TRANSIENT_VM={lost.id}"):
        os.kill(process, signal.SIGKILL)

    second = start(state)
    assert second.url == first.url, "clients know the port"
    assert not cloud.wait(booting).error.errors
    assert cloud.get("boots").status == "RUNNING"
    async with await cloud.ssh("stays") as connection:
        assert (await connection.run("kill -0 $(cat pid)")).exit_status == 0, "what ran goes on"
        other = cloud.get("boots").network_interfaces[0].network_i_p
        reached = await connection.run(
            f"transient-python -c 'import socket; socket.create_connection((\"{other}\", 22), 20)'"
        )
        assert reached.exit_status == 0, "old and new VMs share the network"
    eventually(lambda: cloud.names() == {"stays", "boots"})
    end(second)


def test_an_emulator_behind_nohup_stays_when_its_terminal_goes(state: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = start(state)
    finally:
        signal.signal(signal.SIGHUP, before)
    running.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        running.process.wait(1)
    assert running.about()["state"] == str(state)
    end(running)


def test_vms_whose_network_is_lost_have_failed(state: Path) -> None:
    first = start(state)
    cloud = Cloud(first)
    cloud.create("demand", spot=False)
    cloud.create("spot", scheduling__instance_termination_action="DELETE")
    holder = json.loads((state / "emulator.json").read_text(encoding="utf-8"))["holder"][0]
    first.process.kill()
    first.process.wait()
    os.kill(holder, signal.SIGKILL)
    (state / "instances" / "torn.json").write_text("{", encoding="utf-8")
    second = start(state)
    eventually(lambda: cloud.names() == {"demand"} and cloud.get("demand").status == "TERMINATED")
    kinds = {each.operation_type: each.target_link for each in cloud.operations.list(project=PROJECT, zone=ZONE)}
    assert kinds["compute.instances.hostError"].endswith("/demand")
    assert kinds["compute.instances.preempted"].endswith("/spot")
    cloud.wait(cloud.instances.start_unary(project=PROJECT, zone=ZONE, instance="demand"))
    assert cloud.get("demand").status == "RUNNING"
    end(second)


def test_a_vm_that_dies_is_noticed(cloud: Cloud) -> None:
    instance = cloud.create("w0")
    for process in processes(f"TRANSIENT_VM={instance.id}"):
        os.kill(process, signal.SIGKILL)
    eventually(lambda: cloud.get("w0").status == "TERMINATED")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a small disk")
def test_a_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], check=True)
    try:
        running = start(disk / "state")
        cloud = Cloud(running)
        cloud.create("w0")
        subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'filler'}", "bs=4k"], stderr=subprocess.DEVNULL)
        with pytest.raises(exceptions.ServiceUnavailable, match="No space"):
            cloud.insert("w1")
        assert cloud.names() == {"w0"}
        (disk / "filler").unlink()
        cloud.create("w1")
        end(running)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_the_end_of_an_emulator_is_the_end_of_its_vms_unless_they_are_to_be_kept(state: Path) -> None:
    first = start(state, "--keep")
    cloud = Cloud(first)
    identity = cloud.create("w0").id
    first.process.terminate()
    assert first.process.wait(60) == 0
    assert processes(str(identity))
    second = start(state)
    assert cloud.get("w0").status == "RUNNING"
    end(second)
    assert not list((state / "vms").iterdir())


def test_an_emulator_whose_state_is_removed_ends_with_its_vms(state: Path) -> None:
    running = start(state)
    Cloud(running).create("one")
    shutil.rmtree(state)
    running.process.wait(60)
    eventually(lambda: processes(str(state)) == [])


def test_two_emulators_do_not_share_a_state(running: Running) -> None:
    command = [sys.executable, "-m", "transient_emulator", "--state", str(running.state)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, encoding="utf-8")
    assert refused.returncode == 1
    assert f"({running.url})" in refused.stderr


def as_nobody(script: str) -> str:
    """What a Python program of another user's prints."""
    python = Path("/usr/bin/python3")
    command = [str(python) if python.exists() else getattr(sys, "_base_executable", sys.executable), "-I", "-c", script]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, user="nobody", cwd="/", timeout=120, encoding="utf-8"
        )
    except PermissionError:
        pytest.skip("there is no Python here that another user may run")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_user_of_the_machine_is_refused(running: Running) -> None:
    script = (
        "import http.client; c = http.client.HTTPConnection('{}'); c.request('GET', '/emulator/v1');"
        "print(c.getresponse().status)"
    ).format(running.url.removeprefix("http://"))
    ours = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, encoding="utf-8")
    assert ours.stdout == "200\n"
    assert as_nobody(script) == "403\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user, and an orphan counts as root's")
def test_another_user_who_does_not_wait_for_the_answer_makes_no_vm(running: Running, cloud: Cloud) -> None:
    # The kernel writes a connection that its user has closed down as root's; each of these closes its own at once.
    image = "projects/debian-cloud/global/images/family/debian-12"
    body = json.dumps({
        "name": "theirs", "machineType": f"zones/{ZONE}/machineTypes/n1-standard-4",
        "disks": [{"boot": True, "initializeParams": {"sourceImage": image}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
    })  # fmt: skip
    host, port = running.url.removeprefix("http://").split(":")
    head = f"POST /compute/v1/projects/{PROJECT}/zones/{ZONE}/instances HTTP/1.1\r\nHost: {host}:{port}\r\n"
    request = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    as_nobody(
        f"import socket\nrequest = {request.encode()!r}\nopen = []\n"
        "for _ in range(200):\n"
        f"    open.append(socket.create_connection(({host!r}, {port})))\n"
        "for each in open:\n    each.sendall(request)\n    each.close()\n"
    )
    # What came before it has been answered by then.
    assert http_request(running.url, "GET", "/emulator/v1")[1]["vms"] == 0
    assert cloud.names() == set()


def test_ensure_starts_one_emulator_that_goes_when_nobody_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    with emulator.hold():
        with ThreadPoolExecutor(3) as pool:
            urls = set(pool.map(lambda _: emulator.ensure(linger=0.5, options=("--boot", "0.2")), range(3)))
        (url,) = urls
        about = emulator.about(url)
        assert about["isolated"]
        cloud = Cloud(Running(None, url, Path(about["state"])))  # type: ignore[arg-type]
        cloud.create("w0")
        os.kill(about["pid"], signal.SIGKILL)
        assert emulator.ensure() == url, "revived where its clients look for it"
        assert cloud.names() == {"w0"}
        cloud.delete("w0")
        time.sleep(2)
        assert cloud.names() == set(), "it does not go while a process holds it"
    eventually(lambda: not processes(str(tmp_path)))


async def test_a_client_holds_the_emulator_that_it_has_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    emulator.ensure(linger=0.5)
    async with to_project(None) as access:
        await access.reopen()
        await asyncio.sleep(2)
        assert await access.engine.get(ZONE, "none") is None, "it answers"
    eventually(lambda: not processes(str(tmp_path)))


def test_an_emulator_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    with pytest.raises(UnreachableError, match="--nonsense"):
        emulator.ensure(options=("--nonsense",))


@pytest.mark.parametrize("isolation", ["off", "network"])
async def test_with_fewer_namespaces_vms_still_end_completely(state: Path, isolation: str) -> None:
    running = start(state, TRANSIENT_MAGICS_EMULATOR_ISOLATION=isolation)
    assert running.about()["isolated"] is (isolation == "network")
    cloud = Cloud(running)
    instance = cloud.create("w0")
    address = instance.network_interfaces[0].network_i_p
    assert address.startswith("10.128." if isolation == "network" else "127.128.")
    async with await cloud.ssh("w0") as connection:
        await connection.run("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > pid")
        asked = await ask_metadata(connection, "instance/name", "GET", "", {"Metadata-Flavor": "Google"})
        assert asked == (200, "w0")
        assert (await connection.run("tty", term_type="xterm")).exit_status == 0
        process = await connection.create_process("echo up; exec sleep 1000")
        await process.stdout.readline()
        process.terminate()
        assert (await process.wait()).exit_signal
    running.process.kill()
    running.process.wait()
    running = start(state, TRANSIENT_MAGICS_EMULATOR_ISOLATION=isolation)
    async with await cloud.ssh("w0") as connection:
        assert (await connection.run("kill -0 $(cat pid)")).exit_status == 0
    cloud.delete("w0")
    assert processes(str(instance.id)) == []
    end(running)


def test_nothing_in_the_state_of_an_emulator_can_be_read_by_others(state: Path) -> None:
    state.mkdir(parents=True, mode=0o755)
    running = start(state)
    Cloud(running).create("one")
    try:
        open_to_others = [each.name for each in state.iterdir() if each.is_dir() and each.stat().st_mode & 0o077]
        assert open_to_others == []
        assert (state / "emulator.json").stat().st_mode & 0o077 == 0
    finally:
        end(running)
