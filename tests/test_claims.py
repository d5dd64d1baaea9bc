"""Texts claim no more of plans, deadlines and savings than was measured: they speak of estimates and ranges.

What was measured may be said: intervals whose rows of the stored calibration table hold, and figures with their counts.
"""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from transient_magics.cli import arguments
from transient_magics.client import plan

TOP = Path(__file__).parent.parent
SURE = re.compile(
    r"never late|nine (?:of|in|times of|out of) ten|9 (?:of|in|out of) 10|\b90 ?%|\b90 per ?cent|guarantee",
    re.IGNORECASE,
)
SAVED = re.compile(r"%\}? saved\b(?! against Google's on-demand price| \{AGAINST\})")
TABLE = json.loads((TOP / "benchmarks" / "calibration.json").read_text(encoding="utf-8"))
"""The stored rows of `benchmarks/bench_calibration.py`."""
BEFORE = json.loads((TOP / "benchmarks" / "calibration-before.json").read_text(encoding="utf-8"))
"""Rows of the same worlds with the code before the intervals were mended."""


@dataclass(frozen=True)
class Rows:
    """Rows of the stored table that show whether a passage is true: those of an `interval`, a pattern, except those
    that `but` matches, of which the passage says something else."""

    interval: str
    but: str = r"(?!)"

    def missed(self, table: Sequence[Mapping[str, Any]] = TABLE) -> list[str]:
        """Return the rows whose goals are not met, and what is wrong with the table."""
        rows = [
            row for row in table
            if re.fullmatch(self.interval, row["interval"]) and row["target"] and row["shown"]
            and not re.search(self.but, f"{row['interval']}: {row['measured']}")
        ]  # fmt: skip
        if not rows:
            return [f"no row of {self.interval}"]
        few = [f"{row['interval']}: {row['measured']}: {row['trials']} trials" for row in rows if row["trials"] < 100]
        return few + [
            f"{row['interval']}: {row['measured']}: {row['coverage']:.1%}" for row in rows if not row["holds"]
        ]


COUNTED = "how often intervals held is counted there, and shown"
SETTING = "the meaning of an option"
ALIVE = Rows("share alive at .*", but="at 12 h: .* watched for 2 h in the mean")  # shown to few, and wider
BAGS = Rows("bag plan (hours|failed)")
MAY: dict[str, dict[str, Rows | str]] = {
    "docs/lifetimes.md": {"survival with its 90% band (wider at ages that few VMs reached)": ALIVE},
    "docs/bags.md": {
        "the interval that contains 90% of 200 simulated bags": BAGS,
        "the 90% intervals hold 80 to 97% of the results": "COVERED of works/bags/surrogate/active_learning.py",
    },
    "docs/data.md": {"(90% straight from the bucket)": "an example of a line about copies"},
    "notebooks/bag.ipynb": {"90% intervals held": COUNTED},
    "notebooks/lennard-jones.ipynb": {
        "how often the 90 % intervals hold": COUNTED,
        "90% intervals hold": COUNTED,
        "90% intervals held": COUNTED,
    },
    "transient_magics/works/bags/words.py": {"90% intervals held": COUNTED, "the 90% intervals held": COUNTED},
    "transient_magics/works/bags/plans.py": {"where 90% of {COURSES} simulated bags lie": BAGS},
    "transient_magics/client/planning/lifetimes.py": {"90% BAND": ALIVE},
    "transient_magics/works/bags/static.py": {"90% intervals held": COUNTED},
    "transient_emulator/weather/words.py": {"(nine of ten)": SETTING},
    "transient_magics/cli/options/weather.py": {"50ms..400ms for nine of ten": SETTING},
    "widgets/bag.js": {"90% held": COUNTED},
}
"""By file, passages that may be said as they are written there, and why: the stored rows that show that an interval
holds what it says, or that the passage claims no interval."""
CLAIMED = [(name, passage, rows) for name, found in MAY.items() for passage, rows in found.items()
           if isinstance(rows, Rows)]  # fmt: skip


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
    """Return the text of a file in which a claim may be: docstrings and comments of a module left out."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return html.unescape(text)  # outputs are HTML
    if path.suffix != ".py":
        return text
    if not (SURE.search(text) or SAVED.search(text)):
        return ""  # need not be parsed
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.end_lineno:
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(re.sub(r"(?:^|  )# .*", "", line) for line in lines)


def claims(name: str, text: str) -> Iterator[str]:
    for passage in MAY.get(name, {}):
        text = text.replace(passage, "")
    for pattern in (SURE, SAVED):
        for found in pattern.finditer(text):
            yield f"{name}: {text[max(0, found.start() - 60) : found.end() + 40]!r}"


def test_no_text_claims_more_than_was_measured() -> None:
    assert len(files()) > 300
    assert not [claim for path in files() for claim in claims(path.relative_to(TOP).as_posix(), said(path))]


def test_no_help_claims_more_than_was_measured() -> None:
    for verb in ("declare", "train", "study", "bag", "plan"):  # texts in pieces read as one
        assert not list(claims(verb, str(arguments.parse(verb, ["-h"]).values["help"])))


@pytest.mark.parametrize("name", sorted(MAY))
def test_what_may_be_said_is_said_there(name: str) -> None:
    text = (TOP / name).read_text(encoding="utf-8")
    for passage in MAY[name]:
        assert passage in text


@pytest.mark.parametrize(
    ("name", "passage", "rows"), CLAIMED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_said_of_an_interval_is_in_the_stored_table(name: str, passage: str, rows: Rows) -> None:
    assert not rows.missed(), f"{name} says: {passage}"


def test_a_passage_whose_rows_do_not_hold_is_found() -> None:
    spoilt = [{**row, "holds": False} if row["measured"] == "hourly counts, 30 VMs" else row for row in TABLE]
    assert len(ALIVE.missed(spoilt)) == 2
    assert ALIVE.missed([]) == ["no row of share alive at .*"]
    assert not BAGS.missed(spoilt)


def test_a_plan_says_that_it_needs_spot_capacity_and_to_what_a_saving_is_compared() -> None:
    pytest.importorskip("numpy")
    asked = {"workload": "icac19/resnet-32", "train_steps": 64_000}
    plans = {name: plan("k80x4", **asked, provisioning_model=name) for name in ("spot", "standard")}  # type: ignore[arg-type]
    first = {name: str(found).splitlines()[1] for name, found in plans.items()}
    assert "if Spot capacity lasts; estimates and their ranges" in first["spot"]
    assert "Spot capacity" not in first["standard"]
    assert "% saved against Google's on-demand price." in str(plans["spot"]).splitlines()[2]


def shares(interval: str, measured: str, what: str) -> list[float]:
    """A figure of all rows of an interval whose measurements match, in percent."""
    rows = [row for row in TABLE if row["interval"] == interval and re.search(measured, row["measured"])]
    assert rows, "the table has no such row"
    assert all(row["trials"] >= 400 for row in rows)
    return [100 * row[what] for row in rows]


def test_the_evidence_says_how_many_rows_of_the_table_meet_their_goal() -> None:
    goals = [row["holds"] for row in TABLE if row["holds"] is not None]
    text = " ".join((TOP / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    assert f"{sum(goals)} of {len(goals)} situations meet this goal" in text


def test_the_evidence_says_how_many_rows_met_their_goal_before() -> None:
    rows = {(row["interval"], row["measured"]): row for row in TABLE}
    both = [(rows[row["interval"], row["measured"]], row) for row in BEFORE]
    assert len(both) == len({(row["interval"], row["measured"]) for row in BEFORE})
    assert {row["trials"] for row in BEFORE} == {150, 400}, "as the page of intervals says"
    goals = [(now, before) for now, before in both if now["target"] and before["shown"]]
    met = [
        0.85 <= round(before["coverage"], 6) <= 0.95 and (before["ratio"] is None or before["ratio"] <= 1.5)
        for _, before in goals
    ]
    still = [now["holds"] for now, _ in goals]
    text = " ".join((TOP / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    assert (
        f"Of {len(goals)} situations that were also measured with earlier code, {sum(still)} meet the goal now, "
        f"and {sum(met)} did before" in text
    )


def test_the_evidence_on_deadlines_is_what_the_table_shows() -> None:
    text = " ".join((TOP / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    below = shares("deadline speed", "", "below")
    assert f"below the bound in {min(below):.0f} to {max(below):.0f} of 100" in text
    for drop in (5, 10):
        assert shares(f"deadline kept, drop of {drop}%", "", "above") == [0, 0]
    assert "none of 400 simulated runs was late" in text
    late = {vms: [shares(f"deadline kept, drop of {drop}%, noise", f"^{vms} VMs", "above")[0] for drop in (5, 10)]
            for vms in (1, 4)}  # fmt: skip
    assert {round(share) for share in late[1]} == {9}
    assert (round(min(late[4])), round(max(late[4]))) == (2, 5)
    assert "9% of runs with one VM were late, and 2 to 5% with four" in text
    planned = [
        share
        for drop in (5, 10)
        for share in shares(f"deadline kept, drop of {drop}%, noise, planned at the lower end", "", "above")
    ]
    assert len(planned) == 4
    assert (min(planned), max(planned)) == (0, pytest.approx(100 * 3 / 400))
    assert "0 to 3 of 400 simulated runs were late" in text
