"""Directories of this user's own, also where others may write beside them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from transient_magics import places


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where sockets lie: a directory that everybody may write into."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "home"))
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_directory_of_sockets_is_closed_to_others(shared: Path) -> None:
    made = places.sockets()
    assert (made.parent, mode(made)) == (shared, 0o700)
    made.chmod(0o777)
    assert mode(places.sockets()) == 0o700


def test_a_link_in_its_place_is_not_followed(shared: Path, tmp_path: Path) -> None:
    made = places.sockets()
    made.rmdir()
    target = tmp_path / "public"
    target.mkdir(mode=0o755)
    made.symlink_to(target)
    with pytest.raises(PermissionError, match=r"is not a directory; set XDG_RUNTIME_DIR"):
        places.sockets()
    assert mode(target) == 0o755, "nothing of it has been changed"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's directory")
def test_another_users_directory_in_its_place_is_refused(shared: Path) -> None:
    made = places.sockets()
    os.chown(made, 65534, 65534)
    made.chmod(0o777)
    with pytest.raises(PermissionError, match="belongs to another user"):
        places.sockets()
    assert mode(made) == 0o777


def test_what_is_made_is_private_with_its_parents_and_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    made = places.private(tmp_path / "a" / "b")
    assert [mode(each) for each in (tmp_path, made.parent, made)] == [0o755, 0o700, 0o700]


def test_a_home_has_one_number_that_nobody_else_may_read(shared: Path) -> None:
    number = places.identity()
    assert len(number) == 16
    assert number == places.identity()
    assert mode(places.home() / "id") == 0o600
    assert [each.name for each in places.home().iterdir()] == ["id"]
