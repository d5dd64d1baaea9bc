"""Faster imports: without the garbage collector, or on first use."""

from __future__ import annotations

import contextlib
import gc
import importlib
import re
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

from .kinds import public_names

_NAME = re.compile(r"^from \.(\S*) import (\w+) as (\w+)$", re.MULTILINE)


def lazy(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports its public names on first use.

    The package's stub lists the names, each as `from .module import name as name`. The public names
    of all kinds of work are added to them (`kinds.public_names`). `__all__` has all of them.

    Parameters
    ----------
    package
        The package's `__name__`.
    file
        The package's `__file__`; its stub is beside it.
    """

    @cache
    def sources() -> dict[str, tuple[str, str]]:
        stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
        found = dict(public_names())
        for module, source, name in _NAME.findall(stub):
            found[name] = (f".{module}", source)
        return found

    def get(name: str) -> Any:
        if name == "__all__":
            return names()
        if name.startswith("__") or name not in sources():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, source = sources()[name]
        if module == ".":
            return importlib.import_module(f".{source}", package)
        return getattr(importlib.import_module(module, package), source)

    def names() -> list[str]:
        return sorted(sources())

    return get, names


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """Disable the garbage collector during imports, which saves up to a quarter of their time.

    Imported objects are never freed. They are also left out of later collections, so that their
    memory stays shared with forked processes.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.freeze()
            gc.enable()
