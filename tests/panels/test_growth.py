"""Curves that grow are sent as bases and tails: few bytes, and the page's own code makes the same curves of them."""

from __future__ import annotations

import json
import random
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transient_magics.journal import RunSeries, RunState
from transient_magics.panels.display import Display
from transient_magics.panels.snapshot.curves import curves
from transient_magics.panels.widget import ClusterPanel

from . import stories
from .test_display import Page, eventually, widgets_of
from .test_page_code import NODE, ROOT

JOIN = """
import {{ grown, lacks }} from {module};
import {{ readFileSync }} from "node:fs";
import {{ isDeepStrictEqual }} from "node:util";
const lost = [];
for (const [base, tail, whole] of JSON.parse(readFileSync(0, "utf8"))) {{
    const {{ number, ...found }} = grown(base, tail);
    if (!isDeepStrictEqual(found, whole)) lost.push(number);
}}
console.log(JSON.stringify([lost, lacks({{ number: 3 }}, {{ base: 4 }}), lacks({{ number: 4 }}, {{ base: 3 }})]));
"""


def second(at: int, workers: list[str], drawn: random.Random) -> list[dict[str, Any]]:
    return [
        {"time": (1_700_000_000 + at) * 10**9, "worker": name, "step": 8 * at, "steps": drawn.uniform(3, 5),
         "loss": 1.0, "samples": 64, "compute_seconds": 1.0, "batch_size": 16,
         "split": [0.1] * 9, "staleness": drawn.uniform(0, 2)}
        for name in workers
    ]  # fmt: skip


@pytest.mark.slow
def test_a_page_makes_the_same_curves_of_what_is_new_as_of_all_of_them() -> None:
    state = stories.state_at("training", began=1_700_000_000)
    assert state.run
    series, panel, drawn = RunSeries(), ClusterPanel({}, {}, {}, lambda _: None), random.Random(1)
    story, bytes_sent, bytes_whole = [], 0, 0
    for at in range(900):  # its rows become twice as long at second 720
        workers = ["worker-0", "worker-1"] + (["worker-2"] if at > 200 else [])
        if not 400 < at < 420:  # a hole
            series.add(second(at, workers if at != 600 else ["worker-0"], drawn))
        if at == 610:
            series.add(second(600, ["worker-1", "worker-2"], drawn))  # late
        if at == 700:
            saved = replace(state.run, checkpoints=((1_700_000_700.0, 5600),))
            state = replace(state, works=state.works.with_work(saved))
        if at % 4:
            continue
        whole = json.loads(json.dumps(curves(state, state.of(RunState)["run-1"], series)))
        before = panel.curves
        panel.show_curves(whole)
        bytes_whole += len(json.dumps(whole))
        bytes_sent += len(json.dumps(panel.tail)) + (len(json.dumps(panel.curves)) if panel.curves is not before else 0)
        if at % 12 == 0:
            story.append([panel.curves, panel.tail, whole])
    assert panel.curves["number"] > 10
    assert any("marks" in tail for _, tail, _ in story)
    code = JOIN.format(module=json.dumps((ROOT / "widgets" / "growth.js").as_uri()))
    ended = subprocess.run(
        [NODE, "--input-type=module", "-e", code],
        input=json.dumps(story),
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    assert json.loads(ended.stdout) == [[], True, False]
    assert bytes_sent < bytes_whole / 4, "the bars of a step are sent whole each time"


@pytest.mark.slow
def test_nothing_is_drawn_anew_but_the_curves_when_something_was_measured(tmp_path: Path) -> None:
    journal, metrics = tmp_path / "journal.jsonl", tmp_path / "runs" / "run-1" / "metrics.jsonl"
    stories.tell(journal, "training")
    metrics.parent.mkdir(parents=True)
    metrics.touch()
    page = Page(Display(stories.StoryCluster(journal), None, stories.StoryFeed(journal)))
    (panel,) = widgets_of(page)
    eventually(lambda: panel.view.get("received") is not None)
    time.sleep(0.3)
    views: list[Any] = []
    panel.observe(views.append, "view")
    before, drawn = panel.curves, random.Random(1)
    for at in range(12):
        with metrics.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in second(at, ["worker-0"], drawn))
        time.sleep(0.11)
    eventually(lambda: panel.curves != before)
    assert len(views) <= 4, "a heartbeat or two"
    assert "batch" not in panel.curves["workers"]["worker-0"], "a cluster's panel draws no mini-batches"
