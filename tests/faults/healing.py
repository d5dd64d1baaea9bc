"""The seconds that healing took, for a table of faults (benchmarks): each test of a fault says what it saw.

Where `TRANSIENT_TESTS_HEALED` names a file, each `healed` is one more line of it:
`{"fault": ..., "moment": ..., "test": the pytest test that ran, "seconds": ...}`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def healed(fault: str, moment: str, seconds: float) -> None:
    """`fault`, which struck at `moment` of a cluster's life, was over after so many seconds."""
    if path := os.environ.get("TRANSIENT_TESTS_HEALED"):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        row = {"fault": fault, "moment": moment, "test": test, "seconds": round(seconds, 2)}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
