"""Files that others read, lock and connect to at the same time."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from transient_magics.files import lock, private_sockets, replacing, write_atomically

HOLDER = """
import sys
from pathlib import Path
from transient_magics.files import lock
print("no" if lock(Path(sys.argv[1])) is None else "yes", flush=True)
sys.stdin.read()
"""


def test_a_file_is_replaced_whole_and_only_this_user_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "value"
    write_atomically(path, "old")
    with replacing(path) as file:
        file.write(b"ne")
        file.flush()
        assert path.read_text(encoding="utf-8") == "old"
        file.write(b"w")
    assert path.read_text(encoding="utf-8") == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["value"]


def test_after_an_error_nothing_has_changed_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "value"
    write_atomically(path, b"old", durable=False)
    with pytest.raises(RuntimeError), replacing(path) as file:  # noqa: PT012
        file.write(b"half of what was mea")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["value"]


def test_one_process_holds_a_lock_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"yes\n"
        assert lock(path) is None
        holder.kill()
    held = lock(path)
    assert held is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert lock(path) is None, "not by the same process twice either"
    os.close(held)


def test_a_private_socket_is_for_this_user_and_the_mask_is_as_before(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with socket.socket(socket.AF_UNIX) as served, private_sockets():
            served.bind(str(tmp_path / "socket"))
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
        (tmp_path / "file").touch()
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
    finally:
        os.umask(before)
