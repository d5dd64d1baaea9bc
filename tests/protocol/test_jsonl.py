"""Files of JSON lines: torn lines, and readers of files that grow or are replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from transient_magics.protocol import jsonl


def test_a_torn_line_is_ended_by_the_next_writer_and_skipped_by_readers(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert list(jsonl.read(path)) == []
    jsonl.append(path, {"a": 1})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"a": ')
    jsonl.append(path, {"a": 2})
    assert path.read_text(encoding="utf-8") == '{"a":1}\n{"a": \n{"a":2}\n'
    path.write_text(path.read_text(encoding="utf-8") + "[3]\nnull\n{", encoding="utf-8")
    assert list(jsonl.read(path)) == [{"a": 1}, {"a": 2}]
    jsonl.cut_torn_line(path)
    assert path.read_text(encoding="utf-8").endswith("null\n")


def test_a_link_is_not_followed_for_lines_of_a_vm(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"):
        jsonl.append_lines(tmp_path / "link", b"{}\n")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("other", ["shorter", "replaced", "rewritten"])
def test_a_position_goes_on_behind_whole_lines_and_begins_again_in_another_file(tmp_path: Path, other: str) -> None:
    path = tmp_path / "journal.jsonl"
    position = jsonl.Position(path)
    assert position.read() == (b"", False)
    lines = b'{"a":1}\n' * 100
    path.write_bytes(lines + b'{"a"')
    assert position.read() == (lines, False)
    with path.open("ab") as file:
        file.write(b":2}\n")
    assert position.read() == (b'{"a":2}\n', False)
    assert position.read() == (b"", False)
    if other == "shorter":
        content = b"{}\n"
        path.write_bytes(content)
    elif other == "replaced":
        content = path.read_bytes()
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(path)
    else:
        content = b'{"b":1}\n' * 101
        path.write_bytes(content)
    assert position.read() == (content, True)
    assert position.read() == (b"", False)


async def test_a_file_is_followed_whose_folder_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "cluster" / "journal.jsonl"
    lines = jsonl.follow(path)
    first = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0.1)
    path.parent.mkdir()
    path.write_bytes(b"line\n")
    async with asyncio.timeout(60):
        assert await first == (5, b"line\n")
    await lines.aclose()  # type: ignore[attr-defined]
