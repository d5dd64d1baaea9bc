"""Count the modules of the packages, and list the small ones with one importer and the import cycles.

`--tree` prints the folders instead, each with the first sentence of its `__init__.py`. Imports for type checkers and
imports in functions count. An `__init__.py` counts as an importer, but not as a module.
"""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import grimp

PACKAGES = ("transient_magics", "transient_emulator")
ROOT = Path(__file__).parent.parent
SMALL = 60


@dataclass(frozen=True, slots=True)
class Module:
    """A module, its lines, and the modules that import it."""

    name: str
    lines: int
    importers: tuple[str, ...]

    @property
    def room(self) -> str:
        """The package and, within it, the folder that holds the module."""
        return ".".join(self.name.split(".")[:-1][:2])


def main() -> None:
    """Print the tables. Exits with 1 if `--check` is given and there is a cycle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only list the cycles, and fail if there are any")
    parser.add_argument("--tree", action="store_true", help="print the folders and what they are for")
    values = parser.parse_args()
    if values.tree:
        print(tree())
        return
    sys.path.insert(0, str(ROOT))
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    found = cycles(graph)
    if not values.check:
        print(report(modules(graph)))
    for cycle in found:
        print(f"cycle of {len(cycle)} modules: {', '.join(cycle)}")
    if values.check and found:
        sys.exit(1)


def modules(graph: grimp.ImportGraph, root: Path = ROOT) -> list[Module]:
    """Return all modules of a graph that are not packages, by name; `root` holds the packages."""
    found: list[Module] = []
    for name in sorted(graph.modules):
        path = root.joinpath(*name.split(".")).with_suffix(".py")
        if not path.exists():
            continue
        lines = path.read_text(encoding="utf-8").count("\n")
        importers = tuple(sorted(graph.find_modules_that_directly_import(name)))
        found.append(Module(name, lines, importers))
    return found


def cycles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    found: list[list[str]] = []
    seen: set[str] = set()
    for name in sorted(graph.modules):
        if name in seen:
            continue
        circle = graph.find_upstream_modules(name) & graph.find_downstream_modules(name)
        if circle:
            members = sorted({name, *circle})
            seen.update(members)
            found.append(members)
    return found


def small(modules: list[Module], lines: int = SMALL) -> list[Module]:
    """Return the modules of fewer than `lines` lines that have a single importer."""
    return [module for module in modules if module.lines < lines and len(module.importers) == 1]


def report(modules: list[Module]) -> str:
    """Return a table of the folders, then the small modules that have one importer."""
    rooms: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        rooms[module.room].append(module)
    total = sum(module.lines for module in modules)
    heading = f"small: fewer than {SMALL} lines, one importer"
    rows = [f"{'folder':<36}{'modules':>8}{'lines':>8}{'small':>8}    {heading}"]
    for room, members in sorted(rooms.items()):
        size = sum(module.lines for module in members)
        rows.append(f"{room:<36}{len(members):>8}{size:>8}{len(small(members)):>8}")
    rows.append(f"{'all':<36}{len(modules):>8}{total:>8}{len(small(modules)):>8}")
    rows.append("")
    for module in small(modules):
        rows.append(f"{module.name}: {module.lines} lines, imported by {module.importers[0]}")
    return "\n".join(rows)


def tree(root: Path = ROOT, packages: tuple[str, ...] = PACKAGES) -> str:
    """Return the folders below `root` that are packages, one line each, with the purpose of each."""
    rows: list[str] = []
    for package in packages:
        for path in sorted((root / package).rglob("__init__.py")):
            folder = path.parent.relative_to(root)
            indent = "  " * (len(folder.parts) - 1)
            count = sum(module.name != "__init__.py" for module in path.parent.glob("*.py"))
            rows.append(f"{indent + folder.name + '/':<30}{count:>3}  {purpose(path)}")
    return "\n".join(rows)


def purpose(path: Path) -> str:
    """Return the first paragraph of a module's docstring, in at most 110 characters."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return textwrap.shorten(paragraph, 110, placeholder=" ...")


if __name__ == "__main__":
    main()
