"""What tools/modules.py says of packages: small modules with one importer, and import cycles."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import grimp
import pytest

import transient_magics as tm
from tools import modules

SOURCES = {
    "__init__.py": "from .a import x\n",
    "a.py": "x = 1\n",
    "b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .c import C\n",
    "c.py": "class C:\n    def b(self):\n        from . import b\n        return b\n",
    "large.py": "from .a import x\n" + "y = 1\n" * 60,
    "user.py": "from .large import y\n",
}


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> grimp.ImportGraph:
    package = tmp_path / "some_package"
    package.mkdir()
    for name, source in SOURCES.items():
        (package / name).write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return grimp.build_graph("some_package", cache_dir=None)


def test_small_modules_with_one_importer_are_listed(graph: grimp.ImportGraph, tmp_path: Path) -> None:
    found = modules.modules(graph, tmp_path)
    assert {module.name.partition(".")[2]: module.lines for module in found} == {
        "a": 1, "b": 3, "c": 4, "large": 61, "user": 1,
    }  # fmt: skip
    assert [module.name for module in modules.small(found)] == ["some_package.b", "some_package.c"]
    assert "some_package                               5      70       2" in modules.report(found)


def test_imports_for_type_checkers_and_in_functions_make_cycles(graph: grimp.ImportGraph) -> None:
    assert modules.cycles(graph) == [["some_package.b", "some_package.c"]]


def test_no_module_hides_a_public_name() -> None:
    # The import system binds a submodule in its package, also over a function of that name.
    modules_of_that_name = [name for name in tm.__all__ if find_spec(f"transient_magics.{name}") is not None]
    assert all(isinstance(getattr(tm, name), ModuleType) for name in modules_of_that_name)


def test_the_tree_has_a_line_with_a_purpose_for_every_folder() -> None:
    lines = modules.tree().splitlines()
    assert len(lines) > 60
    assert [line for line in lines if not line[35:].strip()] == []
    assert any(line.startswith("transient_magics/ ") for line in lines)
    assert any(line.startswith("      chief/") for line in lines)
