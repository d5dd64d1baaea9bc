"""What a file is called is said once: who writes it and who reads it, perhaps elsewhere, take it from there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import transient_magics
from transient_magics import kinds
from transient_magics.protocol import layout

PACKAGE = Path(transient_magics.__file__).parent
NAMES = {value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str)}
FILES = {name for name in NAMES if "." in name}
PLACES = (f"{layout.ON_VM}/{layout.RUNS}", layout.CODE_ON_VM)
WORTH_READING = re.compile("|".join([*map(re.escape, (*FILES, *PLACES)), *(f'/ "{name}"' for name in NAMES)]))
"""In which modules to look: to parse every one would take seconds."""


def spelled(source: str) -> list[str]:
    """Names of files and folders that stand in a module's texts; what a docstring tells is no use of them."""
    tree = ast.parse(source)
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    joined = {id(node.right) for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)}
    found = []
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in told]
    for node in sorted(texts, key=lambda node: node.lineno):
        if isinstance(node.value, str):
            text = node.value
            names = NAMES if id(node) in joined else FILES
            if names & {*text.split("/")} or any(place in text for place in PLACES):
                found.append(f"line {node.lineno}: {text}")
    return found


@pytest.mark.slow
def test_what_a_file_is_called_is_said_once() -> None:
    assert spelled('"""Of run.json."""\na = f / "run.json"\nb = f"{a}/run.json"\nc = f / "runs"\nd = ["runs"]\n') == [
        "line 2: run.json", "line 3: /run.json", "line 4: runs",
    ]  # fmt: skip
    modules = {
        str(path): path.read_text(encoding="utf-8")
        for path in (*PACKAGE.rglob("*.py"), *PACKAGE.with_name("transient_emulator").rglob("*.py"))
        if path not in (Path(layout.__file__), Path(kinds.__file__))
    }
    read = {path: spelled(source) for path, source in modules.items() if WORTH_READING.search(source)}
    assert {path: found for path, found in read.items() if found} == {}


def test_a_run_has_its_place_on_a_vm() -> None:
    assert layout.run_on_vm("run-1") == "transient/runs/run-1"
    assert layout.log_on_vm("run-1", "worker-1") == "transient/runs/run-1/logs/worker-1.log"
