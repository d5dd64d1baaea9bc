"""Partial responses: the `fields` parameter of Google's APIs, as a function on JSON.

`items(name,labels/run),nextPageToken` keeps the fields that it names. `*` stands for every field. A
selection applies to each member of a list.
"""

from __future__ import annotations

import re
from typing import Any

from . import wire

Mask = dict[str, "Mask"]
"""A tree of field names; an empty mask selects everything below."""
_TOKEN = re.compile(r"\s*([(),/]|[^\s(),/]+)")


def parse(text: str) -> Mask:
    """Return the mask that `text` describes.

    Raises
    ------
    ApiError
        400 if the text is not a selection.
    """
    mask, rest = _list(_TOKEN.findall(text))
    if rest or not mask:
        raise wire.invalid("fields", text, "Invalid field selection.")
    return mask


def select(content: Any, mask: Mask) -> Any:
    """Return the part of `content` that `mask` selects."""
    if not mask:
        return content
    if isinstance(content, list):
        return [select(member, mask) for member in content]
    if not isinstance(content, dict):
        return content
    found: dict[str, Any] = {}
    for name, value in content.items():
        below = mask.get(name, mask.get("*"))
        if below is not None:
            found[name] = select(value, below)
    return found


def _list(tokens: list[str]) -> tuple[Mask, list[str]]:
    """Parse `path (, path)*`; return the mask and the remaining tokens."""
    mask: Mask = {}
    while True:
        name, below, tokens = _path(tokens)
        # `labels/a,labels/b` selects both.
        if name in mask and mask[name] and below:
            mask[name].update(below)
        else:
            mask[name] = below
        if tokens[:1] != [","]:
            return mask, tokens
        tokens = tokens[1:]


def _path(tokens: list[str]) -> tuple[str, Mask, list[str]]:
    """Parse `name`, `name/path` or `name(list)`.

    Returns the name, the mask below it, and the remaining tokens.
    """
    if not tokens or tokens[0] in "(),/":
        raise wire.invalid("fields", "".join(tokens), "Invalid field selection.")
    name = tokens[0]
    tokens = tokens[1:]
    if tokens[:1] == ["/"]:
        inner, below, tokens = _path(tokens[1:])
        return name, {inner: below}, tokens
    if tokens[:1] == ["("]:
        below, tokens = _list(tokens[1:])
        if tokens[:1] != [")"]:
            raise wire.invalid("fields", name, "Invalid field selection.")
        return name, below, tokens[1:]
    return name, {}, tokens
