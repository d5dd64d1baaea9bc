"""Run notebooks in JupyterLab and store them with their outputs, with each panel as a PNG picture.

`python tools/gallery.py [NOTEBOOK ...]`, by default those of `notebooks/`. GitHub and JupyterLab show pictures of a
notebook that they do not trust, and drop inline SVG. Panels are pictured before the cell that deletes their cluster.
The published study, `icac19.ipynb`, trains nothing: its rows are in a file beside it (`notebooks/paper.py`).
"""

from __future__ import annotations

import argparse
import base64
import io
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from PIL import Image
from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.lab import Lab, chromium, jupyterlab  # noqa: E402
from tests.homes import own_home  # noqa: E402

NOTEBOOKS = ROOT / "notebooks"
SCALE = 1.5
"""Pixels of a picture for each CSS pixel."""
COLOURS = 128
"""Colours of a picture: enough for panels, and a quarter of the size."""
CELL_MILLISECONDS = 3_600_000
SETTLE_MILLISECONDS = 4_000
"""Time in which panels draw what the last cell changed."""
WIDTH, HEIGHT = 1180, 3200
"""Size of the page in CSS pixels. Panels are pictured whole, so the page is higher than the highest one."""

CHART = "plt.subplots("
NEXT_MOMENT = ("%%sweep", "%%bag")
"""Cells that show the panel of their cluster once more: the first one is pictured while its VMs start."""
SHORTEST_HOST = 5
"""Letters of a host name that is looked for: shorter ones, such as `vm`, are ordinary words."""

Place = tuple[int, int]
"""A cell of a notebook and an output of that cell."""


@dataclass(frozen=True)
class Picture:
    """A panel at one moment: a PNG in base64, and the panel as text."""

    png: str
    plain: str


_CLEAR = """() => { for (const cell of jupyterapp.shell.currentWidget.content.widgets)
    if (cell.model.type === 'code') { cell.model.clearExecution(); } }"""
_CLEAR_CELL = "index => jupyterapp.shell.currentWidget.content.widgets[index].model.clearExecution()"
_OUTPUTS = "index => jupyterapp.shell.currentWidget.content.widgets[index].model.outputs.length"
_SELECT = "index => { jupyterapp.shell.currentWidget.content.activeCellIndex = index; }"
_ENDED = """index => /^\\[\\d+\\]/.test(
    jupyterapp.shell.currentWidget.content.widgets[index].node.querySelector('.jp-InputPrompt')?.textContent ?? '')"""
_PANELS = """() => jupyterapp.shell.currentWidget.content.widgets.flatMap((cell, place) =>
    [...cell.node.querySelectorAll('.jp-OutputArea-child')].flatMap((child, output) =>
        child.querySelector('.transient-panel, svg:not(button svg)')
            ? [[place, output, String(cell.model.outputs.get(output).data['text/plain'] ?? 'A panel')]] : []))"""


class GalleryError(Exception):
    """A notebook failed, or its outputs hold what must not be stored."""


def main() -> int:
    """Return 0 when every notebook ran and is stored."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(NOTEBOOKS.glob("*.ipynb")))
    chosen = parser.parse_args().notebooks
    with opened_lab(SCALE) as lab:
        for path in chosen:
            print(f"{path.name} ...", flush=True)
            stored = run(lab, path)
            path.write_text(stored, encoding="utf-8")
            print(f"{path.name}: {len(stored) / 1e3:.0f} kB", flush=True)
    return 0


@contextmanager
def opened_lab(scale: float) -> Iterator[Lab]:
    """Start JupyterLab on a copy of `notebooks/`, with an emulator of its own.

    Parameters
    ----------
    scale : float
        Device pixels for each CSS pixel.
    """
    settings = Path(tempfile.mkdtemp(prefix="tm-lab-"))
    folder = settings / "notebooks"
    shutil.copytree(NOTEBOOKS, folder)
    try:
        with (
            own_home() as home,
            chromium() as browser,
            jupyterlab(settings, folder, browser, home, scale=scale) as lab,
        ):
            lab.setting("notebook-extension/tracker", {"windowingMode": "none"})
            yield lab
    finally:
        shutil.rmtree(settings, ignore_errors=True)


def run(lab: Lab, path: Path) -> str:
    """Run a notebook and return its text with outputs.

    Raises
    ------
    GalleryError
        A cell failed, or an output names this machine.
    """
    source = nbformat.read(path, as_version=4)
    shutil.copy(path, lab.folder / path.name)
    page = lab.open(path.stem, width=WIDTH, height=HEIGHT)
    page.evaluate(_CLEAR)
    pictures: dict[Place, Picture] = {}
    for index, cell in enumerate(source.cells):
        if cell.cell_type != "code":
            continue
        if cell.source.startswith(NEXT_MOMENT) or "delete" in cell.source:
            take_pictures(page, pictures)
        run_cell(lab, page, index)
    take_pictures(page, pictures)
    draw_lost_charts(lab, page, source.cells)
    lab.save(page)
    lab.close_pages(reuse=True)
    lab.end_kernels()
    ran = nbformat.read(lab.folder / path.name, as_version=4)
    for index, (cell, with_outputs) in enumerate(zip(source.cells, ran.cells, strict=True)):
        if cell.cell_type == "code":
            cell.execution_count = with_outputs.execution_count
            cell.outputs = [
                stored_output(output, pictures.get((index, number)))
                for number, output in enumerate(with_outputs.outputs)
            ]
    text = nbformat.writes(source) + "\n"
    return without_places(text, path.name, lab)


def run_cell(lab: Lab, page: Page, index: int) -> None:
    """Run a cell and wait until it has ended."""
    page.evaluate(_SELECT, index)
    lab.command(page, "notebook:run-cell")
    page.wait_for_function(_ENDED, arg=index, timeout=CELL_MILLISECONDS)


def draw_lost_charts(lab: Lab, page: Page, cells: list[Any]) -> None:
    """Run the cells again that draw a chart and show none.

    On a busy machine JupyterLab lost such an output twice, for an unknown reason. The kernel still has the results.
    """
    for index, cell in enumerate(cells):
        if cell.cell_type == "code" and CHART in cell.source and not page.evaluate(_OUTPUTS, index):
            print(f"cell {index} is run again: its chart was lost", flush=True)
            page.evaluate(_CLEAR_CELL, index)
            run_cell(lab, page, index)
            page.wait_for_timeout(SETTLE_MILLISECONDS)
            if not page.evaluate(_OUTPUTS, index):
                raise GalleryError(f"Cell {index} draws a chart, and JupyterLab shows none")


def take_pictures(page: Page, pictures: dict[Place, Picture]) -> None:
    """Add a picture of each panel that has none yet."""
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    for index, number, plain in page.evaluate(_PANELS):
        if (index, number) in pictures:
            continue
        cell = page.locator(".jp-Notebook .jp-Cell").nth(index)
        output = cell.locator(".jp-OutputArea-child").nth(number)
        shown = output.locator(".transient-panel:visible, .jp-RenderedHTMLCommon:visible").first
        pictures[index, number] = Picture(smaller(shown.screenshot(animations="disabled")), plain)


def smaller(png: bytes) -> str:
    """Return a picture with fewer colours, in base64."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    few = picture.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    written = io.BytesIO()
    few.save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode("ascii")


def stored_output(output: Any, picture: Picture | None) -> Any:
    """Return an output as it is stored: a panel as its picture, with its first line as alternative text."""
    if output.output_type == "error":
        raise GalleryError(f"A cell failed: {output.ename}: {output.evalue}")
    if picture is None:
        return output
    width = Image.open(io.BytesIO(base64.b64decode(picture.png))).width
    shown = {"width": round(width / SCALE), "alt": picture.plain.strip().splitlines()[0]}
    data = {"image/png": picture.png, "text/plain": picture.plain}
    return nbformat.v4.new_output("display_data", data, metadata={"image/png": shown})


def without_places(text: str, name: str, lab: Lab) -> str:
    """Return the text without this machine's folders; refuse what else would name the machine."""
    for folder, instead in ((lab.clusters, "~/.local/share/transient_magics"), (lab.folder, ".")):
        text = text.replace(str(folder), instead)
    host = socket.gethostname()
    for place in (str(ROOT), str(lab.home), tempfile.gettempdir() + "/", host):
        too_short = place == host and len(host) < SHORTEST_HOST
        if place in text and not too_short:
            raise GalleryError(f"{name}: an output names {place}; change the cell that prints it")
    return text


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GalleryError as error:
        sys.exit(str(error))
