"""Writes what the page has from the kernel: the forms of snapshots as TypeScript, and the sections of kinds of work.

`widgets/snapshot.d.ts` has the forms of `transient_magics/panels/snapshot/contract.py` and of the modules `snapshot` of
kinds of work. The page's JavaScript is checked against it (`make lint`). `widgets/sections.js` lists the kinds whose
view has a section. Run this when one of them has changed; a test fails until then.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, is_typeddict

from transient_magics.kinds import KINDS
from transient_magics.panels.sections import section_views
from transient_magics.panels.snapshot import contract

WIDGETS = Path(__file__).parent.parent / "widgets"
_NAMES: dict[Any, str] = {str: "string", float: "number", int: "number", bool: "boolean", types.NoneType: "null"}
_ALIASES = types.UnionType | types.GenericAlias
_TYPES_HEAD = "/* What a kernel sends: written by tools/page_types.py from the package, see there. */\n"
_SECTIONS_HEAD = "/* The sections of kinds of work: written by tools/page_types.py from transient_magics/kinds.py. */\n"


def page_types() -> str:
    """Return the text of `snapshot.d.ts`."""
    aliases: dict[Any, str] = {}
    forms: list[type] = []
    for module in (contract, *_modules_of_kinds()):
        named = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        for name, value in named.items():
            if isinstance(value, _ALIASES):
                aliases.setdefault(value, name)
            elif is_typeddict(value) and value.__module__ == module.__name__:
                forms.append(value)
    lines = [f"export type {name} = {_type(each, {})};" for each, name in aliases.items()]
    return "\n".join([_TYPES_HEAD, *lines, "", *(_interface(form, aliases) for form in forms)])


def sections() -> str:
    """Return the text of `sections.js`: by kind the function of `widgets/KIND.js` that draws its section."""
    lines = [f'import {{ sections as {kind} }} from "./{kind}.js";' for kind in section_views()]
    return "\n".join(
        [
            _SECTIONS_HEAD,
            *lines,
            "",
            "/** @type {Record<string, (send: (message: object) => void) => any>} */",
            f"export const SECTIONS = {{ {', '.join(section_views())} }};",
            "",
        ]
    )


def _modules_of_kinds() -> Iterator[types.ModuleType]:
    """Yield the modules called `snapshot` of all kinds of work."""
    for kind in KINDS.values():
        package = importlib.import_module(kind.package)
        for module in pkgutil.walk_packages(package.__path__, f"{kind.package}."):
            if module.name.endswith(".snapshot"):
                yield importlib.import_module(module.name)


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
    (WIDGETS / "snapshot.d.ts").write_text(page_types(), encoding="utf-8")
    (WIDGETS / "sections.js").write_text(sections(), encoding="utf-8")
