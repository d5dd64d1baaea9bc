"""Programs that a zygote forks: begun in the namespaces of the process that asks, imported once, ended with these."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from transient_emulator.vms.zygote import Zygotes

MODULE = """
import json, os, secrets, socket, sys, time

def import_all(arguments):
    global stamp
    stamp = secrets.token_hex(8)

def set_command_line(module, arguments):
    assert module == "tiny.program"

def main():
    from . import late
    print(json.dumps({"stamp": stamp, "name": socket.gethostname(), "pid": os.getpid(), "late": late.__file__,
                      "told": os.environ.get("TOLD"), "home": os.environ.get("HOME"), "folder": os.getcwd(),
                      "arguments": sys.argv[1:], "network": os.readlink("/proc/self/ns/net")}), flush=True)
    time.sleep(600)
"""
ASK = """
import json, os, socket, sys
place, code, told = sys.argv[1:]
print(os.readlink("/proc/self/ns/net"), flush=True)
ours, theirs = socket.socketpair()
request = {"code": code, "arguments": ["--kind", "own"], "folder": code, "environment": {"TOLD": told}}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as zygote:
    zygote.connect(place)
    socket.send_fds(zygote, [json.dumps(request).encode()], [theirs.fileno(), 1])
theirs.close()
ours.recv(1)  # until what has been forked ends, or nothing is
"""


def written(folder: Path, **more: str) -> Path:
    """A copy of the code."""
    package = folder / "tiny"
    package.mkdir(parents=True)
    for name, content in {"__init__": "", "program": MODULE, "late": "", **more}.items():
        (package / f"{name}.py").write_text(content, encoding="utf-8")
    return folder


@asynccontextmanager
async def asking(zygotes: Zygotes, name: str, code: Path) -> AsyncIterator[tuple[str, str]]:
    """The network of a VM that asks, and the line that its program prints: empty where none is forked."""
    ask = f'hostname {name}; exec "$@"'
    vm = await asyncio.create_subprocess_exec(
        "unshare", "-Urnpmu", "--fork", "--kill-child", "--mount-proc", "sh", "-c", ask, "sh",
        sys.executable, "-c", ASK, str(zygotes.folder / "own.sock"), str(code), f"by {name}",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert vm.stdout
    try:
        async with asyncio.timeout(60):
            network = await vm.stdout.readline()
            yield network.decode().strip(), (await vm.stdout.readline()).decode()
    finally:
        if vm.returncode is None:
            vm.kill()
        await vm.wait()
        async with asyncio.timeout(60):
            await vm.stdout.read()  # what was forked has it open, and ends with its VM


@pytest.mark.slow
async def test_a_zygote_imports_once_and_forks_into_the_vm_that_asks(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="tm-"))  # short: the paths of sockets are
    zygotes = Zygotes(folder, written(tmp_path / "here"), "tiny.program")
    zygotes.start()
    copies = {name: written(tmp_path / name) for name in ("w0", "w1")}
    try:
        async with asking(zygotes, "w0", copies["w0"]) as first, asking(zygotes, "w1", copies["w1"]) as second:
            said = {name: json.loads(line) for name, (_, line) in (("w0", first), ("w1", second))}
            assert said["w0"]["stamp"] == said["w1"]["stamp"], "it is imported once"
            for name, (network, _) in (("w0", first), ("w1", second)):
                told, copy = said[name], copies[name]
                assert (told["name"], told["told"], told["home"]) == (name, f"by {name}", None)
                assert told["network"] == network != os.readlink("/proc/self/ns/net")
                assert told["pid"] < 100, "processes are counted anew in every VM"
                assert (told["folder"], told["late"]) == (str(copy), str(copy / "tiny" / "late.py"))
                assert told["arguments"] == ["--kind", "own"]
        other = written(tmp_path / "other", program=f"{MODULE}\n# changed")
        async with asking(zygotes, "w2", other) as (_, line):
            assert line == "", "other code is not what has been imported"
    finally:
        await zygotes.stop()
        shutil.rmtree(folder, ignore_errors=True)
