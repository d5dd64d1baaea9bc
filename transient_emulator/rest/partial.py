"""Partial responses: the `fields` parameter of Google's APIs, as a function on JSON.

`items(name,labels/run),nextPageToken` keeps what it names; `*` stands for every member; lists are looked into.
"""

from __future__ import annotations

import re
from typing import Any

from . import wire

Mask = dict[str, "Mask"]
_TOKEN = re.compile(r"\s*([(),/]|[^\s(),/]+)")


def parse(text: str) -> Mask:
    """What `text` selects: a tree of names, empty where all below is wanted. ApiError 400 where it is no selection."""
    tokens = _TOKEN.findall(text)
    mask, rest = _list(tokens)
    if rest or not mask:
        raise wire.invalid("fields", text, "Invalid field selection.")
    return mask


def select(content: Any, mask: Mask) -> Any:
    """The part of `content` that `mask` names."""
    if not mask:
        return content
    if isinstance(content, list):
        return [select(each, mask) for each in content]
    if not isinstance(content, dict):
        return content
    found: dict[str, Any] = {}
    for name, value in content.items():
        below = mask.get(name, mask.get("*"))
        if below is not None:
            found[name] = select(value, below)
    return found


def _list(tokens: list[str]) -> tuple[Mask, list[str]]:
    mask: Mask = {}
    while True:
        name, below, tokens = _path(tokens)
        if name in mask and mask[name] and below:
            mask[name].update(below)
        else:
            mask[name] = below
        if tokens[:1] != [","]:
            return mask, tokens
        tokens = tokens[1:]


def _path(tokens: list[str]) -> tuple[str, Mask, list[str]]:
    if not tokens or tokens[0] in "(),/":
        raise wire.invalid("fields", "".join(tokens), "Invalid field selection.")
    name, tokens = tokens[0], tokens[1:]
    if tokens[:1] == ["/"]:
        inner, below, tokens = _path(tokens[1:])
        return name, {inner: below}, tokens
    if tokens[:1] == ["("]:
        below, tokens = _list(tokens[1:])
        if tokens[:1] != [")"]:
            raise wire.invalid("fields", name, "Invalid field selection.")
        return name, below, tokens[1:]
    return name, {}, tokens
