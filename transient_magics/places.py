"""Paths on this machine: clusters, runs, sockets, the emulator's state.

`TRANSIENT_MAGICS_HOME` moves all of them below one directory; tests and demonstrations use it.
Directories that are created here have mode 0700, because some have the keys of clusters.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import HomeError, reason_of

_VARIABLE = "TRANSIENT_MAGICS_HOME"
_EMULATOR_VARIABLE = "TRANSIENT_MAGICS_EMULATOR"
_ELSEWHERE = "set XDG_RUNTIME_DIR to a directory of your own"


def home() -> Path:
    """Return the directory with all data that outlives a process."""
    chosen = os.environ.get(_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("transient_magics", appauthor=False))


def identity() -> str:
    """Return the id of this home: 16 random hexadecimal digits, stored in its file `id`."""
    path = private(home()) / "id"
    if not path.exists():
        # Threads have one process id, so the name has a random part, too.
        new = path.with_name(f".id-{secrets.token_hex(4)}.{os.getpid()}")
        new.touch(mode=0o600)
        new.write_text(secrets.token_hex(8), encoding="utf-8")
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(new, path)
        new.unlink()
    return path.read_text(encoding="utf-8")


def private(directory: Path) -> Path:
    """Create a directory and its missing parents for this user alone, and return it.

    Existing directories keep their modes.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):  # Path.mkdir would give the parents the default mode
        path.mkdir(mode=0o700, exist_ok=True)
    return directory


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Raise HomeError if the block cannot read or write below `home` or in `sockets`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PermissionError) and error.errno is None:  # raised by `sockets`
            raise HomeError(str(error)) from error
        if not _is_own(error.filename):
            raise
        what = f"{error.filename} cannot be read or written: {reason_of(error)}"
        raise HomeError(
            what, fix=f"Free or repair it, or set {_VARIABLE} to another folder."
        ) from error


def _is_own(path: object) -> bool:
    """Return whether the path of an OSError is below or above `home`, or that of `sockets`."""
    if not isinstance(path, str) or not path:
        return False
    place = Path(path).absolute()
    return place.is_relative_to(home()) or home().is_relative_to(place) or place == _sockets()


def clusters() -> Path:
    """Return the directory with one folder per cluster."""
    return home() / "clusters"


def cluster(name: str) -> Path:
    """Return the folder of a cluster: spec.json, journal.jsonl, key, runs/, controller.log."""
    return clusters() / name


def builds() -> Path:
    """Return the directory with one folder per image that was built from this machine."""
    return home() / "builds"


def build(name: str) -> Path:
    """Return the folder of an image's latest build: spec.json, journal.jsonl, controller.log."""
    return builds() / name


def measurements() -> Path:
    """Return the directory with one folder per availability measurement from this machine."""
    return home() / "availability"


def past() -> Path:
    """Return the directory with folders of deleted clusters whose name is in use again."""
    return home() / "past"


def sockets() -> Path:
    """Return a directory with a short path: those of Unix sockets have at most 107 characters."""
    directory = _sockets()
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    try:
        # Other users may write to the parent directory: this may be a file or link of theirs.
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise PermissionError(f"{directory} is not a directory; {_ELSEWHERE}") from None
    try:
        if os.fstat(opened).st_uid != os.getuid():
            raise PermissionError(f"{directory} belongs to another user; {_ELSEWHERE}")
        os.fchmod(opened, 0o700)
    finally:
        os.close(opened)
    return directory


def _sockets() -> Path:
    identity = hashlib.sha256(str(home()).encode()).hexdigest()[:8]
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        parent = Path(base)
    else:
        parent = Path(tempfile.gettempdir())
    return parent / f"transient-{os.getuid()}-{identity}"


def command_socket(name: str) -> Path:
    """Return the Unix socket on which the controller of a cluster receives commands."""
    return sockets() / f"{hashlib.sha256(name.encode()).hexdigest()[:12]}.sock"


EMULATOR_HOLDERS = "holders.lock"
"""A file in the emulator's state directory: processes that need the emulator lock it."""


def emulator() -> Path:
    """Return the state directory of this user's emulator.

    `TRANSIENT_MAGICS_EMULATOR` replaces it, so that several homes can share an emulator.
    """
    chosen = os.environ.get(_EMULATOR_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return home() / "emulator"
