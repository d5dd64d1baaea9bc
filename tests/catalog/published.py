"""The published figures beside the project, where they are."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

PUBLISHED = Path(__file__).parents[2].parent / "shared" / "data"
GPU_OF = {
    "K80": "k80", "P100": "p100", "V100": "v100", "T4": "t4", "P4": "p4", "L4": "l4", "A100-40GB": "a100",
    "H100-80GB": "h100",
}  # fmt: skip


def published(name: str) -> list[dict[str, str]]:
    path = PUBLISHED / name
    if not path.exists():
        pytest.skip(f"there is no {path.relative_to(PUBLISHED.parent.parent)} beside the project")
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
