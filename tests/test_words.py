"""Sentences that people read have the field's terms: texts of the package, and the first lines of its docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
PACKAGE = TOP / "transient_magics"
INSTEAD = {
    "to be had": "available, supported",
    r"reckon\w*": "compute, count",
    "whoever": "the one meant: user, process, VM",
    "whom": "the one meant",
    "be meant": "invalid, cannot be combined",
    "behalf": "for",
    "she": "the user",
    "of one's own": "your own, its own",
    "foretold": "predicted",
    "in vain": "without success",
    "please": "an imperative",
    "bounds no": "invalid --option 'x'",
    "overrides nothing": "invalid --option 'x'",
    "knows no": "unknown, has no",
    "of ours": "our",
    "that we know": "unknown GPU 'x'",
    "hardly": "seldom, little",
}
"""What is not written (regular expressions), and what is instead."""
ANY = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)
EXCEPTED = {
    "transient_emulator/weather/faults.py": "what Google's services answer, word for word",
    "transient_emulator/rest/wording.py": "the same",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Each text of a module, and the first line of each docstring, with its line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), (ast.get_docstring(node) or "").partition("\n")[0]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node.lineno, node.value


ROOMS = {path.name: path for path in (*PACKAGE.iterdir(), TOP / "transient_emulator") if path.suffix in ("", ".py")}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_sentences_have_the_terms_of_the_field(room: str) -> None:
    found = [
        f"{path.relative_to(TOP)}:{line}: '{word}' (write: {INSTEAD[word]}) in {text!r}"
        for path in ([ROOMS[room]] if room.endswith(".py") else sorted(ROOMS[room].rglob("*.py")))
        if path.relative_to(TOP).as_posix().removeprefix("transient_magics/") not in EXCEPTED
        for line, text in texts(path)
        if ANY.search(text)
        for word in INSTEAD
        if re.search(rf"\b{word}\b", text, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)
