from __future__ import annotations

import asyncio
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from mmap import ACCESS_READ, mmap
from pathlib import Path

import asyncssh
import pytest
from emulated_cloud import PROJECT, ZONE, Cloud, dial, eventually, processes, text_of
from google.api_core import exceptions
from google.cloud import compute_v1

from transient_emulator.instances import Record
from transient_emulator.vms import names


@pytest.mark.slow
async def test_a_vm_is_a_machine_of_its_own(cloud: Cloud) -> None:
    cloud.create("w0")
    async with await cloud.ssh("w0") as connection:
        said = await connection.run("echo out; echo err >&2; exit 3")
        assert (said.stdout, said.stderr, said.exit_status) == ("out\n", "err\n", 3)
        environment = dict(line.split("=", 1) for line in str((await connection.run("env")).stdout).splitlines())
        assert environment["GCE_METADATA_HOST"] == "169.254.169.254"
        assert environment["PWD"] == environment["HOME"]
        assert len(environment["HOME"]) < 60
        assert not {"SSH_AUTH_SOCK", "GOOGLE_APPLICATION_CREDENTIALS", "VIRTUAL_ENV"} & set(environment)
        for name in (name for name in environment if name.startswith("TF_")):
            assert _tensorflow_reads(name)
        python = await connection.run("transient-python -c 'import asyncssh, os; print(os.getpid())'")
        assert python.exit_status == 0
        assert int(str(python.stdout)) < 1000, "processes are counted anew in every VM"


def _tensorflow_reads(name: str) -> bool:
    package = find_spec("tensorflow")
    assert package
    assert package.origin
    with (Path(package.origin).parent / "libtensorflow_framework.so.2").open("rb") as library:
        return mmap(library.fileno(), 0, access=ACCESS_READ).find(b"\0" + name.encode() + b"\0") >= 0


async def test_programs_get_input_signals_and_a_terminal(cloud: Cloud) -> None:
    cloud.create("w0")
    async with await cloud.ssh("w0") as connection:
        assert (await connection.run("cat", input="x" * 300_000)).stdout == "x" * 300_000
        process = await connection.create_process(
            "trap 'echo caught; exit 7' TERM; echo up; while :; do sleep 0.05; done"
        )
        assert await process.stdout.readline() == "up\n"
        process.terminate()
        ended = await process.wait()
        assert (ended.stdout, ended.exit_status) == ("caught\n", 7)
        terminal = await connection.run("tty; stty size", term_type="xterm", term_size=(90, 30))
        assert str(terminal.stdout).split() == [str(terminal.stdout).split()[0], "30", "90"]
        assert str(terminal.stdout).startswith("/dev/pts/")


async def test_a_daemon_outlives_its_connection_but_not_the_vm(cloud: Cloud) -> None:
    cloud.create("w0")
    listen = (
        "import os, socket; s = socket.socket(socket.AF_UNIX); s.bind('agent.sock'); s.listen()\n"
        "while True: s.accept()[0].sendall(b'hello')"
    )
    async with await cloud.ssh("w0") as connection:
        async with connection.start_sftp_client() as files, files.open("daemon.py", "w") as file:
            await file.write(listen)
        await connection.run(
            "setsid transient-python daemon.py </dev/null >log 2>&1 & while ! [ -S agent.sock ]; do :; done"
        )
        home = str((await connection.run("pwd")).stdout).strip()
    async with await cloud.ssh("w0") as connection:
        reader, writer = await connection.open_unix_connection(f"{home}/agent.sock")
        assert await reader.read() == b"hello"
        writer.close()
        identity = str(cloud.get("w0").id)
        assert len(processes(identity)) >= 2
        cloud.delete("w0")
        await asyncio.wait_for(connection.wait_closed(), 60)
    assert processes(identity) == []


async def test_files_stay_in_the_vm(cloud: Cloud, tmp_path: Path) -> None:
    cloud.create("w0")
    source = tmp_path / "source"
    source.write_bytes(b"x" * 1_000_000)
    async with await cloud.ssh("w0") as connection, connection.start_sftp_client() as files:
        await files.makedirs("transient/code")
        await files.put(str(source), "transient/code/copy")
        home = str((await connection.run("echo $HOME; wc -c < transient/code/copy")).stdout).split()
        assert (await files.getcwd(), home[1]) == (home[0], "1000000")
        assert "copy" in await files.listdir(f"{home[0]}/transient/code")
        for outside in ("/etc/passwd", "../../../../etc/passwd"):
            with pytest.raises(asyncssh.SFTPPermissionDenied):
                await files.get(outside, str(tmp_path / "stolen"))


async def test_only_the_key_in_the_metadata_opens_the_door(cloud: Cloud) -> None:
    cloud.create("w0")
    for refused in ({"client_keys": [asyncssh.generate_private_key("ssh-ed25519")]}, {"username": "root"}):
        with pytest.raises(asyncssh.PermissionDenied):
            await cloud.ssh("w0", **refused)
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        await cloud.ssh("w0", known_hosts=([asyncssh.generate_private_key("ssh-ed25519")], [], []))


@pytest.mark.slow
async def test_vms_see_each_other_and_nothing_else(cloud: Cloud) -> None:
    operations = [cloud.insert(name) for name in ("w0", "w1")]
    for operation in operations:
        cloud.wait(operation)
    other = cloud.get("w1").network_interfaces[0].network_i_p
    with socket.create_server(("0.0.0.0", 0)) as outside:
        port = outside.getsockname()[1]
        targets = [(other, 22), ("127.0.0.1", port), ("10.128.0.1", port), ("8.8.8.8", 53)]
        script = (
            "import socket\n"
            f"for target in {targets!r}:\n"
            "    try: socket.create_connection(target, 2); print('yes')\n"
            "    except OSError as error: print(type(error).__name__, error.errno)"
        )
        async with await cloud.ssh("w0") as connection:
            said = str((await connection.run("transient-python -", input=script)).stdout).splitlines()
            reader, writer = await connection.open_connection(other, 22)
            assert (await reader.readline()).startswith(b"SSH-2.0")
            writer.close()
    assert said[0] == "yes"
    assert "yes" not in said[1:]
    own = cloud.get("w0").network_interfaces[0].network_i_p
    asked = ["w0", f"w1.{ZONE}.c.{PROJECT}.internal", "w1", "localhost"]
    resolve = f"import socket; print(socket.gethostname(), *(socket.gethostbyname(name) for name in {asked!r}))"
    async with await cloud.ssh("w0") as connection:
        named = str((await connection.run("transient-python -", input=resolve)).stdout).split()
        assert named == ["w0", own, other, other, "127.0.0.1"], "collectives bind to what their own name means"
        cloud.delete("w1")
        assert (await connection.run("getent hosts w1")).exit_status != 0
    # The machine itself has no way to that address (whatever a gateway outside may pretend).
    try:
        with socket.create_connection((other, 22), 0.5) as pretended:
            pretended.settimeout(0.5)
            assert not pretended.recv(7).startswith(b"SSH")
    except OSError:
        pass


def test_a_vm_resolves_the_vms_of_its_network_and_by_their_short_names_those_of_its_zone(tmp_path: Path) -> None:
    def record(name: str, address: str, zone: str = "z-a", project: str = "p", network: str = "default") -> Record:
        resource = {"networkInterfaces": [{"network": network}]}
        return Record(project, zone, name, resource, 1, address, name, name)

    own = record("own", "10.0.0.1")
    others = [
        own, record("peer", "10.0.0.2"), record("far", "10.0.0.3", zone="z-b"),
        record("theirs", "10.0.0.4", project="q"), record("apart", "10.0.0.5", network="other"),
    ]  # fmt: skip
    files = {record.name: content for record, content in names.hosts_files(others)}
    content = files["own"]
    assert content.splitlines() == [
        "127.0.0.1 localhost", "10.0.0.1 own.z-a.c.p.internal own", names.METADATA,
        "10.0.0.2 peer.z-a.c.p.internal peer", "10.0.0.3 far.z-b.c.p.internal",
    ]  # fmt: skip
    assert "own.z-a.c.p.internal\n" in files["far"], "of another zone by its full name alone"
    assert "10.0.0.1" not in files["theirs"] + files["apart"]
    path = tmp_path / "hosts"
    names.replace_content(path, content)
    inode = path.stat().st_ino
    names.replace_content(path, "127.0.0.1 localhost\n")
    assert path.read_text(encoding="utf-8").split() == ["127.0.0.1", "localhost"]
    assert path.stat().st_ino == inode, "it is mounted in the VM"


def test_the_relay_reaches_vms_only(cloud: Cloud) -> None:
    relay = cloud.running.about()["relay"]
    assert Path(relay).stat().st_mode & 0o777 == 0o600
    for address, port in (("10.128.0.1", 80), ("127.0.0.1", 22), ("10.128.9.9", 22)):
        with pytest.raises(ConnectionError, match="ERROR no running VM"):
            dial(relay, address, port)


async def test_a_vm_that_goes_takes_nobody_elses_way_out_along(cloud: Cloud) -> None:
    cloud.create("w0")
    async with await cloud.ssh("w0") as connection:
        neighbours = (await connection.run("grep 10.128.0.1 /proc/net/arp")).stdout
        assert "42:01:0a:80:00:01" in str(neighbours), "the way out has an address of its own, not one of the VMs'"


def test_nothing_is_left_of_a_deleted_vm(cloud: Cloud) -> None:
    state = cloud.running.state
    instance = cloud.create("w0", metadata={"startup-script": "sleep 1000 & setsid sleep 1000 & touch ~/file"})
    eventually(lambda: (state / "vms/w0/home/file").exists())
    assert processes(str(instance.id))
    networks = _networks(state)
    cloud.delete("w0")
    assert processes(str(instance.id)) == []
    assert not list((state / "vms").iterdir())
    assert not list((state / "instances").iterdir())
    eventually(lambda: len(_networks(state)) < len(networks))
    with pytest.raises(exceptions.NotFound):
        cloud.get("w0")


def test_nothing_is_left_of_a_vm_whose_deletion_is_asked_for_twice(cloud: Cloud) -> None:
    metadata = {"startup-script": "transient-python -c 'import time; time.sleep(1000)' & touch ~/file"}
    instance = cloud.create("w0", metadata=metadata)
    eventually(lambda: (cloud.running.state / "vms/w0/home/file").exists())
    with ThreadPoolExecutor(4) as pool:
        for asked in [pool.submit(_delete_quietly, cloud) for _ in range(8)]:
            asked.result()
    eventually(lambda: not list((cloud.running.state / "instances").iterdir()))
    assert processes(str(instance.id)) == []


def _delete_quietly(cloud: Cloud) -> None:
    with contextlib.suppress(exceptions.NotFound):
        cloud.instances.delete_unary(project=PROJECT, zone=ZONE, instance="w0")


def test_a_vm_can_be_deleted_while_it_boots(cloud: Cloud) -> None:
    insertion = cloud.insert("w0")
    identity = str(insertion.target_id)
    cloud.delete("w0")
    assert cloud.wait(insertion).status == compute_v1.Operation.Status.DONE
    assert processes(identity) == []


async def test_a_stopped_vm_keeps_its_disk(cloud: Cloud) -> None:
    cloud.create("w0", metadata={"startup-script": "echo boot >> $HOME/boots; echo a line"})
    arguments = {"project": PROJECT, "zone": ZONE, "instance": "w0"}
    boots = cloud.running.state / "vms/w0/home/boots"
    eventually(lambda: text_of(boots) == "boot\n")
    cloud.wait(cloud.instances.stop_unary(**arguments))
    assert cloud.get("w0").status == "TERMINATED"
    cloud.wait(cloud.instances.start_unary(**arguments))
    eventually(lambda: text_of(boots) == "boot\nboot\n")
    async with await cloud.ssh("w0") as connection:
        assert (await connection.run("cat boots")).stdout == "boot\nboot\n"
    eventually(lambda: "a line" in cloud.instances.get_serial_port_output(**arguments).contents)


@pytest.mark.slow
def test_many_vms_are_no_trouble(cloud: Cloud) -> None:
    operations = [cloud.insert(f"w{number}") for number in range(60)]
    for operation in operations:
        assert not cloud.wait(operation).error.errors
    addresses = {each.network_interfaces[0].network_i_p for each in cloud.instances.list(project=PROJECT, zone=ZONE)}
    assert len(addresses) == 60


def _networks(state: Path) -> set[str]:
    """The networks of the emulator with this state: others come and go beside it."""
    found: set[str] = set()
    for process in processes(str(state)):
        with contextlib.suppress(OSError):
            found.add(str(Path(f"/proc/{process}/ns/net").readlink()))
    return found


async def test_from_within_a_vm_compute_engine_answers_where_the_scopes_allow_it(cloud: Cloud) -> None:
    scopes = {"w0": "devstorage.read_write", "w1": "compute"}
    for name, scope in scopes.items():
        account = compute_v1.ServiceAccount(email="default", scopes=[f"https://www.googleapis.com/auth/{scope}"])
        cloud.create(name, service_accounts=[account])
    instances = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"
    script = (
        "import json, os, urllib.error, urllib.request\n"
        f"for path, method in [({instances!r}, 'GET'), ('{instances}/w0', 'DELETE'), ('/emulator/v1', 'GET')]:\n"
        "    request = urllib.request.Request('http://' + os.environ['GCE_METADATA_HOST'] + path, method=method)\n"
        "    try: print(urllib.request.urlopen(request, timeout=10).status)\n"
        "    except urllib.error.HTTPError as error: print(error.code, 'scopes' in error.read().decode())"
    )
    said = {}
    for name in scopes:
        async with await cloud.ssh(name) as connection:
            said[name] = str((await connection.run("transient-python -", input=script)).stdout).splitlines()
    assert said == {"w0": ["403 True", "403 True", "403 False"], "w1": ["200", "200", "403 False"]}
    await asyncio.to_thread(eventually, lambda: "w0" not in cloud.names())
