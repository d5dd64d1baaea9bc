"""The key with which we enter the VMs of one cluster: made for that cluster alone, readable by its owner alone."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import asyncssh

from ..errors import RemoteError


def generate_key(path: Path) -> str:
    """Make an ed25519 key in `path` (mode 0600) unless there is one, and return the line of its public half."""
    if not path.exists():
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        key = asyncssh.generate_private_key("ssh-ed25519", comment="transient")  # pyright: ignore[reportUnknownMemberType]
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(key.export_private_key())
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(fresh, path)  # unlike a rename, never replaces the key that another process just made
        finally:
            fresh.unlink()
    return read_key(path).export_public_key().decode().strip()


def read_key(path: Path) -> asyncssh.SSHKey:
    """The private key in `path`. Raises RemoteError where it cannot be read."""
    try:
        return asyncssh.read_private_key(path)
    except (OSError, asyncssh.KeyImportError) as error:
        what = f"The key of the cluster cannot be read: {error}"
        raise RemoteError(what, where=str(path), fix="Delete the cluster and declare it again.") from error
