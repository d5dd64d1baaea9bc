"""The end of what a command said, where its file did not come whole: its exit tells that too."""

from __future__ import annotations

from pathlib import Path

from ...journal import metrics

CUT = "[transient] what was said here did not come from the VM"


def add_tail(path: Path, tail: str) -> None:
    """Have the file at `path` end with `tail`, the last lines that were said; where they do not follow on what it has,
    a line says so. Raises OSError."""
    lines = tail.splitlines()
    said = path.read_text(errors="replace", encoding="utf-8").splitlines() if path.exists() else []
    known = next((count for count in range(min(len(lines), len(said)), 0, -1) if said[-count:] == lines[:count]), 0)
    missing = lines[known:] if known or not said else [CUT, *lines]
    if lines and missing:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        metrics.append(path, "".join(f"{line}\n" for line in missing).encode())
