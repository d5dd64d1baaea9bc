"""Code that VMs run: `runtime`, `on_vm` of kinds, and their imports, pushed under a content hash.

The VM on which a controller runs gets the whole package, with its data and templates. The same code
has the same name, so a VM that has it is left alone, and two versions can coexist. A bundle appears
on a VM atomically, however many processes push it simultaneously.
"""

from __future__ import annotations

import hashlib
import io
import secrets
import shlex
import tarfile
from collections.abc import Mapping
from pathlib import Path

from ..errors import RemoteError
from ..protocol import layout
from .connection import Connection

_BESIDE = ("templates", "locks")


def bundle(*, whole: bool = False) -> tuple[str, dict[str, bytes]]:
    """Return the name of the code (its hash) and the files: relative path, content.

    With `whole` the code is the whole package.
    """
    package = Path(__file__).parent.parent
    chosen = [
        package / "__init__.py",
        # An import from the package reads its names.
        package / "__init__.pyi",
        package / "errors.py",
        package / "files.py",
        package / "imports.py",
        package / "kinds.py",
        package / "version.py",
    ]
    chosen += [*package.glob("protocol/**/*.py"), *package.glob("runtime/**/*.py")]
    # Of each kind of work: what runs on VMs, its declaration and its events.
    works = package / "works"
    chosen += [works / "__init__.py", *works.glob("*/__init__.py"), *works.glob("*/on_vm/**/*.py")]
    chosen += [*works.glob("*/spec.py"), *works.glob("*/events.py")]
    if whole:
        # Beside the package in a checkout; inside it when installed from a wheel.
        beside = [package.parent / folder for folder in _BESIDE]
        found = [path for folder in (package, *beside) for path in folder.rglob("*")]
        chosen = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    files = {
        path.relative_to(package.parent).as_posix(): path.read_bytes() for path in sorted(chosen)
    }
    digest = hashlib.sha256()
    for path, content in files.items():
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16], files


async def push_bundle(connection: Connection, *, whole: bool = False) -> str:
    """Push the code to the VM, and return its hash.

    The code is in transient/code/<hash> below the home, the PYTHONPATH to use.
    """
    sha, files = bundle(whole=whole)
    target = f"{layout.CODE_ON_VM}/{sha}"
    if await connection.exists(target):
        return sha
    part = f"{target}.{secrets.token_hex(4)}"
    archive = f"{part}.tar"
    quoted = shlex.quote(part)
    await connection.put_bytes(archive, _packed(files))
    await connection.run(
        f"mkdir -p {quoted} && tar -xf {shlex.quote(archive)} -C {quoted} && rm {shlex.quote(archive)}"
    )
    try:
        await connection.rename(part, target)
    except RemoteError:
        # A folder never replaces another one that has files: another process was faster.
        await connection.run(["rm", "-rf", part])
        if not await connection.exists(target):
            raise
    return sha


def _packed(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o644
            # 1980, before any real change.
            entry.mtime = 315_532_800
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
