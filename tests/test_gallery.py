"""The stored notebooks show results: outputs as text and PNG, small, without errors and without a machine's places."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.homes import own_home
from tests.notebooks import runner_of

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
PAGES = (ROOT / "docs" / "notebook_pages.py").read_text(encoding="utf-8")
STORED = [
    NOTEBOOKS / f"{name}.ipynb" for name in re.findall(r'"([\w-]+)"', re.findall(r"^ORDER = (.*)$", PAGES, re.M)[0])
]
"""The notebooks of the gallery."""
NEW = ("bag", "deadline", "keras", "sweep", "weather")
LARGEST_BYTES = 1_000_000
PLACES = re.compile(r"(?<![\w.~>/])/(?:tmp|home|root|usr|var|work|opt|Users|mnt|srv)/[\w.-]+")
"""Absolute paths of a machine."""
PNG = b"\x89PNG\r\n\x1a\n"


def code_cells(path: Path) -> list[dict[str, Any]]:
    """Return the code cells of a stored notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_a_notebook_with_outputs_has_a_page() -> None:
    with_outputs = [path for path in NOTEBOOKS.glob("*.ipynb") if any(cell["outputs"] for cell in code_cells(path))]
    assert sorted(with_outputs) == sorted(STORED)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_notebook_shows_results(path: Path) -> None:
    assert path.stat().st_size < LARGEST_BYTES
    cells = code_cells(path)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    assert all(base64.b64decode("".join(picture)).startswith(PNG) for picture in pictures)
    assert all(cell["execution_count"] for cell in cells if "trains" not in cell["metadata"].get("tags", ()))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_notebook_names_no_place_of_a_machine_and_needs_no_script(path: Path) -> None:
    for output in [output for cell in code_cells(path) for output in cell["outputs"]]:
        data = output.get("data", {})
        texts = [output.get("text", ""), *(value for kind, value in data.items() if kind.startswith("text/"))]
        said = "".join("".join(text) for text in texts)
        assert not PLACES.search(said)
        assert "Traceback" not in said
        assert "<svg" not in said, "GitHub and JupyterLab drop inline SVG of notebooks that they do not trust"
        assert {kind for kind in data if not kind.startswith("text/")} <= {"image/png"}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with own_home() as folder:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOKS), os.environ.get("PYTHONPATH", "")]))
        yield folder


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize("name", NEW)
def test_a_notebook_of_the_gallery_runs(name: str, home: Path, tmp_path: Path) -> None:
    import nbformat

    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    runner_of(notebook, tmp_path).execute()
    last = "".join(output.text for output in notebook.cells[-1].outputs)
    assert "is deleted, no VM is left" in last
