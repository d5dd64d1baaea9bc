"""Texts claim no more of plans, deadlines and savings than was measured: they speak of estimates and ranges.

What was measured may be said: of lifetimes, surrogates and simulated bags, and of benchmarks with their counts.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from transient_magics.cli import arguments
from transient_magics.client import plan

TOP = Path(__file__).parent.parent
SURE = re.compile(
    r"never late|nine (?:of|in|times of|out of) ten|9 (?:of|in|out of) 10|\b90 ?%|\b90 per ?cent|guarantee",
    re.IGNORECASE,
)
SAVED = re.compile(r"%\}? saved\b(?! against Google's on-demand price| \{AGAINST\})")
MAY = {
    "docs/lifetimes.md": ("survival with its 90% band",),
    "docs/bags.md": ("in which nine of ten of 200 simulated bags", "the 90% intervals hold 80 to 97% of the results",
                     "band that holds 90%"),
    "docs/data.md": ("(90% straight from the bucket)",),
    "notebooks/icac19.ipynb": ("{1 - ours / alone:.1%} saved, published {1 - theirs / on_demand:.1%}",),
    "notebooks/lennard-jones.ipynb": ("how often the 90 % intervals hold", "90% intervals hold", "surrogate, 90 %",
                                      "jobs, 90 %"),
    "transient_magics/client/text/bags.py": ("90% intervals held", "the 90% intervals held"),
    "transient_magics/client/planning/bag_plans.py": ("where 90% of {COURSES} simulated bags lie",),
    "transient_magics/client/planning/lifetimes.py": ("90% BAND",),
    "transient_magics/panels/twin/bags.py": ("90% intervals held",),
    "transient_magics/panels/twin/sections.py": ("90% band",),
    "transient_emulator/weather/words.py": ("(nine of ten)",),
    "transient_magics/cli/options/weather.py": ("nine of ten within 50ms..400ms",),
    "widgets/bags.js": ("90% held",),
}  # fmt: skip
"""By file, what is said of figures that hold: passages, as they are written there."""


def files() -> list[Path]:
    found = [TOP / "README.md", *(TOP / "docs").glob("*.md"), *(TOP / "notebooks").glob("*.ipynb")]
    return sorted(
        [
            *found,
            *(TOP / "widgets").glob("*.js"),
            *(TOP / "transient_magics").rglob("*.py"),
            *(TOP / "transient_emulator").rglob("*.py"),
        ]
    )


def said(path: Path) -> str:
    """All that a file may show to somebody: of a module neither docstrings nor comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.end_lineno:
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(re.sub(r"(?:^|  )# .*", "", line) for line in lines)


def claims(name: str, text: str) -> Iterator[str]:
    for passage in MAY.get(name, ()):
        text = text.replace(passage, "")
    for pattern in (SURE, SAVED):
        for found in pattern.finditer(text):
            yield f"{name}: {text[max(0, found.start() - 60) : found.end() + 40]!r}"


def test_no_text_claims_more_than_was_measured() -> None:
    assert len(files()) > 300
    assert not [claim for path in files() for claim in claims(path.relative_to(TOP).as_posix(), said(path))]


def test_no_help_claims_more_than_was_measured() -> None:
    for verb in ("declare", "train", "study", "bag", "plan"):  # texts in pieces read as one
        assert not list(claims(verb, arguments.parse(verb, ["-h"]).values["text"]))


@pytest.mark.parametrize("name", sorted(MAY))
def test_what_may_be_said_is_said_there(name: str) -> None:
    text = (TOP / name).read_text(encoding="utf-8")
    for passage in MAY[name]:
        assert passage in text


def test_a_plan_says_that_it_needs_spot_capacity_and_to_what_a_saving_is_compared() -> None:
    pytest.importorskip("numpy")
    asked = {"workload": "icac19/resnet-32", "train_steps": 64_000}
    plans = {name: plan("k80x4", **asked, provisioning_model=name) for name in ("spot", "standard")}  # type: ignore[arg-type]
    first = {name: str(found).splitlines()[1] for name, found in plans.items()}
    assert "if Spot capacity lasts; estimates and their ranges" in first["spot"]
    assert "Spot capacity" not in first["standard"]
    assert "% saved against Google's on-demand price." in str(plans["spot"]).splitlines()[2]


TABLE = json.loads((TOP / "benchmarks" / "calibration.json").read_text(encoding="utf-8"))
"""The stored rows of `benchmarks/bench_calibration.py`."""


def shares(interval: str, measured: str, what: str) -> list[float]:
    """A figure of all rows of an interval whose measurements match, in percent."""
    rows = [row for row in TABLE if row["interval"] == interval and re.search(measured, row["measured"])]
    assert rows, "the table has no such row"
    assert all(row["trials"] >= 400 for row in rows)
    return [100 * row[what] for row in rows]


def test_the_evidence_says_how_many_rows_of_the_table_meet_their_goal() -> None:
    goals = [row["holds"] for row in TABLE if row["holds"] is not None]
    text = " ".join((TOP / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    assert f"the goal is met in {sum(goals)} of {len(goals)} situations" in text


def test_the_evidence_on_deadlines_is_what_the_table_shows() -> None:
    text = " ".join((TOP / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    below = shares("deadline speed", "", "below")
    assert f"below that bound, at 95%, in {min(below):.0f} to {max(below):.0f} of 100" in text
    for drop in (5, 10):
        assert shares(f"deadline kept, drop of {drop}%", "", "above") == [0, 0]
    assert "none of 400 in simulation" in text
    late = {vms: [shares(f"deadline kept, drop of {drop}%, noise", f"^{vms} VMs", "above")[0] for drop in (5, 10)]
            for vms in (1, 4)}  # fmt: skip
    assert {round(share) for share in late[1]} == {9}
    assert (round(min(late[4])), round(max(late[4]))) == (2, 5)
    assert "9% of such runs were late with one VM, and 2 to 5% with four" in text
