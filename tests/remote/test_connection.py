"""Running, leaving running, copying and talking over one connection."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from vms import Vm

from tests.processes import until
from transient_magics import kinds
from transient_magics.errors import CommandError, RemoteError
from transient_magics.kinds import KINDS
from transient_magics.remote import Connection, bundle, push_bundle


async def test_words_are_quoted_and_text_is_for_the_shell(connection: Connection, home: Path) -> None:
    assert await connection.run(["printf", "%s", "a b; $HOME"]) == "a b; $HOME"
    assert await connection.run("pwd; echo $HOME") == f"{home}\n{home}\n"
    assert await connection.run("cat", input=b"given") == "given"
    assert await connection.run("cat") == ""
    assert await connection.home() == str(home)


async def test_a_failed_command_shows_the_end_of_its_complaints(connection: Connection) -> None:
    with pytest.raises(CommandError) as raised:
        await connection.run("echo all is lost >&2; exit 3")
    assert str(raised.value) == ("`echo all is lost >&2; exit 3` failed (3) on worker-1: all is lost (worker-1).")


async def test_a_command_ended_by_a_signal_is_a_failure(connection: Connection) -> None:
    with pytest.raises(CommandError, match="ended by signal KILL"):
        await connection.run("kill -9 $$")


@pytest.mark.slow
async def test_a_command_that_takes_too_long_is_ended(connection: Connection, home: Path) -> None:
    with pytest.raises(CommandError, match="did not end within 3 s"):
        await connection.run("echo $$ > pid; exec sleep 60", timeout=3)
    pid = int((home / "pid").read_text(encoding="utf-8"))
    await until(lambda: not Path(f"/proc/{pid}").exists())


async def test_a_detached_process_outlives_its_connection(vm: Vm, home: Path) -> None:
    async with await vm.connect() as connection:
        pid = await connection.start_detached(
            ["sh", "-c", "echo started $A; exec sleep 60"], "logs/one.log", environment={"A": "with 'quotes'"}
        )
    try:
        await until(lambda: Path(f"/proc/{pid}/comm").read_text(encoding="utf-8") == "sleep\n")
        assert os.getsid(pid) == pid
        assert (home / "logs/one.log").read_text(encoding="utf-8") == "started with 'quotes'\n"
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_a_log_that_cannot_be_written_starts_nothing(connection: Connection, home: Path) -> None:
    (home / "file").touch()
    with pytest.raises(CommandError):
        await connection.start_detached("exec sleep 60", "file/log")


async def test_files_appear_whole_and_private(connection: Connection, home: Path, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"x" * 3_000_000)
    await connection.put_files({"deep/er/a": b"one", "b": tmp_path / "local"}, below="transient")
    assert (home / "transient/deep/er/a").read_bytes() == b"one"
    assert (home / "transient/b").read_bytes() == b"x" * 3_000_000
    assert stat.S_IMODE((home / "transient/b").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "transient").stat().st_mode) == 0o700
    await connection.put_bytes("transient/b", b"two", mode=0o755)
    assert (home / "transient/b").read_bytes() == b"two"
    assert stat.S_IMODE((home / "transient/b").stat().st_mode) == 0o755
    assert sorted(each.name for each in (home / "transient").iterdir()) == ["b", "deep"]


async def test_a_file_that_cannot_be_written_leaves_nothing_behind(connection: Connection, home: Path) -> None:
    (home / "taken" / "inner").mkdir(parents=True)
    with pytest.raises(RemoteError, match="writing taken failed"):
        await connection.put_bytes("taken", b"x")
    assert [each.name for each in home.iterdir()] == ["taken"]


async def test_a_folder_goes_there_and_comes_back(connection: Connection, home: Path, tmp_path: Path) -> None:
    for name in ("mine/__init__.py", "mine/data/a.bin", "mine/__pycache__/a.pyc"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    (tmp_path / "mine/__init__.py").chmod(0o755)
    await connection.put_tree(tmp_path / "mine", "include/mine")
    assert stat.S_IMODE((home / "include/mine/__init__.py").stat().st_mode) == 0o755
    (home / "include/mine/half.1234.part").touch()
    assert await connection.get_tree("include", tmp_path / "back") == ["mine/__init__.py", "mine/data/a.bin"]
    assert (tmp_path / "back/mine/data/a.bin").read_text(encoding="utf-8") == "mine/data/a.bin"


async def test_a_fetched_file_replaces_only_when_whole(connection: Connection, home: Path, tmp_path: Path) -> None:
    (home / "there").write_bytes(os.urandom(1_000_000))
    await connection.get("there", tmp_path / "new/here")
    assert (tmp_path / "new/here").read_bytes() == (home / "there").read_bytes()
    with pytest.raises(RemoteError, match="fetching missing failed"):
        await connection.get("missing", tmp_path / "new/here")
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["here"]


async def test_removing_what_is_not_there_is_success(connection: Connection, home: Path) -> None:
    (home / "a").touch()
    await connection.remove("a")
    await connection.remove("a")
    assert not await connection.exists("a")


async def test_a_socket_on_the_vm_is_talked_to(connection: Connection, home: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"you said " + await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(echo, home / "agent.sock")
    reader, writer = await connection.open_socket("agent.sock")
    writer.write(b"hello\n")
    await writer.drain()
    assert [line async for line in reader] == [b"you said hello\n"]
    writer.close()
    server.close()
    (home / "agent.sock").unlink(missing_ok=True)
    with pytest.raises(RemoteError, match=r"worker-1 refused the socket agent.sock"):
        await connection.open_socket("agent.sock")


async def test_a_port_of_the_vm_is_reached_here_as_long_as_the_connection_lives(vm: Vm) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"you said " + await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with await vm.connect() as connection:
        port = await connection.forward("127.0.0.1", server.sockets[0].getsockname()[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello\n")
        assert await reader.read() == b"you said hello\n"
        writer.close()
    with pytest.raises(OSError):  # noqa: PT011 (nobody listens)
        await asyncio.open_connection("127.0.0.1", port)
    server.close()


async def test_more_commands_than_sessions_take_turns(connection: Connection) -> None:
    answers = await asyncio.gather(*(connection.run(["echo", str(number)]) for number in range(30)))
    assert answers == [f"{number}\n" for number in range(30)]


async def test_the_code_is_brought_once_whoever_brings_it(vm: Vm, home: Path) -> None:
    sha, files = bundle()
    async with await vm.connect() as one, await vm.connect() as two:
        assert await asyncio.gather(*(push_bundle(each) for each in (one, two) * 3)) == [sha] * 6
        assert [each.name for each in (home / "transient/code").iterdir()] == [sha]
        folder = home / "transient/code" / sha
        before = folder.stat().st_mtime_ns
        await push_bundle(one)
        assert folder.stat().st_mtime_ns == before
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == set(files)


async def test_the_code_runs_alone_on_a_vm(connection: Connection, home: Path) -> None:
    folder = f"transient/code/{await push_bundle(connection)}"
    program = "import transient_magics.works.jobs.on_vm.runner, transient_magics.errors as e; print(e.__file__)"
    command = f"cd / && PYTHONPATH={home / folder} {sys.executable} -c '{program}'"
    assert await connection.run(command) == f"{home / folder}/transient_magics/errors.py\n"


def test_the_bundle_holds_the_runtime_and_nothing_else() -> None:
    sha, files = bundle()
    assert bundle() == (sha, files)
    names = ("__init__.py", "__init__.pyi", "errors.py", "files.py", "imports.py", "kinds.py", "version.py")
    beside = {f"transient_magics/{name}" for name in names}
    assert beside <= set(files)
    others = set(files) - beside
    floors = ("transient_magics/runtime/", "transient_magics/protocol/")
    of_kinds = {path for path in others if not path.startswith(floors)}
    assert all(path.endswith(".py") for path in others)
    of_works = re.compile(r"transient_magics/works/(\w+/)?(on_vm/.*|__init__|spec|events)(\.py)?")
    assert all(of_works.fullmatch(path) for path in of_kinds)
    assert "transient_magics/works/jobs/on_vm/runner.py" in of_kinds


def test_the_agent_and_the_parts_of_all_kinds_are_imported_from_the_bundle_alone(tmp_path: Path) -> None:
    _, files = bundle()
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    program = (
        "import transient_magics.runtime.agent.agent, transient_magics.works.jobs.on_vm.runner\n"
        "from transient_magics.kinds import KINDS, find\n"
        "print(*(kind for kind in KINDS if find(kind, 'on_vm.agent')))"
    )
    bare = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-S", "-c", program]  # -S: without installed packages, as on a VM
    done = subprocess.run(command, env=bare, cwd="/", capture_output=True, text=True, encoding="utf-8", check=True)
    works = Path(kinds.__file__).parent / "works"
    with_part = {path.parents[1].name for path in works.glob("*/on_vm/agent.py")}
    assert with_part == {KINDS[kind].package.rpartition(".")[2] for kind in done.stdout.split()}
    assert {"jobs", "dask"} <= with_part


def test_the_room_is_light_to_import() -> None:
    program = "import sys, transient_magics.remote; sys.exit(any(m.startswith('google.cloud') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.slow
async def test_what_is_cancelled_at_any_moment_ends_as_cancelled(
    vm: Vm, connection: Connection, tmp_path: Path
) -> None:
    """Else its caller goes on, and whoever waits for the caller's end waits for ever."""
    (vm.home / "file").write_text("x", encoding="utf-8")

    async def cancelled(work: Coroutine[Any, Any, Any], moment: int, lost: Connection | None = None) -> None:
        task = asyncio.create_task(work)
        for at in range(moment):
            if lost and at == moment - moment % 7:
                lost._ssh.abort()
            await asyncio.sleep(0)
        if task.cancel():
            await asyncio.wait([task])
            assert task.cancelled(), (moment, task)
        else:
            task.exception()

    for moment in range(80):
        await cancelled(connection.run("true"), moment)
    for moment in range(20, 60):
        async with await vm.connect() as lost:
            work = (lost.get("file", tmp_path / "got"), lost.put_bytes("put", b"x"))
            await cancelled(work[moment % 2], moment, lost)
            work[not moment % 2].close()
