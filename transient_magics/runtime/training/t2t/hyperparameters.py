"""The hyperparameters that Tensor2Tensor knows, from its sources, without importing it.

So a misspelt name is found immediately. A set need not have all of them; the check, which builds
the set, finds that.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_ADDED = re.compile(r"""add_hparam\(\s*["'](\w+)["']""")
_TYPED = re.compile(r"(?:^|,)\s*(\w+)\s*(?:\[\d+\])?\s*=")


@cache
def hyperparameter_names() -> frozenset[str]:
    """Return the names in all sets and models; empty without Tensor2Tensor on this machine."""
    found: set[str] = set()
    specification = find_spec("tensor2tensor")
    if specification is None:
        return frozenset()
    for root in map(Path, specification.submodule_search_locations or ()):
        for source in root.rglob("*.py"):
            text = source.read_text(errors="replace", encoding="utf-8")
            found.update(_ADDED.findall(text))
            if "HParams(" in text and not source.name.endswith("_test.py"):
                found.update(_keywords(text))
    return frozenset(found)


def typed(overrides: str) -> list[str]:
    """Return the names in the text of `--hparams`."""
    return _TYPED.findall(overrides)


def _keywords(text: str) -> set[str]:
    """Return the keywords of calls `HParams(name=value)`, which create sets."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "HParams":
            found.update(keyword.arg for keyword in node.keywords if keyword.arg)
    return found
