"""Text files and streams are UTF-8 whatever the locale says.

Ruff's rule PLW1514 sees a call only where it can tell the type of its object. This test looks at every call in the
project. `tests/conftest.py` says how `make test` also turns an `EncodingWarning` of the package into an error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODE = re.compile(r"[rwxabt+]+")
OF_BYTES = {"tarfile", "zipfile", "gzip", "os", "lab", "webbrowser"}
"""Objects whose `open` takes something else than a mode, or opens files of bytes."""
PROGRAMS = {"run", "Popen", "check_output", "check_call", "call"}
CALL = re.compile(
    r"\b(?:(?<!os\.)open|fdopen|read_text|write_text|NamedTemporaryFile|TemporaryFile|run|Popen|check_output|check_call"
    r"|call)\((?P<arguments>(?:[^()]|\([^()]*\))*+\))?"
)
"""A call that may lack an encoding, with its arguments unless brackets in them are too deep for a pattern."""
NESTED = re.compile(r"\([^()]*\)")
OPENS_BYTES = re.compile(r'"[rwxa]b"')


def needs_encoding(call: ast.Call) -> bool:
    """Return whether a call opens text in the locale's encoding."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if "encoding" in keywords or None in keywords:
        return False
    match call.func:
        case ast.Name("open") | ast.Attribute(ast.Name("os"), "fdopen"):
            return opens_text(call.args[1:2], keywords)
        case ast.Attribute(attr="read_text"):
            return not call.args
        case ast.Attribute(attr="write_text"):
            return len(call.args) < 2
        case ast.Attribute(ast.Name(base), "open") if base in OF_BYTES:
            return False
        case ast.Attribute(attr="open") if call.args or "mode" in keywords:
            return opens_text(call.args[:1], keywords)
        case ast.Attribute(attr="NamedTemporaryFile" | "TemporaryFile"):
            return bool(call.args or "mode" in keywords) and opens_text(call.args[:1], keywords)
        case ast.Attribute(attr=name) if name in PROGRAMS:
            return "text" in keywords
    return False


def opens_text(mode: list[ast.expr], keywords: dict[str | None, ast.expr]) -> bool:
    """Return whether a call with this mode, if any, opens a file as text."""
    for value in [*mode, *([keywords["mode"]] if "mode" in keywords else [])]:
        if not (isinstance(value, ast.Constant) and isinstance(value.value, str) and MODE.fullmatch(value.value)):
            return False  # not a mode: another kind of open
        return "b" not in value.value
    return True


def is_surely_complete(call: re.Match[str]) -> bool:
    """Return whether the text of a call shows that it names its encoding, or opens no text."""
    name = call[0].partition("(")[0]
    arguments = NESTED.sub("", call["arguments"] or "text=")
    if 'encoding="utf-8"' in arguments:
        return True
    if name in PROGRAMS:
        return "text=" not in arguments
    return not name.endswith("_text") and OPENS_BYTES.search(arguments) is not None


def calls_without(source: str) -> Iterator[int]:
    """Yield the line of each call in `source` that lacks an encoding."""
    if all(is_surely_complete(call) for call in CALL.finditer(source)):
        return  # parsing takes ten times as long
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and needs_encoding(node):
            yield node.lineno


@pytest.mark.parametrize(
    "folder", ["transient_magics", "transient_emulator", "tests", "tools", "benchmarks", "notebooks", "docs"]
)
def test_every_text_file_and_stream_names_its_encoding(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in calls_without(path.read_text(encoding="utf-8"))
    ]
    assert not found, 'add encoding="utf-8"'


@pytest.mark.parametrize(
    ("call", "lacks"),
    [
        ("path.read_text()", True),
        ("path.read_text('utf-8')", False),
        ("path.write_text(text)", True),
        ("open(path)", True),
        ("open(path, 'a')", True),
        ("open(path, mode='rb')", False),
        ("path.open('w')", True),
        ("path.open('w', encoding='utf-8')", False),
        ("tarfile.open('w')", False),
        ("tempfile.NamedTemporaryFile()", False),
        ("tempfile.NamedTemporaryFile('w')", True),
        ("subprocess.run(words, text=True)", True),
        ("os.fdopen(1, 'wb')", False),
        ("os.fdopen(1, 'w')", True),
    ],
)
def test_a_call_without_an_encoding_is_seen(call: str, lacks: bool) -> None:
    assert list(calls_without(call)) == [1] * lacks
