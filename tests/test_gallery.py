"""The stored notebooks show results: outputs as text and PNG, small, without errors and without a machine's places."""

from __future__ import annotations

import base64
import json
import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.homes import own_home
from tests.notebooks import runner_of

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"


def code_cells(path: Path) -> list[dict[str, Any]]:
    """Return the code cells of a stored notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def figures(text: str) -> str:
    """Return the numbers of a text, without its words."""
    return " ".join(re.findall(r"\d+(?:[.,]\d+)*", text))


STORED = [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if any(cell["outputs"] for cell in code_cells(path))]
"""The notebooks of the gallery."""
PAGES = runpy.run_path(str(ROOT / "docs" / "notebook_pages.py"))
NEW = ("bag", "deadline", "keras", "sweep", "weather")
LARGEST_BYTES = 1_000_000
PLACES = re.compile(r"(?<![\w.~/])/(?:tmp|home|root|usr|var|work|opt|Users|mnt|srv)/[\w.-]+")
"""Absolute paths of a machine."""
PLANS = 5
"""Code cells of `planning.ipynb` before the search, which takes seconds."""
PNG = b"\x89PNG\r\n\x1a\n"


def test_each_notebook_with_outputs_has_a_page(tmp_path: Path) -> None:
    PAGES["write"](tmp_path / "gallery")
    pages = {path.stem for path in (tmp_path / "gallery").glob("*.md")}
    assert pages == {"index", *(path.stem for path in STORED)}


def test_each_notebook_has_a_place_in_the_order_of_the_pages() -> None:
    assert sorted(PAGES["ORDER"]) == sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize(
    "cells",
    [pytest.param(slice(PLANS), id="plans"), pytest.param(slice(None), id="search", marks=pytest.mark.nightly)],
)
def test_the_stored_plans_have_the_figures_that_are_computed_now(
    cells: slice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    shell = InteractiveShell()
    for cell in code_cells(NOTEBOOKS / "planning.ipynb")[cells]:
        shell.run_cell("".join(cell["source"])).raise_error()
        shown = capsys.readouterr().out
        for output in cell["outputs"]:
            stored = output.get("text") or output["data"]["text/plain"]
            assert figures("".join(stored)) in figures(shown)
    shell.run_cell("%unload_ext transient_magics")


def test_the_stored_study_has_the_tables_of_its_stored_rows_and_trains_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the notebook draws a chart")
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.syspath_prepend(str(NOTEBOOKS))
    monkeypatch.chdir(tmp_path)
    stored_rows = (NOTEBOOKS / "icac19-rows.jsonl").read_text(encoding="utf-8")
    Path("icac19-rows.jsonl").write_text(stored_rows, encoding="utf-8")
    shell = InteractiveShell()
    compared = 0
    for cell in code_cells(NOTEBOOKS / "icac19.ipynb"):
        result: Any = shell.run_cell("".join(cell["source"]))
        result.raise_error()
        shown = capsys.readouterr().out
        for output in cell["outputs"]:
            if "text/html" in output.get("data", {}):
                assert "".join(output["data"]["text/html"]) == result.result._repr_html_()
                compared += 1
            elif output["output_type"] == "stream":
                assert "".join(output["text"]) == shown
                compared += 1
    shell.run_cell("%unload_ext transient_magics")
    assert compared >= 8
    assert Path("icac19-rows.jsonl").read_text(encoding="utf-8") == stored_rows
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_notebook_shows_results(path: Path) -> None:
    assert path.stat().st_size < LARGEST_BYTES
    cells = code_cells(path)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    assert all(base64.b64decode("".join(picture)).startswith(PNG) for picture in pictures)
    charts = [cell for cell in cells if "plt.subplots(" in "".join(cell["source"])]
    assert all("image/png" in str(cell["outputs"]) for cell in charts)
    assert all(cell["execution_count"] for cell in cells)


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


def test_a_place_is_found_in_text_and_in_html() -> None:
    assert PLACES.search("stored in /home/me/x")
    assert PLACES.search("<td>/home/me/x</td>")
    assert not PLACES.search("~/.local/share and https://example.org/home/me")


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
