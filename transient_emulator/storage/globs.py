"""`matchGlob`: patterns of object names, in which `*` stops at a slash and `**` does not."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..rest import wire

_TOKEN = re.compile(r"\*\*|\*|\?|\[!?[^]]+\]|\{|\}|,|.", re.DOTALL)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name matches `pattern`. ApiError 400 where it is no pattern."""
    depth, parts = 0, list[str]()
    for token in _TOKEN.findall(pattern):
        if token == "**":
            parts.append(".*")
        elif token == "*":
            parts.append("[^/]*")
        elif token == "?":
            parts.append("[^/]")
        elif len(token) > 1:
            parts.append("[" + ("^" if token[1] == "!" else "") + token[1:-1].lstrip("!").replace("\\", "\\\\") + "]")
        elif token == "{":
            depth += 1
            parts.append("(?:")
        elif token == "}" and depth:
            depth -= 1
            parts.append(")")
        elif token == "," and depth:
            parts.append("|")
        else:
            parts.append(re.escape(token))
    try:
        compiled = re.compile("".join(parts), re.DOTALL)
    except re.error:
        raise wire.ApiError(400, "invalid", f"Invalid glob: '{pattern}'.") from None
    return lambda name: compiled.fullmatch(name) is not None
