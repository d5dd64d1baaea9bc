"""A home that cannot be read or written: one sentence in a terminal, a cell and a program."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import transient_magics as tm
from transient_magics import client, places
from transient_magics.cli import arguments, program
from transient_magics.client import commands
from transient_magics.errors import HomeError
from transient_magics.magics.dispatch import obey
from transient_magics.protocol.cluster_commands import Ping

SAID = "cannot be read or written: Not a directory. Free or repair it, or set TRANSIENT_MAGICS_HOME to another folder."


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home below a file, in which nobody can make a folder."""
    (tmp_path / "file").touch()
    found = tmp_path / "file" / "home"
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(found))
    return found


def test_a_terminal_says_so_in_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["cluster", "cpux1", "--name", "a"], ["cluster", "cpux1"], ["image", "build"]):
        assert program.main(words) == 1
        told = capsys.readouterr().err
        assert told == f"transient: {home} {SAID}\n"


def test_a_cell_and_a_program_say_so(home: Path) -> None:
    magics: Any = SimpleNamespace(shell=None, keep=lambda cluster: None)
    with pytest.raises(HomeError) as in_a_cell:
        obey(magics, arguments.parse("cluster", ["cpux1"], called="%transient_cluster"))
    assert in_a_cell.value._render_traceback_() == [f"{home} {SAID}"]
    with pytest.raises(tm.errors.HomeError, match=SAID):
        tm.declare("cpux1")
    with pytest.raises(HomeError, match=SAID):
        client.build_image()
    with pytest.raises(HomeError):
        commands.send(places.cluster("a"), Ping())


def test_other_files_are_reported_as_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), places.reporting():
        (tmp_path / "elsewhere").read_bytes()
    with pytest.raises(ConnectionRefusedError), places.reporting():
        raise ConnectionRefusedError(111, "Connection refused")
    with pytest.raises(HomeError, match="is not a directory; set XDG_RUNTIME_DIR"), places.reporting():
        raise PermissionError("/run/x is not a directory; set XDG_RUNTIME_DIR to a directory of your own")
