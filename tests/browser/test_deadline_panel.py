"""A run with a deadline on its panel: what is proposed is agreed to with a button, and the cluster acts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.controller.test_deadline_conduct import Desk
from transient_magics.controller.record import Recorder
from transient_magics.journal import Journal, RunState, read, replay
from transient_magics.panels import html

from .bare import bare
from .lab import Lab
from .test_bare_panels import sent
from .test_panel import shots
from .test_quickstart import delete_by_button

__all__ = ["shots"]
pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_what_is_proposed_is_read_and_agreed_to_by_keyboard(
    chrome: Browser, tmp_path: Path, shots: Path, theme: str
) -> None:
    path = tmp_path / "journal.jsonl"
    desk = Desk(path, adapt="ask")
    with Journal(path) as journal:
        recorder = Recorder(journal, replay(read(path)))
        desk.deadlines(recorder).tick(time.time())
        state = recorder.state
    proposed = state.of(RunState)["run-1"].deadline and state.of(RunState)["run-1"].deadline.proposed
    assert proposed
    stored = html(sent(state, time.time(), "run-1")["view"])
    assert f"To agree: %transient_cluster agree {state.name} run-1" in stored
    with bare(chrome, "cluster", sent(state, time.time(), "run-1"), theme=theme, height=1100) as page:
        panel = page.locator(".transient-panel")
        expect(panel).to_contain_text(proposed.reason)
        page.screenshot(path=shots / f"proposal-{theme}.png")
        button = panel.get_by_role("button", name="Agree")
        button.focus()
        page.evaluate("() => { globalThis.later = []; globalThis.setTimeout = act => later.push(act); }")
        page.keyboard.press("Enter")
        [asked] = [each for each in page.evaluate("model.sent") if each["do"] != "resync"]
        assert (asked["do"], asked["run"], asked["number"]) == ("agree", "run-1", proposed.seq)
        expect(button).to_be_disabled()  # it asks once
        page.evaluate("() => { for (const act of model.heard['comm:close']) act(); }")
        page.evaluate("() => { for (const act of later) act(); }")  # it was refused, as far as this page knows
        expect(button).to_be_disabled()  # and nobody hears it now
        page.evaluate("view => model.set('view', view)", sent(state, time.time(), "run-1")["view"])
        expect(button).to_be_enabled()
        page.evaluate("view => model.set('view', view)", sent(state, proposed.until + 1, "run-1")["view"])
        expect(button).to_be_hidden()


STORY = """\
import transient_magics as tm
from tests.faults.test_two_runs import CELL
cluster = tm.declare("cpux1", name="asked", max_workers=2, max_hours=2.0)
cluster.weather(boot="0.5s")
cluster.wait(300)
run = tm.train(source=CELL, cluster=cluster, train_steps=1200, pace_seconds=0.25, check=False, eval_batches=1,
               finish_by=330 / 3600, adapt="ask")
cluster"""


@pytest.mark.training
@pytest.mark.slow
@pytest.mark.nightly
def test_a_real_cluster_acts_when_its_proposal_is_agreed_to(lab: Lab, shots: Path) -> None:
    """Alone its worker takes five minutes and is to be done in five and a half: VMs on demand have to come at once."""
    lab.notebook("asked", "%load_ext transient_magics", STORY)
    page = lab.open("asked", height=1200)
    lab.run_all(page)
    panel = page.locator(".transient-panel").first
    button = panel.get_by_role("button", name="Agree")
    expect(button).to_be_visible(timeout=150_000)
    page.screenshot(path=shots / "proposal-live.png")
    expect(panel.locator("tr[data-key=worker-1]")).to_have_count(0)
    button.click()
    expect(panel.locator("tr[data-key=worker-1]")).to_contain_text("training", timeout=150_000)
    expect(panel).to_contain_text("on demand")
    expect(button).to_be_hidden()
    page.screenshot(path=shots / "agreed-live.png")
    delete_by_button(panel)
