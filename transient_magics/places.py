"""Where things lie on this machine: clusters, runs, sockets, the emulator's state.

`TRANSIENT_MAGICS_HOME` moves all of it below one directory (tests and demonstrations use that).
Directories that are made here have mode 0700, because a cluster's key lies in one of them.
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
    """The directory below which everything that must last is kept."""
    if chosen := os.environ.get(_VARIABLE):
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("transient_magics", appauthor=False))


def identity() -> str:
    """The number of this home: 16 hexadecimal digits, drawn when it is first asked for, and kept in
    `id` there.
    """
    path = private(home()) / "id"
    if not path.exists():
        drawn = path.with_name(
            f".id-{secrets.token_hex(4)}.{os.getpid()}"
        )  # threads have one process id
        drawn.touch(mode=0o600)
        drawn.write_text(secrets.token_hex(8), encoding="utf-8")
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(drawn, path)
        drawn.unlink()
    return path.read_text(encoding="utf-8")


def private(directory: Path) -> Path:
    """Make `directory` if needed, readable by this user alone, and return it; so are the parents
    that it makes.

    What is there already keeps its mode.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):  # Path.mkdir would give the parents the default mode
        each.mkdir(mode=0o700, exist_ok=True)
    return directory


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Raise HomeError where the block fails to read or write below `home`, or in `sockets`."""
    try:
        yield
    except OSError as error:
        if error.errno is None and isinstance(
            error, PermissionError
        ):  # `sockets` says what is wrong
            raise HomeError(str(error)) from error
        if not _is_own(error.filename):
            raise
        what = f"{error.filename} cannot be read or written: {reason_of(error)}"
        raise HomeError(
            what, fix=f"Free or repair it, or set {_VARIABLE} to another folder."
        ) from error


def _is_own(path: object) -> bool:
    """Whether a path of an OSError is below `home` or one of its parents, or that of `sockets`."""
    if not isinstance(path, str) or not path:
        return False
    place = Path(path).absolute()
    return place.is_relative_to(home()) or home().is_relative_to(place) or place == _sockets()


def clusters() -> Path:
    """The directory with one folder per cluster."""
    return home() / "clusters"


def cluster(name: str) -> Path:
    """The folder of one cluster: spec.json, journal.jsonl, key, runs/, controller.log."""
    return clusters() / name


def builds() -> Path:
    """The directory with one folder per image that was built from this machine."""
    return home() / "builds"


def build(name: str) -> Path:
    """The folder of the latest build of image `name`: spec.json, journal.jsonl, controller.log."""
    return builds() / name


def measurements() -> Path:
    """The directory with one folder per measurement of availability that was begun from this
    machine.
    """
    return home() / "availability"


def past() -> Path:
    """Folders of deleted clusters whose name was taken again."""
    return home() / "past"


def sockets() -> Path:
    """A directory with a short path for Unix sockets, whose paths may have 107 characters at most."""
    directory = _sockets()
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    try:
        # Others may write into the directory above, so what has this name may be theirs, or a link
        # of theirs.
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise PermissionError(f"{directory} is no directory; {_ELSEWHERE}") from None
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
    """The Unix socket on which the controller of cluster `name` takes commands."""
    return sockets() / f"{hashlib.sha256(name.encode()).hexdigest()[:12]}.sock"


EMULATOR_HOLDERS = "holders.lock"
"""The file in the emulator's state directory that processes hold locked which need the emulator."""


def emulator() -> Path:
    """The state directory of this user's emulator; `TRANSIENT_MAGICS_EMULATOR` names another
    home's.
    """
    chosen = os.environ.get(_EMULATOR_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return home() / "emulator"
