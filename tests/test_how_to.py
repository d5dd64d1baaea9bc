"""The how-to pages are true: each page's cells run in order, and do what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import homes
from tests.notebooks import notebook_of, runner_of

DOCS = Path(__file__).parent.parent / "docs"

SHOWN = {
    "move-from-fit": [r"^45\d$", r"accuracy.: 0\.\d+", r"^4810$"],
    "spend-less": [r"ended after \d+ of 3000 steps", r"start-up", r"is deleted"],
    "close-the-laptop": [r"at step \d+", r"^6\d\d 0\.\d+"],
    "resume": [r"^20\d$", r"first step of its own: 20\d", r"last step: 30\d", r"^0\.\d+"],
    "failing-worker": [r"examples: 1797", r"worker-0 joined run-1"],
    "stockout": [r"worker-0 us-west1-b", r"worker-\d us-central1-a"],
    "rehearse": [r"^60\d [1-9]\d* revocations"],
    "export": [r"accuracy", r"^\[\d(, \d){4}\] \[0, 1, 2, 3, 4\]$"],
    "coming-from": [r"\[0, 1, 4, 9, 16\]"],
}
"""Regular expressions that the printed text of each page's cells must match, by page."""


@pytest.fixture
def own_home() -> Iterator[Path]:
    with homes.own_home() as home:
        yield home


def notebooks_of(page: str) -> list[list[str]]:
    """Return the Python blocks of a page, which its readers run as cells. A new notebook loads the extension."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    notebooks: list[list[str]] = []
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if block.startswith("%load_ext"):
            notebooks.append([])
        notebooks[-1].append(block.rstrip())
    return notebooks


def printed(notebook: object) -> str:
    """Return what all cells printed and showed as text."""
    parts: list[str] = []
    for cell in notebook.cells:  # type: ignore[attr-defined]
        for output in cell.outputs:
            parts.append(output.get("text", ""))
            parts.append(output.get("data", {}).get("text/plain", ""))
    return "\n".join(parts)


def test_every_how_to_page_is_tested() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = re.search(r":caption: How to\n:hidden:\n\n(.*?)\n```", index, re.DOTALL)
    assert listed is not None
    assert set(listed[1].split()) == set(SHOWN)


@pytest.mark.nightly
@pytest.mark.training
@pytest.mark.parametrize("page", sorted(SHOWN))
def test_the_cells_of_a_how_to_page_run(page: str, own_home: Path) -> None:
    text = ""
    for cells in notebooks_of(page):
        notebook = notebook_of(*cells)
        runner_of(notebook, own_home).execute()
        text += printed(notebook)
    for pattern in SHOWN[page]:
        assert re.search(pattern, text, re.MULTILINE), f"{page}: nothing matches {pattern!r} in:\n{text}"
