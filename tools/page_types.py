"""Writes `widgets/snapshot.d.ts`: the forms of `transient_magics/panels/snapshot/contract.py`, as TypeScript has them.

Run it when a form has changed. The page's JavaScript is checked against what it writes (`make lint`), and a test says
when that was forgotten.
"""

from __future__ import annotations

import inspect
import types
import typing
from pathlib import Path
from typing import Any, NotRequired, is_typeddict

from transient_magics.panels.snapshot import contract

TARGET = Path(__file__).parent.parent / "widgets" / "snapshot.d.ts"
_NAMES: dict[Any, str] = {str: "string", float: "number", int: "number", bool: "boolean", types.NoneType: "null"}
_ALIASES = types.UnionType | types.GenericAlias
_HEAD = "/* What a kernel sends: written by tools/page_types.py from transient_magics/panels/snapshot/contract.py. */\n"


def page_types() -> str:
    """The whole file."""
    named = {name: each for name, each in vars(contract).items() if not name.startswith("_")}
    aliases = {each: name for name, each in named.items() if isinstance(each, _ALIASES)}
    forms = [each for each in named.values() if is_typeddict(each)]
    lines = [f"export type {name} = {_type(each, {})};" for each, name in aliases.items()]
    return "\n".join([_HEAD, *lines, "", *(_interface(form, aliases) for form in forms)])


def _interface(form: type, aliases: dict[Any, str]) -> str:
    words = "\n * ".join((inspect.getdoc(form) or "").splitlines()).replace(" * \n", " *\n")
    fields = typing.get_type_hints(form, include_extras=True).items()
    lines = [f"  {_field(name, hint, aliases)};" for name, hint in fields]
    return "\n".join([f"/** {words} */", f"export interface {form.__name__} {{", *lines, "}", ""])


def _field(name: str, hint: Any, aliases: dict[Any, str]) -> str:
    if typing.get_origin(hint) is NotRequired:
        return f"{name}?: {_type(*typing.get_args(hint), aliases)}"
    return f"{name}: {_type(hint, aliases)}"


def _type(hint: Any, aliases: dict[Any, str]) -> str:
    """A type of Python's as TypeScript says it. Raises KeyError for one that no form had yet."""
    if hint in aliases:
        return aliases[hint]
    of = [_type(each, aliases) for each in typing.get_args(hint)]
    match typing.get_origin(hint):
        case types.UnionType | typing.Union:
            return " | ".join(dict.fromkeys(of))
        case origin if origin is list:
            return f"({of[0]})[]" if " | " in of[0] else f"{of[0]}[]"
        case origin if origin is tuple:
            return f"[{', '.join(of)}]"
        case origin if origin is dict:
            return f"Record<{', '.join(of)}>"
    return hint.__name__ if is_typeddict(hint) else _NAMES[hint]


if __name__ == "__main__":
    TARGET.write_text(page_types(), encoding="utf-8")
