"""Notebooks that run headless, as papermill and `make demo` run them.

What they need is imported when the first one runs, and not by each process that collects the tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PATIENCE = 400
"""Seconds that one cell may take."""


def notebook_of(*cells: str) -> Any:
    """A notebook with these code cells."""
    from nbformat.v4 import new_code_cell, new_notebook

    return new_notebook(cells=[new_code_cell(each) for each in cells])


def runner_of(notebook: Any, folder: Path | None = None) -> Any:
    """What runs it in a kernel of its own, in this folder."""
    from nbclient import NotebookClient

    resources = {"metadata": {"path": str(folder)}} if folder else {}
    return NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3", resources=resources)
