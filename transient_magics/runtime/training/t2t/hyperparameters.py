"""Which hyper-parameters Tensor2Tensor knows at all, from its sources: nothing of it is imported.

So a misspelt name is found where it was typed, at once. A set need not have every one of them: that
is found by the check, which builds the set.
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
def known() -> frozenset[str]:
    """The names that some set has or a model adds; empty where Tensor2Tensor is not installed here."""
    specification = find_spec("tensor2tensor")
    found: set[str] = set()
    for root in map(Path, specification.submodule_search_locations or () if specification else ()):
        for source in root.rglob("*.py"):
            text = source.read_text(errors="replace", encoding="utf-8")
            found.update(_ADDED.findall(text))
            if "HParams(" in text and not source.name.endswith("_test.py"):
                found.update(_keywords(text))
    return frozenset(found)


def typed(overrides: str) -> list[str]:
    """The names in the text of `--hparams`."""
    return _TYPED.findall(overrides)


def _keywords(text: str) -> set[str]:
    """What sets are made with: `HParams(name=value)`."""
    calls = (each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Call))
    made = (
        call
        for call in calls
        if getattr(call.func, "attr", getattr(call.func, "id", "")) == "HParams"
    )
    return {keyword.arg for each in made for keyword in each.keywords if keyword.arg}
