"""The gallery: a page for each notebook that is stored with outputs. Nothing is executed."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
ORDER = ("quickstart", "keras", "weather", "sweep", "deadline", "planning", "bag", "lennard-jones", "icac19")
"""All notebooks, in the order of their pages. A notebook has a page when it is stored with outputs."""
ABOUT = "Notebooks with their outputs. All ran on the emulator: they need no account, and nothing was billed."


def write(folder: Path) -> None:
    """Write a page for each notebook, its pictures, and an index into `folder`, where they have changed."""
    folder.mkdir(exist_ok=True)
    notebooks = _with_outputs()
    for path in folder.iterdir():
        if not path.name.startswith(("index", *notebooks)):
            path.unlink()  # of a notebook that left the gallery: Sphinx refuses pages without a place
    index = ["# Gallery", "", ABOUT, ""]
    for name, cells in notebooks.items():
        pictures: dict[str, bytes] = {}
        lines = list(_page(name, cells, pictures))
        _store(folder / f"{name}.md", "\n".join(lines).encode())
        for file, picture in pictures.items():
            _store(folder / file, picture)
        title, about = _opening(cells)
        index += [f"## [{title}]({name}.md)", "", about, ""]
        if pictures:
            # The first panel often shows a cluster without VMs yet; the largest file shows most.
            fullest = max(pictures, key=lambda file: len(pictures[file]))
            index += [f"```{{image}} {fullest}", f":alt: {title}", f":target: {name}.html", "```", ""]
    index += ["```{toctree}", ":hidden:", "", *notebooks, "```", ""]
    _store(folder / "index.md", "\n".join(index).encode())


def _with_outputs() -> dict[str, list[dict[str, Any]]]:
    """Return the cells of each notebook that is stored with outputs, in the order of the pages."""
    notebooks: dict[str, list[dict[str, Any]]] = {}
    for name in ORDER:
        cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        if any(cell.get("outputs") for cell in cells):
            notebooks[name] = cells
    return notebooks


def _store(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


def _text(lines: list[str] | str) -> str:
    return "".join(lines)


def _opening(cells: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the title of a notebook and its first paragraph."""
    title, _, rest = _text(cells[0]["source"]).partition("\n")
    return title.removeprefix("# "), _links(rest.strip().split("\n\n")[0])


def _links(markdown: str) -> str:
    """Return Markdown of a notebook with links that hold in the gallery's folder."""
    return markdown.replace("](../docs/", "](../")


def _page(name: str, cells: list[dict[str, Any]], pictures: dict[str, bytes]) -> Iterator[str]:
    """Yield the lines of a page; add its pictures by their file names."""
    for place, cell in enumerate(cells):
        if cell["cell_type"] == "markdown":
            yield from (_links(_text(cell["source"])), "")
            continue
        yield from _fenced("ipython3", _text(cell["source"]))
        for number, output in enumerate(cell["outputs"]):
            yield from _output(f"{name}-{place}-{number}.png", output, pictures)


def _fenced(language: str, text: str) -> Iterator[str]:
    ticks = [len(found) for found in re.findall("`+", text)]
    fence = "`" * max(3, 1 + max(ticks, default=0))
    yield from (f"{fence}{language}", text.rstrip("\n"), fence, "")


def _output(file: str, output: dict[str, Any], pictures: dict[str, bytes]) -> Iterator[str]:
    """Yield the lines of an output: a picture, else HTML, else text."""
    data = output.get("data", {})
    if picture := data.get("image/png"):
        pictures[file] = base64.b64decode(_text(picture))
        shown = output.get("metadata", {}).get("image/png", {})
        yield from (f"```{{image}} {file}", f":alt: {shown.get('alt', 'A chart')}")
        if width := shown.get("width"):
            yield f":width: {width}px"
        yield from ("```", "")
    elif page := data.get("text/html"):
        without_style = re.sub(r"<style.*?</style>", "", _text(page), flags=re.DOTALL)
        yield from _fenced("{raw} html", without_style)
    else:
        yield from _fenced("text", _text(output.get("text") or data.get("text/plain", "")))
