"""What `--pip` may name: requirements, wheels by file or URL, and sources where they may be built.

A URL is written down in the journal and in the bucket, so none is taken that carries a secret.
"""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

from ..errors import DeclarationError

WHERE = "--pip"
_NAMED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[A-Za-z0-9._,\s-]*\])?")
_RANGES = re.compile(r"\s*(?:\(?\s*(?:===|==|~=|!=|<=|>=|<|>)[^@/\\]*)?")
_ARCHIVE = re.compile(r".*\.(?:whl|zip|tar|tgz|tbz|txz|tlz|tar\.(?:gz|bz2|xz|lz|lzma))", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://?")
_NAME = "Name packages, or files of packages."
_BUILD = "Name a wheel, or add --pip-build, which builds it where the controller runs: its own code runs there then."


def check_package(word: str, *, build: bool = False) -> str:
    """The place of a wheel or an archive (a path or a URL), empty for what an index has. Raises DeclarationError."""
    if not word.isprintable():
        raise DeclarationError(f"Invalid package name {word!r}", where=WHERE, fix=_NAME)
    named = _NAMED.match(word)
    rest = word[named.end() :] if named else ""
    if named and rest.lstrip().startswith("@"):
        return _place(word, rest.lstrip()[1:].split(";")[0].strip(), build)
    if _URL.match(word) or word.startswith("/") or _ARCHIVE.fullmatch(word):
        return _place(word, word, build)
    if not named or not _RANGES.fullmatch(rest.split(";")[0]):
        raise DeclarationError(f"Invalid package name '{without_secrets(word)}'", where=WHERE, fix=_NAME)
    return ""


def without_secrets(text: str) -> str:
    """The text without what may stand in URLs before their host or behind a question mark."""
    return re.sub(r"(://)[^\s/@]*@|\?[^\s#'\")]+", r"\1", text)


def _place(word: str, place: str, build: bool) -> str:
    url = urlsplit(quote(place) if place.startswith("/") else place)
    if "@" in url.netloc or url.query:
        raise DeclarationError(
            f"A URL with a user, a password or a token would be written down: {without_secrets(word)}",
            where=WHERE, fix="Download the file here (`pip download`), and name the file.",
        )  # fmt: skip
    if url.scheme not in ("", "file", "http", "https"):
        fix = "Build a wheel of it here (`pip wheel`), and name the file."
        raise DeclarationError(f"'{word}' is no file of a package", where=WHERE, fix=fix)
    if not url.path.lower().endswith(".whl") and not build:
        raise DeclarationError(f"'{word}' is no wheel and would have to be built", where=WHERE, fix=_BUILD)
    return place
