"""Taking names out of what a person shows to others: projects, accounts, buckets, addresses, hosts, users, keys.

Names that are known are replaced wherever they stand, in any case, also as labels and URLs write them; what has the
form of an address, a key, a number of Google's or a token is replaced whether it is known or not. The same name gets
the same placeholder throughout one report, so that its parts still refer to each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

KINDS = ("home", "project", "account", "bucket", "host", "user", "other")
"""Of known names, in the order in which they are told apart: a name that is of two kinds is of the first."""
_LEAST = 3  # a machine called `vm` or a user `me` is nobody in particular, and their names are everybody's words
_WHOLE = 6  # shorter names are replaced where no letter or digit touches them: `root` is a part of many words
_KEPT = frozenset(("0.0.0.0", "127.0.0.1", "35.235.240.0", "169.254.169.254"))
"""Addresses that are everybody's: no network, this machine, Identity-Aware Proxy's, a VM's metadata server."""
_FORMS: tuple[tuple[str, str], ...] = (
    ("KEY", r"(?:ssh|ecdsa|sk)-[a-z0-9@.-]+ AAAA[A-Za-z0-9+/=]+(?: \S+)?"),
    ("TOKEN", r"ya29\.[\w.-]+|Bearer [\w.+/=~-]+"),
    ("ACCOUNT", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    ("UUID", r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
    ("OPERATION", r"\boperation-\d[\w-]+"),
    ("ADDRESS", r"\b\d{1,3}(?:\.\d{1,3}){3}\b"),
    ("ADDRESS", r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{0,4}(?![\w:])"),
    ("HASH", r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{16,}\b"),
    ("NUMBER", r"(?<![\d.])\d{9,}(?!\d)"),
)


class Names:
    """The placeholders of one report."""

    def __init__(self, known: Mapping[str, Iterable[str]]) -> None:
        """`known`: names by kind (KINDS). Those of one or two letters are passed over."""
        self._placeholders: dict[str, str] = {}
        self._seen: dict[str, list[str]] = {}
        for kind in KINDS:
            for name in known.get(kind, ()):
                if len(name) >= _LEAST and name.lower() not in self._placeholders:
                    self._know(name, self._next(kind.upper(), name.lower()))
        parts = sorted(self._placeholders, key=len, reverse=True)
        self._known = re.compile("|".join(map(_anywhere, parts)), re.IGNORECASE) if parts else None
        self._forms = [(word, re.compile(form)) for word, form in _FORMS]

    def conceal(self, text: str) -> str:
        """The text without names."""
        if self._known:
            text = self._known.sub(lambda found: self._placeholders[found[0].lower()], text)
        for word, form in self._forms:
            text = form.sub(lambda found, word=word: self._placeholder(word, found[0]), text)
        return text

    def concealed(self, value: Any) -> Any:
        """A JSON value without names, in keys and values."""
        if isinstance(value, str):
            return self.conceal(value)
        if isinstance(value, Mapping):
            return {self.conceal(str(key)): self.concealed(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.concealed(each) for each in value]
        return value

    def _know(self, name: str, placeholder: str) -> None:
        """The name as it stands, as a URL has it, and as a label or a file's name may."""
        spellings = (name, quote(name, safe=""), quote(name), re.sub(r"[^a-z0-9_-]", "-", name.lower()))
        for each in spellings:
            self._placeholders.setdefault(each.lower(), placeholder)

    def _placeholder(self, word: str, found: str) -> str:
        return found if found in _KEPT else self._next(word, found)

    def _next(self, word: str, name: str) -> str:
        seen = self._seen.setdefault(word, [])
        if name not in seen:
            seen.append(name)
        return f"{word}-{seen.index(name) + 1}"


def _anywhere(name: str) -> str:
    plain = re.escape(name)
    return plain if len(name) >= _WHOLE else rf"(?<![a-z0-9]){plain}(?![a-z0-9])"
